#!/usr/bin/env bash
# Runs the examples that reproduce the evaluation of the GAIA paper (examples/gaia), and writes their results:
# Markdown, JSON and plots. On a GPU with sizes for an H200, some ten minutes; on a host small, in about a minute.
#
#   scripts/gaia-examples.sh DEVICE FOLDER [OUT]
#
# DEVICE is cuda:N or host:N. The files are made in FOLDER, on a disk with 8 GB of room, and removed. OUT is
# bench/results without a word. PYTHON names an interpreter that has the package `bifolio`, NumPy and, for a GPU,
# CuPy; with two GPUs, those that need two are run on both. TAG ends the results' names: by default the GPU's.
# PARTS chooses from: streaming graph stitching false_sharing kmeans peer_read collage. COLLAGE is the Rust example of
# that name, if it is built (cargo build --release -p bifolio-cache --example collage): it adds demand mode. An example
# that is interrupted writes what it has, and ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."

device=${1:?usage: scripts/gaia-examples.sh DEVICE FOLDER [OUT]}
folder=${2:?usage: scripts/gaia-examples.sh DEVICE FOLDER [OUT]}
out=${3:-bench/results}
python=${PYTHON:-python3}
known="streaming graph stitching false_sharing kmeans peer_read collage"
parts=" ${PARTS:-$known} "
for part in $parts; do
    case " $known " in *" $part "*) ;; *) echo "there is no part $part: PARTS chooses from $known" >&2; exit 2 ;; esac
done
started=$SECONDS

# The last word of the GPU's name, and the next GPU if there is one.
read -r name other < <("$python" - "$device" <<'PYTHON'
import sys
import bifolio
found = {device["id"]: device["name"] for device in bifolio.devices()}
if sys.argv[1] not in found and not sys.argv[1].startswith("host:"):
    sys.exit(f"there is no {sys.argv[1]} here: {', '.join(found)}")
others = [id for id in found if id.startswith("cuda:") and id != sys.argv[1]]
is_gpu = sys.argv[1].startswith("cuda:")
print(found[sys.argv[1]].split()[-1].lower() if is_gpu else "host", others[0] if is_gpu and others else "none")
PYTHON
)
tag=${TAG:-$name}

example() { # example NAME TAG OPTION...
    case $parts in *" $1 "*) ;; *) return 0 ;; esac
    echo "== $1 ${*:3}"
    "$python" "examples/gaia/$1.py" --folder "$folder" --out "$out" --tag "$2" --device "$device" "${@:3}"
}

demand=()
[ -z "${COLLAGE:-}" ] || demand=(--demand "$COLLAGE")
case $device in
cuda:*)
    example streaming "$tag" --small 1G --large 3G --budget 2G --windows 16M,256M --repetitions 3
    example graph "$tag" --vertices 4000000 --edges 128000000 --repetitions 2 --cpu
    example peer_read "$tag" --size 128M --requests 4K,64K,1M --repetitions 2
    example collage "$tag" --size 4G --budget 1G --blocks 2048 --repetitions 2 "${demand[@]}"
    example stitching "$tag-cpu" --other process --width 8192 --height 8192 --runs 1,2,4,8 --repetitions 2
    example false_sharing "$tag-cpu" --other process --sizes 64K,64M --times 1,4,16,64,256 --repetitions 3
    example false_sharing "$tag-cpu-write" --other process --store write --sizes 64K --times 1,16,256 --repetitions 3
    example kmeans "$tag-cpu" --other process --points 400000 --dimensions 4 --rounds 5 --share 1 --repetitions 2
    if [ "$other" = none ]; then
        echo "skipped: two GPUs in one image, and in one page, as there is one GPU here"
    else
        example stitching "$tag-x2" --other "$other" --width 16384 --height 16384 --runs 1,8,64 --repetitions 2
        example false_sharing "$tag-x2" --other "$other" --sizes 64K,64M --times 1,4,16,64,256 --repetitions 3
        example kmeans "$tag-x2" --other "$other" --points 400000 --dimensions 4 --rounds 5 --share 1 --repetitions 2
    fi
    ;;
*)
    other=host:1
    [ "$device" != "$other" ] || other=host:0
    example streaming "$tag"
    example graph "$tag"
    example peer_read "$tag" --repetitions 1
    example collage "$tag" "${demand[@]}"
    for second in process "$other"; do
        example stitching "$tag-${second%:*}" --other "$second"
        example false_sharing "$tag-${second%:*}" --other "$second"
        example kmeans "$tag-${second%:*}" --other "$second"
    done
    ;;
esac
echo "$((SECONDS - started)) s in all"
