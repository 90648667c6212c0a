#!/bin/bash
# What a change must pass besides the tests: the layers, headers that compile alone, formatting, a clean build with
# two compilers and one without optional libraries, clang-tidy, and a library that exports the public functions only.
# Runs all of it, then fails if anything was found. The last line is "N passed, N failed", counting these steps.
#
# usage: tools/lint.sh [--quick | --format]    --quick: without clang-tidy, which takes longer than the rest; --format: format
# the files instead
set -uo pipefail
cd "$(dirname "$0")/.." || exit

n_steps=0
bad=()
step() { # NAME COMMAND...
    echo "lint: $1"
    n_steps=$((n_steps + 1))
    local start=$SECONDS
    "${@:2}" || bad+=("$1")
    echo "$1: $((SECONDS - start)) s"
}

# Tracked files and new ones, not what was deleted; without git, all.
list_files() { # PATTERN...
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$@" | sort -u
    else
        local names=()
        for pattern in "$@"; do names+=(-o -path "./$pattern"); done
        find . -path './build*' -prune -o -type f \( "${names[@]:1}" \) -print | sed 's|^\./||' | sort
    fi | while read -r f; do [ -e "$f" ] && echo "$f"; done
}

check_layers() {
    tools/check_layers.py --self-test && tools/check_layers.py
}

# In src/kernels/x86 the suffix sets the flags. Headers that use the vectors of the file that includes them are checked by
# the .c files, those for Arm by make check-arm.
check_headers() {
    local header flags result=0
    for header in $(list_files '*.h'); do
        flags=
        case $header in
        tests/*) flags=-Itests ;;
        src/ranks/link_internal.h) flags=$(pkg-config --cflags ompi-c) || continue ;; # what it's for is built with MPI only
        *_avx2.h) flags='-mavx2 -mfma -mf16c' ;;
        *_avx512.h) flags='-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl' ;;
        src/kernels/x86/kernels_x86.h) ;;
        src/kernels/x86/* | src/kernels/body/* | src/kernels/arm/*) continue ;;
        esac
        # shellcheck disable=SC2086 # flags are words
        echo "#include \"$(realpath "$header")\"" |
            cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter \
                -Wno-missing-field-initializers -Isrc -Iinclude $flags -fsyntax-only \
                -x c - || result=1
    done
    return $result
}

# The files are formatted as clang-format 14 does it; the other versions differ in corners, so they only inform.
check_format() {
    local tool
    tool=$(command -v clang-format-14 || command -v clang-format)
    if "$tool" --version | grep -q 'version 14\.'; then
        list_files '*.c' '*.h' | xargs "$tool" --dry-run -Werror
    else
        echo "$("$tool" --version): not version 14, so differences are no errors"
        list_files '*.c' '*.h' | xargs "$tool" --dry-run || true
    fi
}

# Where warnings are errors in build/, as in CI, no second build by gcc is needed.
gcc_folder=build-lint-gcc
meson configure build 2>/dev/null | grep -Eq '^ *werror +true' && gcc_folder=build

set_up() { # COMPILER FOLDER
    [ -e "$2/build.ninja" ] || CC=$1 meson setup "$2" -Dwerror=true -Dtests=enabled >/dev/null
}

check_gcc() {
    set_up gcc "$gcc_folder" && ninja -C "$gcc_folder"
}

# Only warnings are wanted, so no code is generated.
check_clang() {
    set_up clang build-lint-clang && tools/clang_warnings.py build-lint-clang
}

# The analyzer's default of 225,000 nodes a function takes ten times as long, nearly all of it in a few functions that exhaust
# that, too.
check_tidy() {
    local files analyzer=(-Xclang -analyzer-config -Xclang max-nodes=15000)
    files=$(list_files 'src/*.c' | grep -v '^src/kernels/\(x86\|arm\)/')
    # shellcheck disable=SC2086 # a list of files
    printf '%s\0' $files | xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet -p build-lint-clang \
        "${analyzer[@]/#/--extra-arg=}" 2>/dev/null
}

# The program compiles and links without any of the optional libraries; it isn't run. A compiler's cache has most of it from
# the build with all of them.
check_plain() {
    local optimization=0
    [ -z "${CCACHE_DIR:-}" ] || optimization=3
    [ -e build-lint-plain/build.ninja ] ||
        meson setup build-lint-plain -Dwerror=true -Doptimization=$optimization -Dauto_features=disabled >/dev/null || return
    ninja -C build-lint-plain moebius
}

check_exports() {
    local extra
    extra=$(nm -D --defined-only "$gcc_folder/libmoebius.so" | awk '$3 !~ /^moebius_/ { print $3 }')
    [ -z "$extra" ] || {
        echo "libmoebius.so exports more than moebius_*:" "$extra"
        return 1
    }
}

# meson.build has the version; what cannot read it from there says the same.
check_versions() {
    local version changes package
    version=$(tools/version.sh)
    changes=$(sed -n 's/^## \[\([0-9.]*\)\].*/\1/p' CHANGELOG.md | head -n 1)
    package=$(sed -n '1s/.*(\([0-9.]*\)).*/\1/p' debian/changelog)
    [ "$changes" = "$version" ] && [ "$package" = "$version" ] && grep -q "^Package: libmoebius${version%.*}$" debian/control || {
        echo "meson.build has version $version, CHANGELOG.md $changes, debian/changelog $package; debian/control:" \
            "$(grep 'Package: libmoebius[0-9]' debian/control)"
        return 1
    }
}

if [ "${1:-}" = --format ]; then
    list_files '*.c' '*.h' | xargs clang-format -i
    exit
fi

step "layers" check_layers
step "one version" check_versions
step "each header alone" check_headers
step "clang-format" check_format
step "gcc without warnings" check_gcc
step "clang without warnings" check_clang
step "no optional library" check_plain
step "exported names" check_exports
[ "${1:-}" = --quick ] || step "clang-tidy" check_tidy

((${#bad[@]} == 0)) || printf 'lint: FAILED: %s\n' "${bad[@]}"
echo "$((n_steps - ${#bad[@]})) passed, ${#bad[@]} failed"
((${#bad[@]} == 0))
