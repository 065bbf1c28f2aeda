#!/usr/bin/env bash
# Measures every engine in every cache state on one large file, and over request sizes, and writes
# the results: tables, and HTML reports with plots. About eight minutes on a disk of 3 GB/s.
#
#   scripts/bench.sh OUT [FOLDER [GiB]]
#
# OUT receives the results; the test file (8 GiB of incompressible data) is made in FOLDER (default:
# build/) and removed. BIFOLIO names the binary, BIFOLIO_DEVICE the device, PARTS what to measure
# (of: states sizes calibrate partly contention small write disparity spread; those from partly on are not
# measured without being named, and spread needs BIFOLIO_DEVICE to name two devices).
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

bench() { # bench NAME OPTION... : a table, and a report with plots
    "$bifolio" bench read "$file" "${@:2}" --html "$out/$1.html" | tee "$out/$1.txt"
}

parts=${PARTS:-states sizes calibrate}
case $parts in *states*) bench states --repetitions 5 ;; esac
# Registering for every short request would measure nothing else: mapped is measured where it is kept.
# Warm runs take milliseconds and scatter, so there are more of them.
sizes() { # sizes NAME LIMIT SIZES
    bench "$1-warm" --sizes "$3" --limit "$2" --repetitions 15 --states warm --engines cached,direct,auto
    bench "$1-again" --sizes "$3" --limit "$2" --repetitions 15 --states again --engines cached,mapped,auto
    bench "$1-cold" --sizes "$3" --limit "$2" --repetitions 5 --states cold,half --engines cached,direct,auto
}
case $parts in *sizes*)
    sizes short 64M 4K,16K,64K,256K,1M
    sizes long 1G 4M,16M,64M,256M,1G
    ;;
esac
case $parts in *calibrate*) BIFOLIO_CACHE_DIR=$out/cache "$bifolio" calibrate "$folder" | tee "$out/calibrate.txt" ;; esac
# The evaluation of the SPIN paper: relative throughput by what is cached (its figures 4a, 4b and 5),
# and beside a busy machine (4d). 1,320 runs of 0.1 s at most, and some time to bring the file from one
# state into the next and to verify: 140 s on a disk of 3.8 GB/s. Requests at random ask for a small part
# of the file, so that what the kernel reads ahead for one is not what the next asks for.
case $parts in *partly*)
    bench partly --states 0-100%/10 --sizes 512,4K,64K,512K,8M --pattern random,sequential \
        --engines cached,direct,auto --limit 256M --repetitions 4 --run-time 0.1
    ;;
esac
case $parts in *contention*)
    bench contention --states 0%,50%,100% --sizes 512K,8M --contention none,cpu,disk --pattern random \
        --engines cached,direct,auto --limit 512M --repetitions 5 --run-time 0.2
    ;;
esac
case $parts in *small*)
    "$bifolio" bench small "$file" --repetitions 7 --states warm | tee "$out/small.txt"
    "$bifolio" bench small "$file" --repetitions 3 --states cold --sizes 4K,64K --reads 2048 | tee -a "$out/small.txt"
    ;;
esac
case $parts in *write*) "$bifolio" bench write "$folder" --size 1G --repetitions 7 | tee "$out/write.txt" ;; esac
case $parts in *disparity*)
    "$bifolio" bench disparity "$folder" --size 1G --states warm --html "$out/disparity.html" | tee "$out/disparity.txt"
    ;;
esac
case $parts in *spread*) "$bifolio" bench spread "$file" --repetitions 9 | tee "$out/spread.txt" ;; esac
