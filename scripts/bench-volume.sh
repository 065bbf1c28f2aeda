#!/usr/bin/env bash
# Measures NBD exports of encrypted volumes: sequential requests of 1 MiB by nbdcopy, reading and writing, beside
# nbdkit's own filter `luks` and qemu-nbd on the same image, and beside a plain file. About two minutes.
#
#   scripts/bench-volume.sh [FOLDER [MiB [REPETITIONS]]]
#
# The images and the random bytes that are written lie in FOLDER (default: /dev/shm, so that no disk is measured) and
# take four times MiB (default: 1024). Ways take turns within a repetition. BIFOLIO names the command.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-/dev/shm}
mib=${2:-1024}
repetitions=${3:-5}
bifolio=$(realpath "${BIFOLIO:-${CARGO_TARGET_DIR:-target}/release/bifolio}")
PATH=$PATH:/usr/sbin:/sbin
connections=${CONNECTIONS:-4}

for program in nbdkit nbdcopy cryptsetup; do
    command -v "$program" >/dev/null || { echo "bench-volume: $program is missing; scripts/setup.sh test installs it" >&2; exit 1; }
done

work=$(mktemp -d "$folder/bench-volume.XXXXXX")
servers=()
stop() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap stop EXIT

printf 'a passphrase' >"$work/key"
head -c "${mib}M" /dev/urandom >"$work/random"
new_image() { # new_image NAME TYPE HEADER_MIB OPTION... : every volume has as much room
    truncate -s "$((mib + $3))M" "$work/$1"
    cryptsetup luksFormat -q --type "$2" "${@:4}" --key-size 512 "$work/$1" "$work/key"
}
cheap_argon2=(--pbkdf argon2id --pbkdf-memory 32 --pbkdf-force-iterations 4 --pbkdf-parallel 1)
new_image luks2-4096 luks2 16 --sector-size 4096 "${cheap_argon2[@]}"
new_image luks2-512 luks2 16 --sector-size 512 "${cheap_argon2[@]}"
new_image luks1 luks1 2 --pbkdf-force-iterations 1000
truncate -s "${mib}M" "$work/plain"

names=()
start() { # start NAME COMMAND... : a server on the socket of that name
    local name=$1
    shift
    "$@" >/dev/null 2>"$work/said-$name" &
    servers+=($!)
    for _ in $(seq 500); do
        [ -S "$work/socket-$name" ] && break
        sleep 0.02
    done
    [ -S "$work/socket-$name" ] || { echo "bench-volume: $name does not start: $(cat "$work/said-$name")" >&2; exit 1; }
    names+=("$name")
}
export_ours() { # export_ours NAME IMAGE
    start "$1" "$bifolio" volume export "$work/$2" --key-file "$work/key" --nbd "unix:$work/socket-$1"
}
export_ours bifolio-luks2-4096 luks2-4096
export_ours bifolio-luks2-512 luks2-512
export_ours bifolio-luks1 luks1
start nbdkit-luks-filter-luks1 nbdkit -f --exit-with-parent -U "$work/socket-nbdkit-luks-filter-luks1" \
    --filter=luks file "$work/luks1" passphrase=+"$work/key"
if command -v qemu-nbd >/dev/null; then
    start qemu-nbd-luks1 qemu-nbd --persistent --shared 16 --cache writeback --object "secret,id=key,file=$work/key" \
        --image-opts "driver=luks,key-secret=key,file.filename=$work/luks1" -k "$work/socket-qemu-nbd-luks1"
fi
start nbdkit-plain-file nbdkit -f --exit-with-parent -U "$work/socket-nbdkit-plain-file" file "$work/plain"

seconds() { # seconds COMMAND... : what it takes
    local begin end
    begin=$(date +%s%N)
    "$@"
    end=$(date +%s%N)
    echo "$(((end - begin) / 1000))"
}
copy=(nbdcopy "--connections=$connections" --request-size=1048576)
measure() {
    local name uri
    for _ in $(seq "$repetitions"); do
        for name in "${names[@]}"; do
            uri="nbd+unix:///?socket=$work/socket-$name"
            echo "$name write $(seconds "${copy[@]}" "$work/random" "$uri")"
            echo "$name read $(seconds "${copy[@]}" "$uri" null:)"
        done
    done
}
measure >"$work/times"
# What was written is what is read, by each.
for name in "${names[@]}"; do
    "${copy[@]}" "nbd+unix:///?socket=$work/socket-$name" - | cmp -n "$((mib << 20))" - "$work/random" ||
        { echo "bench-volume: $name does not give back what was written" >&2; exit 1; }
done

echo "$(nproc) processors, $(grep -m 1 'model name' /proc/cpuinfo | cut -d : -f 2 | xargs), $(nbdkit --version), load $(cut -d ' ' -f 1-3 /proc/loadavg) at the end"
echo "$mib MiB of random bytes in $folder, requests of 1 MiB, $connections connections, $repetitions repetitions, GB/s (1e9)"
echo
awk -v bytes="$((mib << 20))" '
    { key = $1 " " $2; if (!(key in count)) order[++keys] = key; times[key, ++count[key]] = $3 }
    END {
        printf "%-26s %-6s %8s %8s %8s\n", "way", "", "best", "median", "worst"
        for (k = 1; k <= keys; k++) {
            key = order[k]; n = count[key]
            for (i = 1; i <= n; i++) sorted[i] = times[key, i]
            for (i = 2; i <= n; i++) { value = sorted[i]; for (j = i - 1; j > 0 && sorted[j] > value; j--) sorted[j + 1] = sorted[j]; sorted[j + 1] = value }
            split(key, part, " ")
            printf "%-26s %-6s %8.2f %8.2f %8.2f\n", part[1], part[2], bytes / sorted[1] / 1000, bytes / sorted[int((n + 1) / 2)] / 1000, bytes / sorted[n] / 1000
        }
    }' "$work/times"
