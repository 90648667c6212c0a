# Sourced: llama_sources CACHE prints where llama.cpp v0.5.0's sources are, for their vocabularies and templates. They
# are fetched from npm's node-llama-cpp into the folder CACHE (needs npm and git, once).
llama_sources() {
    cache=$1
    sources=$cache/llama.cpp
    if [ ! -d "$sources/models" ]; then
        mkdir -p "$cache"
        [ -f "$cache/package.json" ] || echo '{"private": true}' > "$cache/package.json"
        (cd "$cache" && npm i --ignore-scripts --omit=optional node-llama-cpp@3.22.1) >&2
        rm -rf "$sources.tmp"
        git clone -q "$cache/node_modules/node-llama-cpp/llama/gitRelease.bundle" "$sources.tmp"
        mv "$sources.tmp" "$sources"
    fi
    echo "$sources"
}
