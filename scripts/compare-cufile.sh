#!/usr/bin/env bash
# Measures a loop of cuFileRead on Bifolio's library and on NVIDIA's in its compatibility mode, one after the
# other on the same file, and prints a dated table in Markdown.
#
#   scripts/compare-cufile.sh NVIDIA_LIBRARY [FILE] [OPTION VALUE]...
#
# NVIDIA_LIBRARY is its libcufile.so.0, of a CUDA toolkit or of the Python package nvidia-cufile; without it, or
# where it does not run, its columns are left out and the reason is printed. FILE may be "" for the sample file.
# Options are those of examples/c/cufile_bench.c.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: scripts/compare-cufile.sh NVIDIA_LIBRARY [FILE] [OPTION VALUE]..."
theirs=${1?$usage}
file=${2:-}
shift $(($# < 2 ? $# : 2))
file=$(scripts/sample.sh "$file")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ours=${CARGO_TARGET_DIR:-target}/release/libcufile.so
if [ ! -e "$ours" ]; then
    cargo build --release -p bifolio-cufile >&2
fi
mkdir "$work/ours"
ln -s "$(realpath "$ours")" "$work/ours/libcufile.so.0"
"${CC:-cc}" -std=c11 -O2 -pthread examples/c/cufile_bench.c -ldl -o "$work/bench"

cat >"$work/cufile.json" <<'JSON'
{
    "logging": { "level": "ERROR" },
    "properties": { "allow_compat_mode": true, "use_poll_mode": false }
}
JSON
export CUFILE_ENV_PATH_JSON=$work/cufile.json
# NVIDIA's library writes its log where it is started.
bench=$work/bench
file=$(realpath "$file")

echo "measuring Bifolio's library" >&2
(cd "$work" && LD_LIBRARY_PATH=$work/ours "$bench" "$file" "$@") >"$work/ours.tsv"

their_runs=()
if [ ! -e "$theirs" ]; then
    echo "skipped: NVIDIA's library is not measured, as there is no file \"$theirs\"" >&2
else
    theirs=$(realpath "$theirs")
    mkdir "$work/theirs"
    ln -s "$theirs" "$work/theirs/libcufile.so.0"
    # Without a driver it neither works nor ends, so it is tried first.
    head -c 1048576 /dev/zero >"$work/little"
    try() { (cd "$work" && LD_LIBRARY_PATH=$work/theirs:${LD_LIBRARY_PATH:-} timeout -k 1 20 "$bench" little "$@"); }
    runs="1 0"
    if ! try --sizes 64K --threads 1 --states warm --repeat 1 >"$work/tried.tsv" 2>"$work/theirs.log"; then
        reason=$(tail -n 1 "$work/theirs.log")
        echo "skipped: NVIDIA's library does not run here: ${reason:-it came to no end within 20 s}" >&2
        runs=
    elif ! grep -q "^# NVIDIA's" "$work/tried.tsv"; then
        echo "skipped: $theirs is not NVIDIA's library, but Bifolio's" >&2
        runs=
    fi
    # Files that are opened with O_DIRECT are read past the page cache by it, others through it.
    for direct in $runs; do
        echo "measuring NVIDIA's library, $([ $direct = 1 ] && echo with || echo without) O_DIRECT" >&2
        if (cd "$work" && LD_LIBRARY_PATH=$work/theirs:${LD_LIBRARY_PATH:-} "$bench" "$file" "$@" --direct $direct) \
            >"$work/theirs$direct.tsv" 2>"$work/theirs.log"; then
            their_runs+=("$work/theirs$direct.tsv")
        else
            echo "skipped: NVIDIA's library does not run here: $(tail -n 1 "$work/theirs.log")" >&2
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
