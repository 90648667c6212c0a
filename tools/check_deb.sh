#!/bin/bash
# Does with the packages what a user does on a bare Debian: installs them, fetches a model from a hub on this machine, talks
# with it, with nothing else installed; then builds a program with the library, and removes everything. Before that lintian.
# Takes minutes, 1 GB below the folder, and root (for chroot); mounts are in a namespace of their own and end with it. What
# debootstrap made stays for the next time. SUITE (bookworm) and MIRROR (where this machine's packages come from) choose.
#
# usage: tools/check_deb.sh FOLDER     with the packages of tools/make_deb.sh
set -euo pipefail
folder=$(realpath "${1:?usage: tools/check_deb.sh FOLDER}")
root=$(realpath "$(dirname "$0")/..")
version=$("$root/tools/version.sh")
suite=${SUITE:-bookworm}
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" | head -n 1)}
base=$folder/$suite
place=$folder/bare
passed=0 doing=

[ "$(id -u)" = 0 ] || {
    echo "check_deb: chroot needs root" >&2
    exit 1
}

# A step fails with its first failing command. So it is never part of a condition, where bash would go on.
step() { # NAME COMMAND...
    doing=$1
    "${@:2}"
    echo "check_deb: $1"
    passed=$((passed + 1))
    doing=
}

finish() {
    local status=$?
    [ "$status" = 0 ] || echo "check_deb: FAILED: ${doing:-between two steps}" >&2
    echo "$passed passed, $((status != 0)) failed"
}
trap finish EXIT

# The bare machine gets its packages from where this one does.
bootstrap() {
    [ ! -e "$base/done" ] || return 0
    rm -rf "$base"
    debootstrap --variant=minbase "$suite" "$base" "$mirror" > "$folder/debootstrap.log"
    apt-config dump Acquire::http --format '%f "%v";%n' > "$base/etc/apt/apt.conf.d/90here"
    touch "$base/done"
}

# A process in the bare machine, with its own mounts and processes but this machine's network.
inside() { # COMMAND...
    unshare --mount --pid --fork --kill-child sh -c '
        mount --make-rprivate / && mount -t proc proc "$0/proc" && mount -t tmpfs tmp "$0/tmp" && mount --rbind /dev "$0/dev" &&
        exec chroot "$0" "$@"' "$place" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TERM=dumb \
        DEBIAN_FRONTEND=noninteractive HF_ENDPOINT="${HF_ENDPOINT:-}" "$@" < "${INPUT:-/dev/null}"
}

