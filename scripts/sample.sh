#!/usr/bin/env bash
# Prints the path of the file to read: the one that is named, else a sample of 512 MiB of random
# bytes in build/, made on first use. Random, so that no layer below can compress or share it.
set -euo pipefail
cd "$(dirname "$0")/.."

SAMPLE=build/sample-512M.bin
SAMPLE_BYTES=$((512 << 20))

if [ -n "${1:-}" ]; then
    [ -r "$1" ] || { echo "$1 is not a file that can be read" >&2; exit 1; }
    echo "$1"
    exit
fi
if [ "$(stat -c %s "$SAMPLE" 2>/dev/null || echo 0)" != "$SAMPLE_BYTES" ]; then
    mkdir -p build
    echo "making a sample file, $SAMPLE" >&2
    head -c "$SAMPLE_BYTES" /dev/urandom >"$SAMPLE.part"
    mv "$SAMPLE.part" "$SAMPLE"
fi
echo "$SAMPLE"
