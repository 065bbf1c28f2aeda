#!/usr/bin/env bash
# Measures the paging cache on this machine, as root: fio's jobs on its disk, beside the same jobs on a plain file of the same
# file system. Arguments: a folder on the disk, and what `swap on` is given besides.
# LAYERS=1 measures what lies in between as well: the file that FUSE serves without its loop device, and a loop device on the
# plain file. Everything that it makes goes away again.
set -euo pipefail
usage="usage: scripts/bench-paging.sh FOLDER [OPTION OF swap on]...; FOLDER is on the disk that is compared with"
[ -d "${1:-}" ] || { echo "$usage" >&2; exit 2; }
folder=$(realpath -- "$1")
shift
bifolio=${BIFOLIO:-bifolio}
for command in "$bifolio" fio losetup python3; do
    command -v "$command" >/dev/null || { echo "$command is missing: install it, or name the command by BIFOLIO" >&2; exit 2; }
done
size=${SIZE:-1G}
jobs=$(dirname "$(realpath "$0")")/../bench/compare/paging.fio
export BIFOLIO_RUN_DIR=$folder/.bifolio-run

clean() {
    [ -z "${plain_disk:-}" ] || losetup --detach "$plain_disk" 2>/dev/null || true
    "$bifolio" swap off --force >/dev/null 2>&1 || true
    rm -rf "$BIFOLIO_RUN_DIR" "$folder/.bifolio-plain"
}
trap clean EXIT

# A line for each job: reads a second, MB/s, and the percentiles of fio.
measure() {
    echo "== $1"
    fio --filename="$2" --size="$size" --output-format=json "$jobs" | python3 -c '
import json, sys
for job in json.load(sys.stdin)["jobs"]:
    side = job["read"] if job["read"]["io_bytes"] else job["write"]
    times = side["clat_ns"].get("percentile", {})
    p50, p99 = (times.get(share, 0) / 1000 for share in ("50.000000", "99.000000"))
    name, iops, mb = job["jobname"], side["iops"], side["bw_bytes"] / 1e6
    print(f"{name:24} {iops:9.0f}/s {mb:8.1f} MB/s   p50 {p50:7.1f} us   p99 {p99:8.1f} us")
'
}

"$bifolio" swap on --disk-only --backing "$folder/.bifolio-backing" --size "$size" --device-memory "$size" --leave-free 0 "$@"
disk=$("$bifolio" swap status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["disk"])')
measure "paging cache ($disk)" "$disk"
served=$BIFOLIO_RUN_DIR/swap/0/disk
if [ -n "${LAYERS:-}" ] && [ -s "$served" ]; then
    measure "the file that FUSE serves, without its loop device" "$served"
fi
"$bifolio" swap status
"$bifolio" swap off
measure "a file on the same disk" "$folder/.bifolio-plain"
if [ -n "${LAYERS:-}" ]; then
    plain_disk=$(losetup --find --show --direct-io=on --sector-size 4096 "$folder/.bifolio-plain")
    measure "a loop device on that file" "$plain_disk"
fi
rm -f "$folder/.bifolio-plain"