make_bare() {
    rm -rf "$place"
    cp -a "$base" "$place"
    mkdir "$place/packages"
    cp "$folder"/*moebius*_*.deb "$place/packages"
    mkdir -p "$place/source/models"
    cp "$root"/models/*.gguf "$place/source/models"
    cp -r "$root/debian" "$place/source"
    rm -f "$place"/packages/*dbgsym*
    inside apt-get -qq update
}

check_lintian() {
    lintian --allow-root --fail-on error,warning --show-overrides "$folder"/moebius_"$version"_*.changes
}

install() { # PACKAGE'S-BEGINNING...
    inside sh -c 'cd /packages && for p; do set -- "$@" ./"$p"_*.deb; shift; done && apt-get install -y "$@"' sh "$@" \
        > "$place/install.log" 2>&1 || { tail "$place/install.log"; return 1; }
}

says() { # WHAT FILE
    grep -q -- "$1" "$2" || {
        echo "check_deb: expected $1 in:" >&2
        cat "$2" >&2
        return 1
    }
}

check_program() {
    inside moebius version > "$place/said"
    says "^moebius $version$" "$place/said" && says "pull: libcurl" "$place/said"
    inside moebius doctor > "$place/said" || [ $? = 23 ] # 23: there are findings
}

# As docs/packages.md says, with the bundled model as the Hub's.
check_pull() {
    inside moebius pull hf:them/Demo-GGUF:Q8_0 > "$place/said"
    says "^/.*/\.cache/huggingface/hub/models--them--Demo-GGUF/snapshots/.*/Demo-Q8_0.gguf$" "$place/said"
    cmp "$root"/models/*.gguf "$place/$(cat "$place/said")"
    inside moebius list > "$place/said"
    says "them/Demo-GGUF" "$place/said"
}

check_chat() {
    echo "Tell me about the sea." > "$folder/input"
    HF_ENDPOINT=http://127.0.0.1:9 INPUT=$folder/input inside moebius chat hf:them/Demo-GGUF:Q8_0 -n 32 --seed 1 > "$place/said"
    [ "$(wc -w < "$place/said")" -ge 10 ]
}

check_unit() {
    mkdir -p "$place/source/units"
    sed "s|/usr/bin/moebius|$place&|" "$place/lib/systemd/system/moebius.service" > "$place/source/units/moebius.service"
    cp "$place/lib/systemd/system/moebius.socket" "$place/source/units"
    SYSTEMD_UNIT_PATH="$place/source/units:" systemd-analyze verify --man=no "$place/source/units/moebius.service" > "$place/said" 2>&1
    [ ! -s "$place/said" ] || says "nothing" "$place/said"
    says "MOEBIUS_SERVE" "$place/etc/default/moebius"
    [ ! -e "$place/etc/systemd/system/sockets.target.wants/moebius.socket" ]
}

# Boots the bare machine, which runs one of the packages' tests and switches itself off.
check_server() {
    local keep=()
    [ -d /run/systemd/system ] || keep=(--keep-unit) # nobody to make a unit for it
    inside apt-get install -y -qq --no-install-recommends systemd-sysv curl > "$place/install.log" 2>&1
    cat > "$place/etc/systemd/system/try.service" <<-'END'
		[Service]
		Type=oneshot
		WorkingDirectory=/source
		ExecStart=/bin/sh -c 'debian/tests/server > /said 2>&1 && echo passed >> /said; systemctl poweroff'
	END
    unshare --mount sh -c '
        mount --make-rprivate / && mkdir -p /run/systemd/nspawn && mount -t tmpfs nspawn /run/systemd/nspawn && exec "$@"' sh \
        timeout 120 systemd-nspawn --quiet --register=no "${keep[@]}" --private-network --directory "$place" --boot \
        systemd.unit=multi-user.target systemd.wants=try.service < /dev/null > "$folder/boot.log"
    says '^passed$' "$place/said"
}

check_library() {
    install "$(sed -n 's/^Package: \(libmoebius[0-9.]*\)$/\1/p' "$root/debian/control")" libmoebius-dev
    inside apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config > "$place/install.log" 2>&1
    inside sh -c 'cd /source && debian/tests/library'
}

check_mpi() {
    local model
    model=/source/models/$(cd "$root/models" && echo *.gguf)
    install moebius-mpi
    inside mpirun --allow-run-as-root --oversubscribe -n 2 moebius-mpi generate -m "$model" -p "Once" -n 8 --temp 0 \
        > "$place/two" 2> "$place/said"
    inside moebius generate -m "$model" -p "Once" -n 8 --temp 0 > "$place/one" 2> "$place/said"
    cmp "$place/one" "$place/two"
}

check_gone() {
    inside sh -c 'apt-get purge -y "?name(moebius)"' > "$place/install.log" 2>&1
    inside sh -c 'find / -xdev \( -path /packages -o -path /source -o -path /root -o -path /proc \) -prune -o -name "*moebius*" -print' |
        grep -v '^/var/log\|^/var/lib/systemd\|^/var/lib/dpkg/info/.*list$' > "$place/said" || true
    [ ! -s "$place/said" ] || says "nothing" "$place/said"
}

start_hub() {
    coproc python3 "$root/tests/e2e/local_hub.py" them/Demo-GGUF Demo-Q8_0.gguf "$root"/models/*.gguf
    read -r -u "${COPROC[0]}" HF_ENDPOINT # it ends with this script, and so with its input
}

step "lintian finds nothing" check_lintian
step "a bare $suite" bootstrap
step "a copy of it" make_bare
step "apt installs moebius" install moebius
step "the program starts" check_program
start_hub
step "pull fetches a model, whole" check_pull
step "chat answers, from what was fetched" check_chat
step "the server's unit is there, and waits to be enabled" check_unit
step "systemd starts it, and lets it read keys again and come back" check_server
step "a program is built with the library" check_library
if compgen -G "$folder/moebius-mpi_*.deb" > "$place/said"; then
    step "two processes share a model" check_mpi
fi
step "purge leaves nothing" check_gone
rm -rf "$place"
