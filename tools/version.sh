#!/bin/sh
# Prints the project's version, which meson.build has.
set -eu
version=$(sed -n "s/^  version: '\([0-9.]*\)',$/\1/p" "$(dirname "$0")/../meson.build")
[ -n "$version" ] || {
    echo "version: meson.build: expected a line \"  version: 'N.N.N',\"" >&2
    exit 1
}
echo "$version"
