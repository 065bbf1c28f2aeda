#!/usr/bin/env bash
# Shows what Bifolio does on this machine: the devices, what its paths cost, one explained and verified read, and the
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
# Predictions are as good as what is known of the machine; some seconds. A folder that may not be written is not measured.
show calibrate "$(dirname "$file")" || true
show read "$file" --explain --sha256 --verify
show bench read "$file"
