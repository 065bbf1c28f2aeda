#!/usr/bin/env bash
# Runs every test tier, and at the end says what was skipped on this machine and why. Tools are there: the set-up has
# installed them, so a missing one is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."

skips=$PWD/build/skips.txt
mkdir -p build
: > "$skips"
export BIFOLIO_TEST_REQUIRE_ALL=1 BIFOLIO_TEST_SKIPS=$skips

"${CARGO:-cargo}" test --workspace --all-features --no-fail-fast
rust=$?
scripts/test-python.sh
python=$?

# One line for one reason: how many tests it left out, wholly or in part, and in which files.
if [ -s "$skips" ]; then
    echo "skipped: $(sort -u "$skips" | wc -l) tests or parts of them cannot run on this machine"
    sort -u "$skips" | awk -F '\t' '
        { n[$3]++; if (!(($3, $1) in seen)) { seen[$3, $1]; at[$3] = at[$3] (at[$3] ? ", " : "") $1 } }
        END { for (reason in n) printf "  %3d  %s (%s)\n", n[reason], reason, at[reason] }' | sort -rn
else
    echo "skipped: none"
fi
[ "$rust" -eq 0 ] && [ "$python" -eq 0 ]
