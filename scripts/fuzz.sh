#!/usr/bin/env bash
# Runs every fuzz target for a bounded time, on stable Rust and without cargo-fuzz.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]     10 seconds each, all targets of fuzz/Cargo.toml
#
# With AddressSanitizer, where the toolchain has it, unless FUZZ_SANITIZER is empty.
#
# FUZZ_SEED sets the seed (a random one is printed); inputs that reached new code are kept in
# fuzz/corpus. On a failure it prints where the input is: `scripts/fuzz.sh FILE TARGET` runs that alone.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-10}
shift || true
if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046 # one word for each target
    set -- $(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml)
fi

# What cargo-fuzz passes. Naming the target keeps the flags away from build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
target_dir=${CARGO_TARGET_DIR:-fuzz/target}/fuzz
# The sanitizer's option is one of nightly's. Stable toolchains have its runtime, too, and take the option when they are told to.
if [ -n "${FUZZ_SANITIZER-address}" ] && compgen -G "$(rustc --print target-libdir --target "$host")/librustc*_rt.asan.a" >/dev/null; then
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="$RUSTFLAGS -Zsanitizer=address"
    target_dir=$target_dir-address
    # Leaks are looked for by ptrace, which sandboxes refuse.
    export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
else
    echo "fuzz: without AddressSanitizer"
fi
${CARGO:-cargo} build --quiet --locked --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$target_dir" --bins

seed=${FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
for target in "$@"; do
    binary=$target_dir/$host/release/$target
    [ -x "$binary" ] || { echo "there is no fuzz target $target in fuzz/Cargo.toml" >&2; exit 2; }
    if [ -f "$seconds" ]; then
        "$binary" "$seconds"
        continue
    fi
    corpus=fuzz/corpus/$target
    artifacts=fuzz/artifacts/$target/
    mkdir -p "$corpus" "$artifacts"
    echo "fuzz: $target for $seconds s, seed $seed"
    log=$(mktemp)
    if ! "$binary" -seed="$seed" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
        -artifact_prefix="$artifacts" "$corpus" >"$log" 2>&1; then
        # What went wrong, then where: the backtrace can be long.
        grep -A 2 "panicked at" "$log" >&2 || true
        tail -n 40 "$log" >&2
        rm -f "$log"
        echo "fuzz: $target failed, seed $seed; the newest file in $artifacts repeats it:" >&2
        echo "  scripts/fuzz.sh $artifacts$(ls -t "$artifacts" | head -n 1) $target" >&2
        exit 1
    fi
    sed -n 's/^stat::number_of_executed_units: */fuzz: runs /p' "$log"
    rm -f "$log"
done
