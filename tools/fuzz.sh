#!/bin/bash
# Runs each fuzz target for FUZZ_SECONDS (60) on a copy of its corpus. New inputs stay in build-fuzz/; a crash leaves its
# input there and makes this fail. FUZZ_TARGETS="gguf vocab" chooses.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build-fuzz
[ -e $folder/build.ninja ] ||
    CC=clang meson setup $folder -Dfuzz=true -Dtests=enabled -Dbuildtype=debugoptimized >/dev/null
mapfile -t programs < <(ninja -C $folder -t targets all | sed -n 's/^\(tests\/fuzz\/fuzz_[a-z0-9_]*_libfuzzer\):.*/\1/p')
ninja -C $folder "${programs[@]}"

# The dictionary of each target, and the greatest length of its inputs, which is far more than any fault has needed.
declare -A words=([checksums]=gguf [gguf]=gguf [imatrix]=gguf [model]=gguf [prepare]=gguf [quantize]=gguf [store]=gguf
    [vocab]=gguf [batch]=json [conversation]=json [grammar]=grammar [hub]=json [replay]=replay [reply]=json [template]=jinja [ppl]=text [requests]=requests [trace]=text [machine]=json [receipts]=json
    [usage]=text)
declare -A longest=([grammar]=512 [model]=65536 [session]=65536 [vocab]=16384)

crashed=()
for program in "${programs[@]}"; do
    name=${program#tests/fuzz/fuzz_}
    name=${name%_libfuzzer}
    [[ -z ${FUZZ_TARGETS:-} || " $FUZZ_TARGETS " == *" $name "* ]] || continue
    scratch=$folder/corpus-$name
    mkdir -p "$scratch"
    echo "fuzz: $name for ${FUZZ_SECONDS:-60} s"
    options=(-max_len="${longest[$name]:-4096}" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -print_final_stats=1
        -verbosity=0)
    [[ -z ${words[$name]:-} ]] || options+=(-dict="tests/fuzz/dict/${words[$name]}.dict")
    $folder/"$program" "${options[@]}" -max_total_time="${FUZZ_SECONDS:-60}" -artifact_prefix=$folder/"$name"- \
        "$scratch" "tests/fuzz/corpus/$name" || crashed+=("$name")
done
if ((${#crashed[@]})); then
    echo "fuzz: FAILED: ${crashed[*]}; the inputs are in $folder/"
    exit 1
fi
echo "fuzz: nothing found"
