#!/bin/sh
# Builds the tarball and the packages of HEAD twice, where as much as possible is different, and compares the bytes. Takes two whole
# builds: no compiler's cache is used. usage: tools/check_reproducible.sh FOLDER
set -eu
folder=${1:?usage: tools/check_reproducible.sh FOLDER}
tools=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)/twice
export CCACHE_DISABLE=1 DEB_BUILD_OPTIONS="nocheck ${DEB_BUILD_OPTIONS:-}"

build() { # NAME'S-FOLDER: the log stays there
    mkdir -p "$1"
    "$tools/make_deb.sh" "$1" > "$1/build.log" 2>&1 || {
        tail "$1/build.log" >&2
        exit 1
    }
}

rm -rf "$folder"
(umask 022 && TZ=UTC LC_ALL=C.UTF-8 build "$folder/one")
(umask 077 && TZ=Asia/Kathmandu LC_ALL=C HOME=/nowhere build "$folder/another-with-a-longer-name")

cd "$folder/one"
passed=0 failed=0
for file in *.tar.?z *.dsc *.deb; do
    if cmp "$file" "../another-with-a-longer-name/$file"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
sha256sum -- *.tar.?z *.deb
[ "$failed" != 0 ] || rm -rf "$folder"
echo "$passed passed, $failed failed"
[ "$passed" -ge 7 ] && [ "$failed" = 0 ]
