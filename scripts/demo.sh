#!/usr/bin/env bash
# Shows what Bifolio does on this machine: the devices, one explained and verified read, and the
# same read by every engine. Argument: a file; without one a sample is made.
set -euo pipefail
cd "$(dirname "$0")/.."

# The command alone, without volumes and their ciphers, in a profile that is quick to build.
bifolio=${CARGO_TARGET_DIR:-target}/demo/bifolio
file=$(scripts/sample.sh "${1:-}")

show() {
    echo
    echo "\$ bifolio $*"
    "$bifolio" "$@"
}

show devices
show read "$file" --explain --sha256 --verify
show bench read "$file"
