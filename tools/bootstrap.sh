#!/bin/sh
# Makes sure that the tools for PURPOSE are there, and installs what is missing from the distribution's packages
# (Debian, Ubuntu) where it may: as root, or with a sudo that asks for no password. Otherwise it says what to type.
# Silent and fast when nothing is missing.
#
# usage: tools/bootstrap.sh build|check|ci|agents|page|arm|lint|fuzz|deb|check-deb
set -eu

purpose=${1:?usage: tools/bootstrap.sh build|check|ci|agents|page|arm|lint|fuzz|deb|check-deb}
missing=

need_command() { # COMMAND PACKAGE...
    command -v "$1" >/dev/null 2>&1 && return
    shift
    case " $missing " in *" $1 "*) ;; *) missing="$missing $*" ;; esac
}

need_library() { # PKG-CONFIG-NAME PACKAGE
    pkg-config --exists "$1" 2>/dev/null || missing="$missing $2"
}

need_file() { # PATH PACKAGE
    [ -e "$1" ] || missing="$missing $2"
}

may_install() {
    command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

need_for_build() {
    need_command cc gcc libc6-dev # a compiler that is there has its C library: gcc only recommends it
    need_command pkg-config pkg-config
    need_command meson meson
    need_command ninja ninja-build
    need_library libpcre2-8 libpcre2-dev
    need_library jansson libjansson-dev
    # liburing is optional (meson_options.txt), and worth having on Linux
    [ "$(uname -s)" != Linux ] || need_library liburing liburing-dev
    # It builds without: `moebius chat` then has no line editing, memory nodes are all the same, there is no `moebius serve`,
    # and mpirun starts processes that don't know each other.
    if may_install; then
        need_library libedit libedit-dev
        need_library hwloc libhwloc-dev
        need_library libmicrohttpd libmicrohttpd-dev
        need_library ompi-c libopenmpi-dev
        need_library libcurl libcurl4-gnutls-dev # and no `moebius pull`
        need_library nettle nettle-dev
        need_library vulkan libvulkan-dev # and no GPUs
        need_command glslc glslc
    fi
}

need_for_check() {
    need_for_build
    need_command python3 python3
    need_library cmocka libcmocka-dev
    ! may_install || need_command mpirun openmpi-bin # the tests of several processes are left out without it
    # A driver that runs on the processor, and the layer that checks how Vulkan is used; without them these tests are skipped.
    if may_install; then
        need_file /usr/share/vulkan/icd.d mesa-vulkan-drivers
        need_file /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json vulkan-validationlayers
    fi
    # Shells in which completions are tried, and the client of the documentation's examples; the same holds for these.
    if may_install; then
        need_command fish fish
        need_command zsh zsh
        need_command curl curl
    fi
}

# The sanitizers' and the fuzzer's runtime of clang: a package with the version in its name, known once clang is there.
need_clang_runtime() {
    command -v clang >/dev/null 2>&1 || return 0
    folder=$(clang -print-runtime-dir) # .../lib/linux, or .../lib/TARGET whether that is there or not
    for file in "${folder%/*}"/*/libclang_rt.fuzzer*.a; do
        [ -e "$file" ] && return
    done
    version=$(clang -dumpversion | cut -d. -f1)
    missing="$missing libclang-rt-$version-dev"
}

# What debian/control names; it has no versions that matter.
need_for_deb() {
    need_command dpkg-buildpackage dpkg-dev
    need_command dh debhelper
    command -v dpkg-checkbuilddeps >/dev/null 2>&1 || return 0 # the second time it is there
    for package in $(dpkg-checkbuilddeps "$(dirname "$0")/../debian/control" 2>&1 |
        sed -n 's/.*nmet build dependencies: //; s/ ([^)]*)//g; s/debhelper-compat//; p'); do
        missing="$missing $package"
    done
}

find_missing() {
    missing=
    case $purpose in
    build) need_for_build ;;
    check) need_for_check ;;
    ci)
        need_for_check
        need_command ccache ccache
        ;;
    agents)
        need_for_check
        need_library libmicrohttpd libmicrohttpd-dev
        need_command npm npm
        ;;
    page)
        need_for_build
        need_library libmicrohttpd libmicrohttpd-dev
        need_command node nodejs
        need_command npm npm
        need_command "${CHROMIUM:-chromium}" chromium
        ;;
    arm)
        need_for_check
        need_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
        need_command qemu-aarch64 qemu-user
        ;;
    lint)
        need_for_check
        need_library libedit libedit-dev
        need_library hwloc libhwloc-dev
        need_library libmicrohttpd libmicrohttpd-dev
        need_library ompi-c libopenmpi-dev
        need_library libcurl libcurl4-gnutls-dev
        need_library nettle nettle-dev
        need_command gcc gcc libc6-dev
        need_command clang clang
        need_command clang-format clang-format
        need_command clang-tidy clang-tidy
        ;;
    fuzz)
        need_for_check
        need_command clang clang
        need_clang_runtime
        ;;
    deb) need_for_deb ;;
    check-deb)
        need_for_deb
        need_command debootstrap debootstrap
        need_command lintian lintian
        need_command systemd-analyze systemd
        need_command systemd-nspawn systemd-container
        need_command python3 python3
        ;;
    *)
        echo "bootstrap: $purpose: expected build, check, ci, agents, page, arm, lint, fuzz, deb or check-deb" >&2
        exit 2
        ;;
    esac
    missing=${missing# }
}

give_up() {
    echo "bootstrap: to $purpose, these packages are missing (names as in Debian): $missing" >&2
    [ -z "${1:-}" ] || echo "Type:  $1" >&2
    exit 1
}

# What npm has for a folder below tests: the official clients that test the server, agents, and what drives a browser. Without npm, node 20
# or a network there is nothing, and tests that need it say so.
get_from_npm() { # FOLDER NPM'S-COMMAND [ITS OPTIONS]
    folder=$(dirname "$0")/../tests/$1
    shift
    if [ ! -d "$folder/node_modules" ] && command -v npm >/dev/null 2>&1; then
        echo "bootstrap: installing what $folder/package.json names" >&2
        npm "$@" --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent >&2 || rm -rf "$folder/node_modules"
    fi
}

finish() { # what comes from npm, which may just have been installed
    case $purpose in
    check) get_from_npm e2e/clients ci --fetch-retries=1 --fetch-timeout=20000 ;;
    agents) get_from_npm e2e/agents install --no-save ;; # `npm ci` wants the packages of all platforms, which not every registry has
    page) get_from_npm web ci ;;
    esac
    exit 0
}

find_missing
[ -n "$missing" ] || finish
command -v apt-get >/dev/null 2>&1 || give_up
sudo=
if [ "$(id -u)" != 0 ]; then
    sudo="sudo -n"
    $sudo true 2>/dev/null || give_up "sudo apt-get install --no-install-recommends $missing"
fi

apt_get() { # sudo drops the environment, so env comes behind it
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 "$@"
}

install_missing() {
    echo "bootstrap: installing $missing" >&2
    # The first try is quiet: it fails when the package lists are missing or old.
    # shellcheck disable=SC2086 # a list of words
    apt_get install --no-install-recommends $missing >/dev/null 2>&1 && return
    apt_get update >&2
    if [ -n "${version:-}" ] && ! apt-cache show "libclang-rt-$version-dev" >/dev/null 2>&1; then
        missing=$(echo "$missing" | sed 's/libclang-rt-/libclang-common-/') # Ubuntu 22.04
    fi
    # shellcheck disable=SC2086
    apt_get install --no-install-recommends $missing >&2
}

for _ in 1 2; do # the second time for clang's runtime, whose name is not known before clang is there
    install_missing || give_up
    find_missing
    [ -n "$missing" ] || finish
done
give_up
