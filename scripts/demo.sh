#!/usr/bin/env bash
# Shows what Bifolio does on this machine: the devices, one explained and verified read, and the
# same read by every engine. Argument: a file; without one a sample is made.
set -euo pipefail
cd "$(dirname "$0")/.."

bifolio=${CARGO_TARGET_DIR:-target}/release/bifolio
file=$(scripts/sample.sh "${1:-}")

show() {
    echo
    echo "\$ bifolio $*"
    "$bifolio" "$@"
}

show devices
show read "$file" --explain --sha256 --verify
show bench read "$file"
