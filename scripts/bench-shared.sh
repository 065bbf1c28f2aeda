#!/usr/bin/env bash
# Measures one cache for all processes on a machine with several GPUs: where a process's threads run, ranks that load one
# checkpoint together, many processes that attach at once, the tests that use two GPUs, and the examples of the GAIA paper for two.
#
#   scripts/bench-shared.sh OUT FOLDER
#
# Some eight minutes on two H200. OUT receives tables, JSON and logs; the test files are made in FOLDER, on the disk that is to
# be measured, and removed. DEVICES are the devices (cuda:0,cuda:1), GIB the size of the files (8), PROCESSES how many attach
# at once (10), PARTS what to do and in which order (machine ranks rates frames placement tests gaia calibrate). BIFOLIO names
# the command, SHARED_RATES the daemon's example of that name, PYTHON an interpreter that has the package `bifolio` and
# PyTorch, and, to be measured beside it, safetensors, fastsafetensors and instanttensor. TESTS is a folder with the test
# programs of the daemon (daemon-it), the cache (cache-it), the devices (device-it) and routers (io-it), as cargo builds
# them; without it none are run.
set -uo pipefail
cd "$(dirname "$0")/.."

[ $# = 2 ] && [ "${1#-}" = "$1" ] || { echo "usage: scripts/bench-shared.sh OUT FOLDER" >&2; exit 2; }
out=$1
folder=$2
target=${CARGO_TARGET_DIR:-target}/release
bifolio=${BIFOLIO:-$target/bifolio}
shared_rates=${SHARED_RATES:-$target/examples/shared_rates}
python=${PYTHON:-python3}
devices=${DEVICES:-cuda:0,cuda:1}
gib=${GIB:-8}
parts=" ${PARTS:-machine ranks rates frames placement tests gaia calibrate} "
mkdir -p "$out" "$folder"
folder=$(cd "$folder" && pwd)
out=$(cd "$out" && pwd)
begun=$SECONDS
failed=0

say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - begun)); }
run() { # run NAME COMMAND... : its failure is noted, and the rest goes on
    "${@:2}" || { echo "FAILED: $1"; failed=1; }
}

describe() {
    uname -r
    grep -m1 'model name' /proc/cpuinfo
    echo "$(nproc) processors; $(grep MemTotal /proc/meminfo)"
    for node in /sys/devices/system/node/node[0-9]*; do
        echo "${node##*/}: processors $(cat "$node/cpulist"), $(grep MemTotal "$node/meminfo" | tr -s ' ' | cut -d ' ' -f 4-)"
    done
    lscpu | grep -iE 'socket|numa|L3|thread' || true
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id,pcie.link.gen.current,pcie.link.width.current,memory.total --format=csv
        nvidia-smi topo -m
        for bus in $(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | tr 'A-F' 'a-f' | sed 's/^0000//'); do
            echo "GPU $bus: node $(cat "/sys/bus/pci/devices/$bus/numa_node" 2>/dev/null), processors $(cat "/sys/bus/pci/devices/$bus/local_cpulist" 2>/dev/null)"
        done
    fi
    df -h "$folder"
    "$bifolio" devices
}

