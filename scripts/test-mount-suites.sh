#!/usr/bin/env bash
# Runs suites that others wrote on a plain folder and on mounts, and prints what each mount does otherwise than the folder:
# fsx (also on a file that a device of a daemon holds), pjdfstest, stress-ng, and fio with verification.
#
#   scripts/test-mount-suites.sh [FOLDER]
#
# FOLDER is where the source and the mount points are made (/var/tmp by default); its file system is the source's. fsx and
# pjdfstest are installed by cargo into MOUNT_SUITES (build/mount-suites by default) where they are missing. What is
# missing and cannot be installed, or cannot run here, is said and left out. BIFOLIO names the command, FSX_SEED and
# FSX_OPERATIONS choose what fsx does, STRESS_SECONDS says how long each of stress-ng's runs, PARTS what is run (fsx fio
# pjdfstest stress-ng shared). With OUT=DIR, what the suites have printed is left in DIR. The exit code is 1 if a mount
# fails what the folder does not.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || { echo "the suites take root: they act for several users, and mount" >&2; exit 1; }
[ -w /dev/fuse ] || { echo "the suites take FUSE, and /dev/fuse cannot be opened" >&2; exit 1; }

tools=$(realpath -m "${MOUNT_SUITES:-build/mount-suites}")
export PATH=$tools/bin:$PATH
for suite in fsx@0.3.2 pjdfstest@0.2.2; do
    command -v "${suite%@*}" > /dev/null || cargo install --quiet --locked --root "$tools" "$suite" >&2 ||
        echo "left out: ${suite%@*} cannot be installed (the reason is above)"
done
for program in stress-ng fio; do
    command -v $program > /dev/null || echo "left out: $program is not installed"
done
parts=" ${PARTS:-fsx fio pjdfstest stress-ng shared} "
wants() { [[ $parts = *" $1 "* ]]; }
has() { command -v "$1" > /dev/null; }
bifolio=${BIFOLIO:-}
if [ -z "$bifolio" ]; then
    cargo build --release -p bifolio-cli >&2
    bifolio=${CARGO_TARGET_DIR:-target}/release/bifolio
fi
bifolio=$(realpath "$bifolio")

work=$(mktemp -d -p "${1:-/var/tmp}" bifolio-XXXXXX)
said=${OUT:-$work/said}
mkdir -p "$said" "$work/plain" "$work/source" "$work/passed" "$work/served"
said=$(realpath "$said")
chmod 755 "$work"
chmod 777 "$work/plain" "$work/source"
socket=$work/socket
daemon=
failed=0
fail() { echo "FAILED: $*"; failed=1; }
end() {
    for place in passed served; do
        ! mountpoint -q "$work/$place" || "$bifolio" unmount "$work/$place" || umount -l "$work/$place"
    done
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon" || true; }
    rm -rf --one-file-system "$work"
}
trap end EXIT

"$bifolio" mount --socket "$socket" --allow_other --dev --suid "$work/source" "$work/passed" > "$said/passed" 2>&1
"$bifolio" mount --socket "$socket" --allow_other --dev --suid --serve-all "$work/source" "$work/served" > "$said/served" 2>&1
mountpoint -q "$work/passed" && mountpoint -q "$work/served" || { cat "$said/passed" "$said/served" >&2; exit 1; }

# fsx: every read is compared with what was written before, by calls and mappings.
seed=${FSX_SEED:-$RANDOM}
operations=${FSX_OPERATIONS:-20000}
cat > "$work/fsx.toml" << 'SETTINGS'
flen = 262144
[weights]
close_open = 1
invalidate = 1
truncate = 2
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
SETTINGS
run_fsx() { # run_fsx NAME FILE
    has fsx || return 0
    if fsx -f "$work/fsx.toml" -N "$operations" -S "$seed" -P "$said" "$2" > "$said/fsx-$1" 2>&1; then
        echo "fsx, $1: $operations operations of seed $seed are right"
    else
        tail -n 20 "$said/fsx-$1"
        fail "fsx, $1, seed $seed"
    fi
}
for place in plain passed served; do ! wants fsx || run_fsx "$place" "$work/$place/fsx"; done

# fio: what was written is read again and compared, by calls and by a mapping.
run_fio() { # run_fio NAME FOLDER
    has fio || return 0
    for engine in psync mmap; do
        smallest=$([ $engine = mmap ] && echo 4k || echo 512)
        if fio --name=$engine --directory="$2" --ioengine=$engine --rw=randrw --bsrange=$smallest-128k --blockalign=$smallest \
            --size=32m --numjobs=2 --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fsync=64 --randseed="$seed" \
            > "$said/fio-$engine-$1" 2>&1; then
            echo "fio, $1, $engine: everything that was read is right"
        else
            tail -n 20 "$said/fio-$engine-$1"
            fail "fio, $1, $engine, seed $seed"
        fi
        rm -f "$2/$engine".*
    done
}
for place in plain passed served; do ! wants fio || run_fio "$place" "$work/$place"; done

