#!/bin/sh
# Writes FOLDER/moebius-VERSION.tar.gz: what git has of HEAD, in bytes that depend on nothing else. All times in it are
# SOURCE_DATE_EPOCH (the commit's time). usage: tools/make_dist.sh FOLDER
set -eu
folder=${1:?usage: tools/make_dist.sh FOLDER}
root=$(cd "$(dirname "$0")/.." && pwd)
version=$("$root/tools/version.sh")

git -C "$root" rev-parse --git-dir >/dev/null 2>&1 || {
    echo "make_dist: $root is no git repository: expected a clone" >&2
    exit 1
}
git -C "$root" diff --quiet HEAD -- || echo "make_dist: what is not committed is left out" >&2
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}

mkdir -p "$folder"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir "$tree/moebius-$version"
git -C "$root" archive HEAD | tar -x -C "$tree/moebius-$version"
LC_ALL=C tar -c -C "$tree" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=root:0 --group=root:0 \
    --mode=u+rw,go+r,go-w,a+X "moebius-$version" | gzip -n -9 > "$folder/moebius-$version.tar.gz"
echo "$folder/moebius-$version.tar.gz"
