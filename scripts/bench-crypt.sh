#!/usr/bin/env bash
# Measures `bifolio crypt mount` beside gocryptfs: one file of random bytes, written and read sequentially in
# requests of 1 MiB through each mount, on a file system in memory, in turns.
#
#   scripts/bench-crypt.sh [OUT.md]     prints the table; with OUT.md also into that file
#
# REPETITIONS (7), SIZE_MIB (1024) and FOLDER (/dev/shm) can be set. Every run mounts anew, so that nothing of a
# file is cached by the kernel, and what was read is compared once for each. CPU seconds are those of dd and of the
# process that serves the mount, together: they tell more than rates where other programs share the processors.
set -euo pipefail
cd "$(dirname "$0")/.."

repetitions=${REPETITIONS:-7}
size_mib=${SIZE_MIB:-1024}
out=${1:-}

for tool in gocryptfs fusermount3 dd; do
    command -v "$tool" >/dev/null || { echo "bench-crypt: $tool is missing" >&2; exit 1; }
done
${CARGO:-cargo} build --quiet --release -p bifolio-cli
bifolio=$(realpath "${CARGO_TARGET_DIR:-target}/release/bifolio")
work=$(mktemp -d "${FOLDER:-/dev/shm}/bench-crypt.XXXXXX")
server=

stop() {
    mountpoint -q "$work/mount" && umount "$work/mount" 2>/dev/null || fusermount3 -uq "$work/mount" || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    server=
}
trap 'stop; rm -rf "$work"' EXIT

mkdir "$work/mount" "$work/gocryptfs" "$work/bifolio"
echo secret >"$work/passphrase"
gocryptfs -q -init -scryptn 10 -passfile "$work/passphrase" "$work/gocryptfs"
"$bifolio" crypt init --scryptn 10 --passfile "$work/passphrase" "$work/bifolio" >/dev/null
head -c "${size_mib}M" /dev/urandom >"$work/random"

start() { # start PROGRAM
    case $1 in
        gocryptfs) gocryptfs -q -fg -nosyslog -passfile "$work/passphrase" "$work/gocryptfs" "$work/mount" & ;;
        bifolio) "$bifolio" crypt mount --fg --passfile "$work/passphrase" "$work/bifolio" "$work/mount" & ;;
    esac
    server=$!
    for _ in $(seq 500); do
        mountpoint -q "$work/mount" && return
        sleep 0.01
    done
    echo "bench-crypt: $1 was not mounted within 5 s" >&2
    exit 1
}

server_seconds() { awk -v tick="$(getconf CLK_TCK)" '{ print ($14 + $15) / tick }' "/proc/$server/stat"; }

measure() { # measure PROGRAM PHASE dd-arguments...: one line for the table
    local program=$1 phase=$2 before after time
    shift 2
    before=$(server_seconds)
    time=$(TIMEFORMAT='%R %U %S'; { time dd "$@" bs=1M status=none; } 2>&1)
    after=$(server_seconds)
    echo "$program $phase $time $before $after" >>"$work/runs"
}

for run in $(seq "$repetitions"); do
    for program in gocryptfs bifolio; do
        start "$program"
        measure "$program" write if="$work/random" of="$work/mount/file" conv=fsync
        stop
        start "$program"
        measure "$program" read if="$work/mount/file" of=/dev/null
        [ "$run" != 1 ] || cmp "$work/mount/file" "$work/random"
        rm "$work/mount/file"
        stop
    done
done

# GB/s: best, median, worst; CPU seconds a GB: median.
table() {
    python3 - "$work/runs" "$size_mib" <<'PYTHON'
import statistics, sys
runs, bytes_ = {}, int(sys.argv[2]) << 20
for line in open(sys.argv[1]):
    program, phase, *numbers = line.split()
    wall, user, system, before, after = map(float, numbers)
    runs.setdefault((phase, program), []).append((bytes_ / wall / 1e9, (user + system + after - before) / bytes_ * 1e9))
print("| | program | best GB/s | median GB/s | worst GB/s | CPU s/GB |")
print("|---|---|---|---|---|---|")
for phase in ("write", "read"):
    for program in ("gocryptfs", "bifolio"):
        rates, cpu = zip(*runs[phase, program])
        print(f"| {phase} | {program} | {max(rates):.2f} | {statistics.median(rates):.2f} | {min(rates):.2f} | {statistics.median(cpu):.2f} |")
for phase in ("write", "read"):
    rate = lambda program: statistics.median(rate for rate, _ in runs[phase, program])
    pairs = [ours[0] / theirs[0] for ours, theirs in zip(runs[phase, "bifolio"], runs[phase, "gocryptfs"])]
    print(f"\n{phase}: {rate('bifolio') / rate('gocryptfs'):.2f} times gocryptfs's median; run by run {', '.join(f'{pair:.2f}' for pair in pairs)}")
PYTHON
}
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
{
    echo "$processor, $(nproc) processors, Linux $(uname -r), $(gocryptfs -version | sed 's/;.*//'), file system $(stat -f -c %T "$work"),"
    echo "$size_mib MiB of random bytes, $repetitions runs of each in turns; load average $(cut -d ' ' -f 1-3 /proc/loadavg)"
    echo
    table
} | tee ${out:+"$out"}
