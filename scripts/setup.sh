#!/usr/bin/env bash
# Brings this machine to the point where a target of the Makefile can run.
#
#   scripts/setup.sh demo    what building needs
#   scripts/setup.sh test    also the compilers and devices that the test tiers run on
#
# As root on a system with apt-get it installs what is missing; elsewhere it names everything that
# is missing and the one command that installs it. When all is there it needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

NVRTC_VERSION=13.0.88
NVRTC_FOLDER=build/nvrtc
PYTHON_TOOLS=build/python-tools
PYTHON_REQUIREMENTS=crates/python/tests/requirements.txt

missing=()   # sentences
packages=()  # Debian's names
work=         # scratch folder, removed at the end

lacks() { # lacks SENTENCE [PACKAGE...]
    missing+=("$1")
    shift
    packages+=("$@")
}

has_command() { command -v "$1" >/dev/null 2>&1; }

first_file() { # prints the first of its arguments that exists
    local file
    for file in "$@"; do
        if [ -e "$file" ]; then
            echo "$file"
            return 0
        fi
    done
    return 1
}

# The compiler of the NVRTC tier, unpacked from NVIDIA's Python package.
has_nvrtc() {
    [ -n "${BIFOLIO_NVRTC_LIBRARY:-}" ] || first_file "$NVRTC_FOLDER"/nvidia/*/lib/libnvrtc.so.* >/dev/null
}

# A removed package leaves its .icd file behind: what that names must be there as well.
has_pocl() {
    local icd library
    icd=$(first_file /etc/OpenCL/vendors/pocl*.icd) || return 1
    library=$(head -n 1 "$icd")
    first_file "$library" /usr/lib/"$library" /usr/lib64/"$library" /usr/lib/*/"$library" /usr/local/lib/"$library" >/dev/null
}

look_for_demo() {
    has_command cc || lacks "a C compiler and linker (cc)" gcc libc6-dev
}

