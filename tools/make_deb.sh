#!/bin/sh
# Builds the Debian packages of HEAD, and their source package, into FOLDER. SOURCE_DATE_EPOCH is that of debian/changelog.
# usage: tools/make_deb.sh FOLDER [DPKG-BUILDPACKAGE-OPTION...]
set -eu
folder=${1:?usage: tools/make_deb.sh FOLDER [DPKG-BUILDPACKAGE-OPTION...]}
shift
tools=$(dirname "$0")
version=$("$tools/version.sh")

SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -l "$tools/../debian/changelog" -S Timestamp) "$tools/make_dist.sh" "$folder"
cd "$folder"
rm -rf "moebius-$version" moebius_* moebius-dbgsym_* moebius-mpi* libmoebius*
tar -xpf "moebius-$version.tar.gz"
(cd "moebius-$version" && dpkg-buildpackage -us -uc "$@")
rm -rf "moebius-$version"
