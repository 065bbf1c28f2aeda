#!/usr/bin/env bash
# Measures a mount beside its source, and beside other FUSE file systems that pass calls on: reads and writes by fio, names
# and attributes, and, with a daemon, files that a device holds. Ways take turns within a repetition. About six minutes.
#
#   scripts/bench-mount.sh [FOLDER]
#
# FOLDER is where the source and the mount points are made (/var/tmp by default); it takes 1.5 GiB. Rivals are bindfs, and
# passthrough_ll, an example of libfuse that is compiled where gcc and libfuse3-dev are installed; what is missing is said
# and left out. PARTS says what is measured (data names shared), DEVICE on which device (host), REPETITIONS how often
# (3), MS_A_CELL how many ms fio takes for a figure (500). BIFOLIO names the command, MOUNT_RATES the mount's example of
# that name.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}/release
bifolio=$(realpath "${BIFOLIO:-$target/bifolio}")
rates=$(realpath "${MOUNT_RATES:-$target/examples/mount_rates}")
parts=" ${PARTS:-data names shared} "
repetitions=${REPETITIONS:-3}
[ "$(id -u)" = 0 ] || { echo "files are passed for root alone" >&2; exit 1; }

work=$(mktemp -d -p "${1:-/var/tmp}" bifolio-bench-XXXXXX)
mkdir "$work/source" "$work/passed" "$work/served"
daemon=
end() {
    for place in bindfs passthrough_ll; do ! mountpoint -q "$work/$place" || umount "$work/$place"; done
    for place in passed served; do ! mountpoint -q "$work/$place" || "$bifolio" unmount "$work/$place"; done
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon" || true; }
    rm -rf --one-file-system "$work"
}
trap end EXIT

echo "$(uname -r), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(stat -f -c %T "$work"), load $(cut -d' ' -f1-3 /proc/loadavg)"
"$bifolio" mount --socket "$work/socket" "$work/source" "$work/passed" > "$work/said" 2>&1
"$bifolio" mount --socket "$work/socket" --serve-all "$work/source" "$work/served" >> "$work/said" 2>&1
places="source passed served"
if command -v bindfs > /dev/null; then
    mkdir "$work/bindfs"
    bindfs "$work/source" "$work/bindfs"
    places+=" bindfs"
else
    echo "left out: bindfs is not installed"
fi
example=/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c
if [ -r $example ] && command -v gcc > /dev/null; then
    gcc -O2 -w -o "$work/passthrough" $example $(pkg-config --cflags --libs fuse3)
    mkdir "$work/passthrough_ll"
    "$work/passthrough" -o source="$work/source",cache=auto "$work/passthrough_ll"
    places+=" passthrough_ll"
else
    echo "left out: passthrough_ll, as libfuse3-dev or gcc is not installed"
fi

# Medians of the lines "KEY PLACE NUMBER", a row for each key, the order of keys as they came first, and the ratios to a place.
table() {
    python3 - "$1" $places << 'PROGRAM'
import statistics, sys
places, cells = sys.argv[2:], {}
for line in open(sys.argv[1]):
    key, place, number = line.rsplit(" ", 2)
    cells.setdefault(key, {}).setdefault(place, []).append(float(number))
print("| | " + " | ".join(places) + " | passed / source, each repetition |\n|" + "---|" * (len(places) + 2))
for key, row in cells.items():
    ratios = [a / b for a, b in zip(row["passed"], row["source"])]
    middle = " | ".join(f"{statistics.median(row[place]):.1f}" for place in places)
    print(f"| {key} | {middle} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) |")
PROGRAM
}

if [[ $parts = *" data "* ]]; then
    echo "MB/s, medians of $repetitions, warm page cache"
    head -c 256M /dev/urandom > "$work/source/data"
    sync "$work/source/data"
    for repetition in $(seq "$repetitions"); do
        for way in read randread write randwrite; do
            for size in 4k 64k 1m; do
                for threads in 1 8; do
                    for place in source passed ${ALL_PLACES:+served bindfs}; do
                        fio --name=cell --filename="$work/$place/data" --size=256m --ioengine=psync --rw=$way --bs=$size \
                            --thread --numjobs=$threads --group_reporting --time_based --runtime="${MS_A_CELL:-500}ms" \
                            --randseed=$((7 + repetition)) --norandommap --fadvise_hint=0 --invalidate=0 --output-format=json |
                            python3 -c "import json,sys; job=json.load(sys.stdin)['jobs'][0]; print('$way $size, $threads thread(s)', '$place', (job['read']['bw_bytes']+job['write']['bw_bytes'])/1e6)" >> "$work/data"
                    done
                done
            done
        done
    done
    rm "$work/source/data"
    (places="source passed ${ALL_PLACES:+served bindfs}"; table "$work/data")
fi

if [[ $parts = *" names "* ]]; then
    echo "milliseconds, medians of $repetitions: 2,000 files of up to 9.6 KB in 40 folders, and 2,000 new ones of 100 bytes"
    mkdir "$work/tree"
    python3 - "$work/tree" << 'PROGRAM'
import os, random, sys
random.seed(7)
for number in range(2000):
    folder = f"{sys.argv[1]}/{number // 50}"
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/{number}", "wb").write(random.randbytes(random.randrange(9600)))
PROGRAM
    tar -C "$work" -cf "$work/tree.tar" tree
    timed() { # timed KEY COMMAND...
        local begun=$EPOCHREALTIME
        "${@:2}" > "$work/output" 2>&1
        echo "$1 $place $(python3 -c "print(($EPOCHREALTIME - $begun) * 1000)")" >> "$work/names"
    }
    small() { python3 -c "
for number in range(2000):
    with open(f'{number}', 'wb') as file: file.write(b'x' * 100)"; }
    for repetition in $(seq "$repetitions"); do
        for place in $places; do
            mkdir "$work/$place/work"
            cd "$work/$place/work"
            timed untar tar -xf "$work/tree.tar"
            cd tree
            git init -q
            timed "git add" git -c core.fsync=none -c safe.directory='*' add .
            sleep 1.2
            timed "git status" git -c safe.directory='*' status
            mkdir new
            cd new
            timed create small
            cd "$work"
            timed rm rm -r "$work/$place/work"
            cd - > /dev/null 2>&1 || cd "$work"
        done
    done
    table "$work/names"
    cd "$work"
fi

if [[ $parts = *" shared "* ]]; then
    "$bifolio" daemon --device "${DEVICE:-host}" --socket "$work/socket" > "$work/daemon" 2>&1 &
    daemon=$!
    for _ in $(seq 100); do [ ! -S "$work/socket" ] || break; sleep 0.1; done
    sleep 2.5 # The mount looks for a daemon every second.
    "$rates" "$work/socket" "$work/source" "$work/passed" "${MIB:-256}" "$repetitions"
fi