# pjdfstest: what a mount fails and its source does not.
if wants pjdfstest && has pjdfstest; then
    other=$(getent passwd | awk -F: '$3 >= 1 && $1 != "nobody" { print $1; exit }')
    cat > "$work/pjdfstest.toml" << SETTINGS
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "$(id -gn nobody)"], ["$other", "$(id -gn "$other")"]]
SETTINGS
    outcomes() { # outcomes PLACE OUTCOME : the names of the tests that have it
        sed 's/\x1b\[[0-9;]*m//g' "$said/pjdfstest-$1" | awk -v outcome="$2" '$NF == outcome && NF == 2 { print $1 }' | sort -u
    }
    for place in plain passed served; do
        mkdir -m 777 "$work/$place/pj"
        # It makes sockets, whose paths may have 107 bytes: that of the folder is short.
        (cd "$work/$place/pj" && pjdfstest -c "$work/pjdfstest.toml" -p . || true) > "$said/pjdfstest-$place" 2>&1
        rm -rf "$work/$place/pj"
        echo "pjdfstest, $place: $(grep ^Summary "$said/pjdfstest-$place")"
        for test in $(comm -13 <(outcomes plain FAILED) <(outcomes "$place" FAILED)); do
            fail "pjdfstest, $place: $test"
        done
        for test in $(comm -13 <(outcomes plain skipped) <(outcomes "$place" skipped)); do
            echo "  skipped in $place alone: $test"
        done
    done
fi

# stress-ng: each of what it can do to a folder, with verification; a mount may not fail what the folder does not.
stressors="access chmod chown copy-file dentry dir dirdeep fallocate fiemap filename flock fpunch fsize getdent handle
    hdd inode-flags iomix lease link lockf lockofd mmap mmapfork msync open readahead rename revio seek symlink sync-file
    touch utime xattr"
run_stressors() { # run_stressors PLACE : the names of those that fail
    mkdir -m 777 "$work/$1/stress"
    for name in $stressors; do
        ! grep -qw -- "$name" <<< "$known_stressors" || {
            (cd "$work/$1/stress" && timeout 60 stress-ng --temp-path . "--$name" 1 --verify \
                --timeout "${STRESS_SECONDS:-1}" --oomable) > "$said/stress-ng-$1-$name" 2>&1 || echo "$name"
        }
    done
    rm -rf "$work/$1/stress"
}
if wants stress-ng && has stress-ng; then
    known_stressors=$(stress-ng --stressors)
    for place in plain passed served; do
        run_stressors "$place" > "$said/stress-ng-$place"
        echo "stress-ng, $place: $(wc -w <<< "$stressors") stressors, failed: $(xargs < "$said/stress-ng-$place")"
        for name in $(comm -13 <(sort "$said/stress-ng-plain") <(sort "$said/stress-ng-$place")); do
            fail "stress-ng, $place: $name"
        done
        for name in $stressors; do
            ! grep -qs "skipping stressor" "$said/stress-ng-$place-$name" ||
                grep -q "skipping stressor" "$said/stress-ng-plain-$name" || echo "  skipped in $place alone: $name"
        done
    done
fi

# fsx on a file that the daemon keeps on a device, to which it is brought again and again meanwhile: calls go through the
# cache, and what is mapped and dirty is recalled.
if wants shared && has fsx; then
    operations=$((operations / 4))
    "$bifolio" daemon --device host --socket "$socket" > "$said/daemon" 2>&1 &
    daemon=$!
    for _ in $(seq 100); do [ ! -S "$socket" ] || break; sleep 0.1; done
    sleep 2.5 # The mount looks for a daemon every second.
    for place in passed served; do
        file=$work/source/shared-$place
        head -c 262144 /dev/urandom > "$file"
        "$bifolio" cache pin --socket "$socket" "$file"
        while sleep 0.02; do
            # It fails where fsx cuts the file meanwhile, and says so.
            "$bifolio" cache warm --socket "$socket" "$file" || true
        done > "$said/warm-$place" 2>&1 &
        warm=$!
        run_fsx "shared-$place" "$work/$place/shared-$place"
        echo "  brought to the device $(grep -c brought "$said/warm-$place") times meanwhile"
        kill $warm
        wait $warm || true
        cmp "$file" "$work/$place/shared-$place" || fail "the source and $place differ"
    done
fi
exit $failed