# Processors by nodes; where the machine tells of one alone, its halves.
groups() {
    local nodes=(/sys/devices/system/node/node[0-9]*)
    if [ ${#nodes[@]} -gt 1 ]; then
        cat /sys/devices/system/node/node[0-9]*/cpulist
    else
        local count
        count=$(nproc)
        echo "0-$((count / 2 - 1))"
        echo "$((count / 2))-$((count - 1))"
    fi
}

# How fast threads get a file out of the page cache, to where no device is: what every warm read is bounded by.
page_cache_rates() { # page_cache_rates FILE THREADS...
    "$python" - "$@" <<'PYTHON'
import mmap, os, sys, threading, time
path, counts = sys.argv[1], [int(word) for word in sys.argv[2:]]
file, size, piece = os.open(path, os.O_RDONLY), os.path.getsize(path), 4 << 20
for count in counts:
    # One thread has a part, as it takes long.
    total = size if count > 1 else min(size, 2 << 30)
    best = 0.0
    for _ in range(3):
        buffers = [mmap.mmap(-1, piece) for _ in range(count)]
        for buffer in buffers:
            buffer.write(b"x" * piece)
        def work(number):
            for at in range(number * piece, total, count * piece):
                os.preadv(file, [buffers[number]], at)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        begun = time.perf_counter()
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        best = max(best, total / (time.perf_counter() - begun) / 1e9)
    print(f"  {count:2} threads {best:6.1f} GB/s")
PYTHON
}

read_rates() { # read_rates DEVICE OPTION... : one process that reads all of the file again and again
    "$bifolio" --device "$1" bench read "$file" --states warm --limit "${gib}G" --repetitions 5 "${@:2}" |
        awk '$1 == "warm" { printf "  %-8s best %6.1f GB/s, median %6.1f, CPU %s s/GB\n", $5, $6, $7, $8 }'
}

on() { # on PROCESSORS FUNCTION ARGUMENT... : one of the two above, on some processors
    echo "processors $1: ${*:2}"
    bifolio=$bifolio file=$file gib=$gib python=$python taskset -c "$1" bash -c "$(declare -f "$2"); ${*:2}"
}

write() { # write PROCESSORS : random bytes, by those; memory comes from where it is first used
    rm -f "$file"
    taskset -c "$1" "$python" -c '
import os, random, sys
block = random.Random(os.urandom(8)).randbytes(64 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    for number in range(int(sys.argv[2]) * 16):
        turn = number * 4099 % len(block)
        file.write(block[turn:]), file.write(block[:turn])
' "$file" "$gib"
}

placement() {
    local all lists list device first=${devices%%,*}
    file=$folder/placement.bin
    all="0-$(($(nproc) - 1))"
    mapfile -t lists < <(groups)
    write "${lists[0]}"
    echo "# of a file that processors ${lists[0]} have written"
    for list in "$all" "${lists[@]}"; do on "$list" page_cache_rates "$file" 1 8 16 24; done
    for device in ${devices//,/ }; do
        echo; echo "$device, reads of one process by the defaults, from the first on:"
        "$bifolio" --device "$device" read "$file" --explain --repeat 5 --verify | sed 's/^/  /'
        echo "$device, by default and every engine:"
        read_rates "$device"
        for threads in ${THREADS:-8 12 16 24}; do on "$all" read_rates "$device" --engines cached --pool 256M --threads "$threads"; done
        for list in "${lists[@]}"; do
            for threads in ${THREADS_PINNED:-8 16}; do
                on "$list" read_rates "$device" --engines cached --pool 256M --threads "$threads"
            done
        done
    done
    echo; echo "# of one that processors ${lists[1]} have written"
    write "${lists[1]}"
    for list in "${lists[@]}"; do on "$list" page_cache_rates "$file" 8; done
    for list in "$all" "${lists[@]}"; do on "$list" read_rates "$first" --engines cached --pool 256M --threads 12; done
    case $devices in *,*) "$bifolio" --device "$devices" bench spread "$file" --repetitions 5 ;; esac
    rm -f "$file"
}

calibrate() {
    # What --explain says of a machine that was measured.
    local device=${devices%%,*} file=$folder/calibrated.bin
    export BIFOLIO_CACHE_DIR=$folder/profiles
    "$bifolio" --device "$device" calibrate "$folder"
    head -c 1G /dev/urandom >"$file"
    "$bifolio" --device "$device" read "$file" --explain --repeat 2
    rm -rf "$file" "$BIFOLIO_CACHE_DIR"
}

ranks() {
    # Arrays of the host are on one device.
    "$python" bench/compare/ranks.py --folder "$folder" --size "$((gib << 30))" --devices "${devices//host:?/host:0}" \
        --repetitions "${REPETITIONS:-warm=2,cold=1}" --time-limit "${RANKS_SECONDS:-150}" \
        --out "$out/ranks.md" --json "$out/ranks.json"
}

tests() {
    local log=$out/tests.txt
    : >"$log"
    [ -n "${TESTS:-}" ] || { echo "no TESTS: none are run"; return 0; }
    export BIFOLIO_TEST_SKIPS=$folder/skips BIFOLIO_OPENCL_LIBRARY=/nonexistent
    : >"$BIFOLIO_TEST_SKIPS"
    suite() { # suite PROGRAM OPTION...
        local status=0
        echo "# $*"
        (cd "$folder" && RUST_BACKTRACE=1 timeout "${SUITE_SECONDS:-180}" "$TESTS/$1" "${@:2}") >"$folder/suite.txt" 2>&1 || status=$?
        cat "$folder/suite.txt" >>"$log"
        grep -E '^test result|FAILED|panicked|^error|signal' "$folder/suite.txt" ||
            echo "it ended with $status after $(grep -c '\.\.\. ok$' "$folder/suite.txt") tests that passed, without a result"
        return $status
    }
    local status=0
    suite device-it cuda || status=1
    suite io-it cuda spread:: || status=1
    BIFOLIO_TEST_DEVICES=$devices suite daemon-it --test-threads 8 ${DAEMON_TESTS:-shared:: versions:: kept:: reclaim::} || status=1
    BIFOLIO_STRESS_SECONDS=${STRESS_SECONDS:-5} suite cache-it --test-threads 16 || status=1
    echo "skipped:"
    cut -f 3 "$BIFOLIO_TEST_SKIPS" | sort | uniq -c
    rm -f "$BIFOLIO_TEST_SKIPS" "$folder/suite.txt"
    return $status
}

# What attaching costs for a frame, and for a byte.
frames() {
    local frame
    rm -f "$out/frames.json"
    for frame in ${FRAMES:-2 32 256}; do
        "$shared_rates" "$folder" $((gib << 30)) "$devices" "${PROCESSES:-10}" $((frame << 20)) brief >"$folder/frames.json" || return
        cat "$folder/frames.json" >>"$out/frames.json"
        "$python" - "$folder/frames.json" <<'PYTHON'
import json, sys
said = json.load(open(sys.argv[1]))
for what in ("processes one after the other", "processes at once"):
    times = [round(process["attached_s"] * 1e3, 1) for process in said[what]]
    print(f"frames of {said['frame_bytes'] >> 20} MiB, {what}: {times} ms")
PYTHON
        rm "$folder/frames.json"
    done
}

rates() {
    "$shared_rates" "$folder" $((gib << 30)) "$devices" "${PROCESSES:-10}" >"$out/rates.json" || return
    cat "$out/rates.json"
}

gaia() {
    local first=${devices%%,*} second=${devices##*,} status=0
    example() {
        echo "# $1 ${*:2}"
        timeout "${EXAMPLE_SECONDS:-60}" "$python" "examples/gaia/$1.py" --folder "$folder" --device "$first" --other "$second" "${@:2}" || status=1
    }
    case $first in
    cuda:*)
        example false_sharing --sizes 64K,64M --times 1,16,256 --repetitions 2
        example stitching --width 8192 --height 8192 --runs 1,8 --repetitions 2
        example kmeans --points 400000 --dimensions 4 --rounds 5 --share 1 --repetitions 2
        ;;
    *)
        example false_sharing
        example stitching
        example kmeans
        ;;
    esac
    return $status
}

{
    for part in $parts; do
        say "$part"
        case $part in
        machine) run machine describe ;;
        ranks | rates | frames | placement | tests | gaia | calibrate) run "$part" "$part" ;;
        *) echo "there is no part $part"; failed=1 ;;
        esac
    done
    echo "$((SECONDS - begun)) s in all"
    # What the last command returns is the block's.
    [ "$failed" = 0 ]
} 2>&1 | tee "$out/log.txt"
exit "${PIPESTATUS[0]}"
