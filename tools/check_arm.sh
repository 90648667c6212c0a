#!/bin/sh
# Builds for 64-bit Arm in build-arm and runs there, by qemu-user, the tests that are about numbers: kernels, formats, the
# CPU device, some golden models. The libraries come from the distribution's packages for that machine; they are unpacked
# in build-arm/root, and nothing of them is installed.
set -eu
cd "$(dirname "$0")/.."
build=build-arm/meson
root=$PWD/build-arm/root

fetch_libraries() {
    packages='libpcre2-8-0 libpcre2-dev libjansson4 libjansson-dev libcmocka0 libcmocka-dev'
    apt=$PWD/build-arm/apt
    mkdir -p "$root" "$apt/state/lists/partial" "$apt/cache/archives/partial"
    set -- -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$apt/state" \
        -o Dir::State::status=/dev/null -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root
    apt-get "$@" update
    # shellcheck disable=SC2086 # a list of words
    (cd "$apt" && apt-get "$@" download $packages)
    for package in "$apt"/*.deb; do
        dpkg -x "$package" "$root"
    done
    touch "$root/complete"
}

[ -e "$root/complete" ] || fetch_libraries
if ! [ -e $build/build.ninja ]; then
    printf "[constants]\nroot = '%s'\n" "$root" >build-arm/root.ini
    meson setup $build --cross-file build-arm/root.ini --cross-file tools/arm.ini -Dtests=enabled -Dio_uring=disabled \
        -Dlibedit=disabled -Dnuma=disabled -Dmpi=disabled >/dev/null
fi
ninja -C $build moebius tests/kernels/check_kernels tests/unit/test_base tests/unit/test_quant tests/unit/test_backend \
    tests/golden/test_golden
exec meson test -C $build --no-rebuild --print-errorlogs --timeout-multiplier 20 kernels base quant backend golden
