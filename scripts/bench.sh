#!/usr/bin/env bash
# Measures every engine in every cache state on one large file, and over request sizes, and writes
# the results: tables, and HTML reports with plots. About eight minutes on a disk of 3 GB/s.
#
#   scripts/bench.sh OUT [FOLDER [GiB]]
#
# OUT receives the results; the test file (8 GiB of incompressible data) is made in FOLDER (default:
# build/) and removed. BIFOLIO names the binary, BIFOLIO_DEVICE the device.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: scripts/bench.sh OUT [FOLDER [GiB]]}
folder=${2:-build}
gib=${3:-8}
bifolio=${BIFOLIO:-${CARGO_TARGET_DIR:-target}/release/bifolio}
mkdir -p "$out" "$folder"
file=$folder/bench-${gib}G.bin
trap 'rm -f "$file"' EXIT
head -c "${gib}G" /dev/urandom >"$file"
sync "$file"

"$bifolio" bench read "$file" --repetitions 5 --html "$out/states.html" | tee "$out/states.txt"
# A registration for every short request would measure nothing else: mapped is measured again.
sizes() { # sizes NAME LIMIT SIZES
    "$bifolio" bench read "$file" --repetitions 5 --states warm,cold,half --engines cached,direct,auto \
        --sizes "$3" --limit "$2" --html "$out/$1.html" | tee "$out/$1.txt"
    "$bifolio" bench read "$file" --repetitions 5 --states again --engines cached,mapped,auto \
        --sizes "$3" --limit "$2" | tee "$out/$1-again.txt"
}
sizes short 64M 4K,16K,64K,256K,1M
sizes long 1G 4M,16M,64M,256M,1G
BIFOLIO_CACHE_DIR=$out/cache "$bifolio" calibrate "$folder" | tee "$out/calibrate.txt"
