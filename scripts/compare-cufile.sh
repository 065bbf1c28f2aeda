#!/usr/bin/env bash
# Measures a loop of cuFileRead on Bifolio's library and on NVIDIA's in its compatibility mode, one after the
# other on the same file, and prints a dated table in Markdown.
#
#   scripts/compare-cufile.sh NVIDIA_LIBRARY [FILE] [OPTION VALUE]...
#
# NVIDIA_LIBRARY is its libcufile.so.0, of a CUDA toolkit or of the Python package nvidia-cufile; without it, or
# where it does not run, its columns are left out and the reason is printed. FILE may be "" for the sample file.
# Options are those of examples/c/cufile_bench.c. CUFILE_OURS names Bifolio's library where it is not to be built.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: scripts/compare-cufile.sh NVIDIA_LIBRARY [FILE] [OPTION VALUE]..."
theirs=${1?$usage}
file=${2:-}
shift $(($# < 2 ? $# : 2))
file=$(realpath "$(scripts/sample.sh "$file")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Each size is measured by a process of its own, so that none has what another has left behind.
sizes=64K,1M,16M,128M
options=()
while [ $# -ge 2 ]; do
    if [ "$1" = --sizes ]; then sizes=$2; else options+=("$1" "$2"); fi
    shift 2
done
[ $# = 0 ] || { echo "the option $1 has no value" >&2; exit 1; }

ours=${CUFILE_OURS:-}
if [ -z "$ours" ]; then
    cargo build --release -p bifolio-cufile >&2
    ours=${CARGO_TARGET_DIR:-target}/release/libcufile.so
fi
mkdir "$work/ours" "$work/theirs"
ln -s "$(realpath "$ours")" "$work/ours/libcufile.so.0"
bench=$work/bench
"${CC:-cc}" -std=c11 -O2 -pthread examples/c/cufile_bench.c -ldl -o "$bench"

# configure LEVEL FORCED: how NVIDIA's library is set up, as its guide to the parameters has it. Without its kernel
# module it works in compatibility mode only; newer ones can be told not to look for anything else.
configure() {
    cat >"$work/cufile.json" <<JSON
{
    "logging": { "dir": "$work", "level": "$1" },
    "profile": { "nvtx": false, "cufile_stats": 0 },
    "properties": { "allow_compat_mode": true, "force_compat_mode": $2, "use_poll_mode": false }
}
JSON
}
export CUFILE_ENV_PATH_JSON=$work/cufile.json

# run FOLDER [OPTION VALUE]...: the benchmark on the library that is in a folder. Logs end up in $work.
run() {
    local folder=$1
    shift
    (cd "$work" && LD_LIBRARY_PATH=$work/$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        ${limit:+timeout -k 1 "$limit"} "$bench" "$file" "$@")
}

# measure FOLDER [OPTION VALUE]...: all sizes.
measure() {
    local folder=$1 header=1 size
    shift
    for size in ${sizes//,/ }; do
        run "$folder" ${options[@]+"${options[@]}"} --sizes "$size" --header $header "$@" || return 1
        header=0
    done
}

configure ERROR false
echo "measuring Bifolio's library" >&2
measure ours >"$work/ours.tsv"

# Why NVIDIA's library does not run, by what it wrote itself.
explain() {
    echo "skipped: NVIDIA's library does not run here$1: $(tail -n 1 "$work/theirs.log")" >&2
    [ ! -s "$work/cufile.log" ] || { echo "its own log ends with:" && tail -n 15 "$work/cufile.log"; } | sed 's/^/    /' >&2
}

# Tries it with a little of the same file: without a driver it neither works nor ends. What was tried last with
# success holds.
tries() {
    local forced direct
    for forced in false true; do
        for direct in 1 0; do
            rm -f "$work/cufile.log"
            configure INFO $forced
            if limit=20 run theirs --length 1M --sizes 64K --threads 1 --states warm --repeat 1 --direct $direct \
                >"$work/tried.tsv" 2>"$work/theirs.log"; then
                configure ERROR $forced
                return
            fi
            [ -s "$work/theirs.log" ] || echo "it came to no end within 20 s" >"$work/theirs.log"
            explain " ($([ $direct = 1 ] && echo with || echo without) O_DIRECT, compatibility mode $([ $forced = true ] && echo forced || echo allowed))"
        done
    done
    return 1
}

their_runs=()
if [ ! -e "$theirs" ]; then
    echo "skipped: NVIDIA's library is not measured, as there is no file \"$theirs\"" >&2
else
    ln -s "$(realpath "$theirs")" "$work/theirs/libcufile.so.0"
    runs="1 0"
    if ! tries; then
        [ -d /run/udev/data ] ||
            echo "NVIDIA's library asks udev what a drive is; there is no /run/udev here, so let the container have the host's" >&2
        runs=
    elif ! grep -q "^# NVIDIA's" "$work/tried.tsv"; then
        echo "skipped: $theirs is not NVIDIA's library, but Bifolio's" >&2
        runs=
    fi
    # Files that are opened with O_DIRECT are read past the page cache by it, others through it.
    for direct in $runs; do
        echo "measuring NVIDIA's library, $([ $direct = 1 ] && echo with || echo without) O_DIRECT" >&2
        if measure theirs --direct $direct >"$work/theirs$direct.tsv" 2>"$work/theirs.log"; then
            their_runs+=("$work/theirs$direct.tsv")
        else
            explain " ($([ $direct = 1 ] && echo with || echo without) O_DIRECT)"
        fi
    done
fi

machine=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
echo "# cuFileRead, $(date -u +%F)"
echo
echo "- ${machine:-no NVIDIA GPU (host memory)}; $(nproc) processors; Linux $(uname -r)"
grep -h '^#' "$work/ours.tsv" ${their_runs[@]+"${their_runs[@]}"} | sed -e 's/^# /- /' -e "s|$work/[^ /]*/||" -e "s|$(dirname "$file")/||"
echo "- best of the repetitions; rates in GB/s of the whole file, read once by all threads together"
echo
awk -F '\t' '
    function size(bytes) {
        return bytes % 1048576 == 0 ? bytes / 1048576 " MiB" : bytes % 1024 == 0 ? bytes / 1024 " KiB" : bytes " B"
    }
    FNR == 1 { run++ }
    /^#/ || /^state/ { next }
    {
        key = $1 "\t" $2 "\t" $3
        if (run == 1) { order[++count] = key; cached[key] = $6 }
        rate[run, key] = $4; cpu[run, key] = $5
    }
    END {
        head = "| state | cached | request | threads | Bifolio |"; rule = "|---|---|---|---|---|"
        for (i = 2; i <= run; i++) {
            head = head " NVIDIA, " (i == 2 ? first : second) " |"; rule = rule "---|"
        }
        if (run > 1) { head = head " Bifolio over the better |"; rule = rule "---|" }
        print head " CPU s/GB |"; print rule "---|"
        for (n = 1; n <= count; n++) {
            split(order[n], part, "\t")
            line = "| " part[1] " | " cached[order[n]] " % | " size(part[2]) " | " part[3] " | " rate[1, order[n]] " |"
            used = cpu[1, order[n]]; best = 0
            for (i = 2; i <= run; i++) {
                line = line " " rate[i, order[n]] " |"; used = used ", " cpu[i, order[n]]
                if (rate[i, order[n]] > best) best = rate[i, order[n]]
            }
            if (run > 1) line = line sprintf(" %.2f |", best > 0 ? rate[1, order[n]] / best : 0)
            print line " " used " |"
        }
    }
' first="$([ "${their_runs[0]:-}" = "$work/theirs0.tsv" ] && echo "page cache" || echo O_DIRECT)" second="page cache" \
    "$work/ours.tsv" ${their_runs[@]+"${their_runs[@]}"}