look_for_test() {
    look_for_demo
    has_command "${CXX:-c++}" || lacks "a C++ compiler with sanitisers (${CXX:-c++})" g++
    first_file /usr/lib/libOpenCL.so.1 /usr/lib64/libOpenCL.so.1 /usr/lib/*/libOpenCL.so.1 >/dev/null ||
        lacks "the OpenCL loader (libOpenCL.so.1)" ocl-icd-libopencl1
    has_pocl ||
        lacks "PoCL, the OpenCL device of the tests" pocl-opencl-icd
    first_file ${BIFOLIO_OCLGRIND_LIBRARY:-} /usr/lib/oclgrind/liboclgrind-rt.so \
        /usr/lib/*/oclgrind/liboclgrind-rt.so /usr/local/lib/oclgrind/liboclgrind-rt.so >/dev/null ||
        lacks "Oclgrind, which finds data races in kernels" oclgrind
    PATH=$PATH:/usr/sbin:/sbin has_command mdadm || lacks "mdadm, which examines arrays that the tests make" mdadm
    # File systems are mounted from images to test consistency on each; that takes root.
    if [ "$(id -u)" = 0 ]; then
        PATH=$PATH:/usr/sbin:/sbin has_command mkfs.ext4 || lacks "mkfs.ext4, to test on ext4" e2fsprogs
        PATH=$PATH:/usr/sbin:/sbin has_command mkfs.xfs || lacks "mkfs.xfs, to test on xfs" xfsprogs
        PATH=$PATH:/usr/sbin:/sbin has_command mkfs.btrfs || lacks "mkfs.btrfs, to test on btrfs" btrfs-progs
    fi
    # Programs that volumes are tested with; cryptsetup brings the library that reads their headers.
    PATH=$PATH:/usr/sbin:/sbin has_command cryptsetup || lacks "cryptsetup, to test LUKS volumes with" cryptsetup-bin
    has_command qemu-img && has_command qemu-io || lacks "qemu-img and qemu-io, to test volumes with" qemu-utils
    PATH=$PATH:/usr/sbin:/sbin has_command nbdkit || lacks "nbdkit, which serves volumes by NBD" nbdkit
    [ -e /usr/include/nbdkit-plugin.h ] || lacks "nbdkit's header, which its plugin is compared with" nbdkit-plugin-dev
    has_command nbdcopy || lacks "nbdcopy, a client of NBD" libnbd-bin
    # Routers between network namespaces, and what goes through them.
    PATH=$PATH:/usr/sbin:/sbin has_command ip || lacks "ip, which makes network namespaces and devices" iproute2
    has_command ping || lacks "ping, which is sent through routers" iputils-ping
    PATH=$PATH:/usr/sbin:/sbin has_command traceroute || lacks "traceroute, which is sent through routers" traceroute
    has_command curl || lacks "curl, which fetches through routers" curl
    PATH=$PATH:/usr/sbin:/sbin has_command tcpdump || lacks "tcpdump, which reads captures of ours" tcpdump
    has_command fio || lacks "fio, which verifies what it writes" fio
    has_command fusermount3 || lacks "fusermount3, which mounts volumes and encrypted directories" fuse3
    PATH=$PATH:/usr/sbin:/sbin has_command tcpdump || lacks "tcpdump, to read capture files that ours wrote" tcpdump
    has_command gocryptfs || lacks "gocryptfs, to read what ours wrote and the other way round" gocryptfs
    if ! has_command python3; then
        lacks "python3 with pip, which runs the tests of the Python package" python3 python3-pip
    elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        lacks "Python 3.11 or newer as python3, for the Python package"
    elif ! has_python_tools && ! python3 -m pip --version >/dev/null 2>&1; then
        lacks "pip for python3, which fetches the tools of the Python tests" python3-pip
    elif ! has_nvrtc && [ ! -d "$(nvrtc_cache)" ] && ! python3 -m pip --version >/dev/null 2>&1; then
        lacks "pip for python3, which fetches the NVRTC compiler" python3-pip
    fi
}

install_packages() {
    echo "set-up: installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # A stale or unreachable index may still serve; what counts is what is there afterwards.
    apt-get update -qq >/dev/null || echo "set-up: apt-get update failed, trying with the index at hand" >&2
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null || true
}

