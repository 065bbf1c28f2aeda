#!/usr/bin/env bash
# Installs the command, the C library with its header and pkg-config file, the library to preload, nbdkit's plugin
# for volumes, and the library for cuFile programs. That has the name of NVIDIA's, and lies in a folder of its own
# so that only programs that are given the folder find it.
#
#   scripts/install.sh PREFIX     DESTDIR, where set, is put before it
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${1:?usage: scripts/install.sh PREFIX}
built=${CARGO_TARGET_DIR:-target}/release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
to=${DESTDIR:-}$prefix

install -d "$to/bin" "$to/lib/pkgconfig" "$to/include"
install -m 755 "$built/bifolio" "$to/bin/bifolio"
install -m 755 "$built/libbifolio.so" "$to/lib/libbifolio.so.$version"
ln -sf "libbifolio.so.$version" "$to/lib/libbifolio.so.0"
ln -sf libbifolio.so.0 "$to/lib/libbifolio.so"
install -m 755 "$built/libbifolio_preload.so" "$to/lib/libbifolio_preload.so"
install -d "$to/lib/bifolio/cufile"
install -m 755 "$built/libcufile.so" "$to/lib/bifolio/cufile/libcufile.so.0"
install -m 755 "$built/libbifolio_nbdkit.so" "$to/lib/bifolio/nbdkit-bifolio-plugin.so"
install -m 644 crates/capi/include/bifolio.h "$to/include/bifolio.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" crates/capi/bifolio.pc.in >"$to/lib/pkgconfig/bifolio.pc"
chmod 644 "$to/lib/pkgconfig/bifolio.pc"
echo "installed into $to: bin/bifolio, lib/libbifolio.so, include/bifolio.h, lib/pkgconfig/bifolio.pc,"
echo "  lib/libbifolio_preload.so, lib/bifolio/cufile/libcufile.so.0, lib/bifolio/nbdkit-bifolio-plugin.so"