give_up() {
    {
        echo "set-up: this machine lacks:"
        printf '  - %s\n' "${missing[@]}"
        if [ ${#packages[@]} -gt 0 ]; then
            echo "Install it with this command (Debian, Ubuntu; elsewhere the packages with these programs):"
            echo "  sudo apt-get update && sudo apt-get install -y ${packages[*]}"
        fi
    } >&2
    exit 1
}

look_for() {
    missing=()
    packages=()
    "look_for_$1"
}

need_cargo() {
    if ! has_command cargo && [ -x "${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}/bin/cargo" ]; then
        echo "set-up: cargo is installed but not on the path; run: . \"${CARGO_HOME:-\$HOME/.cargo}/env\"" >&2
        exit 1
    fi
    if ! has_command cargo; then
        echo "set-up: cargo is missing. Install Rust $(rust_version) or newer with rustup (https://rustup.rs)," >&2
        echo "then run this again." >&2
        exit 1
    fi
}

rust_version() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }

# Kept outside the clone, so that a fresh clone does not download again.
nvrtc_cache() {
    echo "${BIFOLIO_BUILD_CACHE:-${HOME:-/nonexistent}/.cache/bifolio-build}/nvrtc-$NVRTC_VERSION-$(uname -m)"
}

fetch_nvrtc() {
    has_nvrtc && return
    local cache
    cache=$(nvrtc_cache)
    mkdir -p build
    rm -rf "$NVRTC_FOLDER"
    if [ ! -d "$cache" ]; then
        mkdir -p "$(dirname "$cache")" 2>/dev/null && [ -w "$(dirname "$cache")" ] || cache=$PWD/$NVRTC_FOLDER
        work=$(mktemp -d "$(dirname "$cache")/nvrtc.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        echo "set-up: fetching the NVRTC compiler $NVRTC_VERSION"
        if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            -d "$work" "nvidia-cuda-nvrtc==$NVRTC_VERSION"; then
            echo "set-up: the NVRTC compiler could not be fetched. Without a network, name the library of a CUDA" >&2
            echo "toolkit in BIFOLIO_NVRTC_LIBRARY." >&2
            exit 1
        fi
        python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' \
            "$work"/*.whl "$work/unpacked"
        # Renamed as a whole: an interrupted set-up leaves nothing that looks complete.
        chmod 755 "$work/unpacked"
        mv -T "$work/unpacked" "$cache"
    fi
    [ "$cache" = "$PWD/$NVRTC_FOLDER" ] || ln -sfn "$cache" "$NVRTC_FOLDER"
    has_nvrtc || { echo "set-up: $cache holds no libnvrtc; remove it and run this again" >&2; exit 1; }
}

# By the interpreter and by what is asked for: a change of either makes another folder.
python_tools_cache() {
    local key
    key=$({ python3 -VV && cat "$PYTHON_REQUIREMENTS"; } | cksum | cut -d ' ' -f 1)
    echo "${BIFOLIO_BUILD_CACHE:-${HOME:-/nonexistent}/.cache/bifolio-build}/python-$key"
}

has_python_tools() {
    [ "$(readlink -f "$PYTHON_TOOLS")" = "$(readlink -f "$(python_tools_cache)")" ] &&
        "$PYTHON_TOOLS/bin/python" -c 'import pytest, maturin' 2>/dev/null
}

# An environment with the tools of the Python tests; the package under test is installed elsewhere, so that
# clones can share it. It is made without a pip of its own, which on Debian would be one more package.
fetch_python_tools() {
    has_python_tools && return
    local cache
    cache=$(python_tools_cache)
    mkdir -p build
    rm -rf "$PYTHON_TOOLS"
    if ! mkdir -p "$(dirname "$cache")" 2>/dev/null || [ ! -w "$(dirname "$cache")" ]; then
        cache=$PWD/$PYTHON_TOOLS
    fi
    if ! "$cache/bin/python" -c 'import pytest, maturin' 2>/dev/null; then
        [ -z "$work" ] || rm -rf "$work"
        work=$(mktemp -d "$(dirname "$cache")/python.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        echo "set-up: fetching the tools of the Python tests"
        python3 -m venv --without-pip "$work/tools"
        if ! python3 -m pip --python "$work/tools/bin/python" install --quiet --disable-pip-version-check \
            --no-input --only-binary=:all: -r "$PYTHON_REQUIREMENTS"; then
            echo "set-up: the tools in $PYTHON_REQUIREMENTS could not be fetched; they come from the Python package" >&2
            echo "index, or from one that PIP_INDEX_URL names." >&2
            exit 1
        fi
        # Renamed as a whole; another set-up may have been quicker.
        rm -rf "$cache"
        mv -T "$work/tools" "$cache"
    fi
    [ "$cache" = "$PWD/$PYTHON_TOOLS" ] || ln -sfn "$cache" "$PYTHON_TOOLS"
    has_python_tools || { echo "set-up: $cache lacks pytest or maturin; remove it and run this again" >&2; exit 1; }
}

case "${1:-}" in
    demo | test) purpose=$1 ;;
    *) echo "usage: scripts/setup.sh demo|test" >&2; exit 2 ;;
esac

look_for "$purpose"
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && has_command apt-get; then
    install_packages
    look_for "$purpose"
fi
[ ${#missing[@]} -eq 0 ] || give_up
need_cargo
if [ "$purpose" = test ]; then
    fetch_nvrtc
    fetch_python_tools
fi
