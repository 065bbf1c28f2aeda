#!/usr/bin/env python3
"""Two builds of the command beside each other: every benchmark by turns, and the ratio of every figure.

    bench/compare/builds.py BEFORE AFTER FOLDER [--device D] [--rounds N] [--size S] [--only NAME,...]

BEFORE and AFTER are binaries. Each benchmark of the command runs with one and then the other, the first of each round
changing, and makes its own states. Printed is a table in Markdown: of every row the medians over the rounds, and the
ratio of the two; above 1 the second build is quicker. Rows whose ranges do not overlap are marked.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What tells rows of a benchmark apart, in the order of the table.
KEYS = ("title", "state", "pattern", "load", "contention", "service", "whole_file", "request_bytes", "read_bytes", "bytes", "way", "engine")
RATES = ("gb_per_s_best", "gb_per_s", "reads_per_s")


def benchmarks(folder: Path, size: int) -> dict[str, list[str]]:
    file = str(folder / "builds.bin")
    return {
        "small": ["small", file, "--repetitions", "3", "--reads", "2048"],
        "read": ["read", file, "--repetitions", "3"],
        "requests": ["read", file, "--sizes", "64K,1M,8M", "--states", "warm,half", "--repetitions", "3",
                     "--requests", "256", "--run-time", "0.5", "--engines", "auto,cached,direct"],
        "write": ["write", str(folder), "--size", str(size // 4), "--repetitions", "3"],
        "disparity": ["disparity", str(folder), "--size", str(size // 8), "--repetitions", "2", "--run-time", "0.1"],
        "volume": ["volume", str(folder), "--size", str(size // 2), "--repetitions", "3"],
        "compute": ["compute", "--seconds", "0.04"],
    }


def rows(value: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every row with a rate, and what tells it from the others."""
    if isinstance(value, list):
        for item in value:
            yield from rows(item, key)
    elif isinstance(value, dict):
        key += tuple(str(value[name]) for name in KEYS if isinstance(value.get(name), (str, int)))
        rate = value.get("rate", value)
        found = [rate[name] for name in RATES if isinstance(rate, dict) and isinstance(rate.get(name), (int, float))]
        if found:
            yield key, float(found[0])
            return
        for item in value.values():
            if isinstance(item, (list, dict)):
                yield from rows(item, key)


def run(binary: str, arguments: list[str], device: str) -> dict[tuple[str, ...], float]:
    command = [binary, "bench", *arguments, "--json", "--device", device, "--seed", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return dict(rows(json.loads(done.stdout)))


def compare(name: str, arguments: list[str], binaries: list[str], device: str, rounds: int) -> list[float]:
    taken: list[dict[tuple[str, ...], list[float]]] = [{}, {}]
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            for key, rate in run(binaries[which], arguments, device).items():
                taken[which].setdefault(key, []).append(rate)
    print(f"\n## {name}\n\n`bifolio bench {' '.join(arguments)}`, {rounds} rounds\n")
    print("| row | before | after | ratio | |\n|---|---|---|---|---|")
    ratios = []
    for key in (key for key in taken[0] if key in taken[1]):
        before, after = (statistics.median(of[key]) for of in taken)
        if before <= 0:
            continue
        ratios.append(after / before)
        apart = rounds > 1 and (max(taken[0][key]) < min(taken[1][key]) or max(taken[1][key]) < min(taken[0][key]))
        print(f"| {', '.join(key)} | {before:.4g} | {after:.4g} | {after / before:.3f} | {'apart' if apart else ''} |")
    lost = sorted(set(taken[0]) ^ set(taken[1]))
    if lost:
        print(f"\n{len(lost)} rows are of one build only: {'; '.join(', '.join(key) for key in lost[:8])}")
    mean = f"geometric mean of the ratios {statistics.geometric_mean(ratios):.3f}" if ratios else "nothing to compare"
    print(f"\n{len(ratios)} rows, {mean}", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=4, help="of the file, in GiB")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for binary in (options.before, options.after):
        if not os.access(binary, os.X_OK):
            sys.exit(f"builds: {binary} is not a program that can be run; name two builds of the command")
    size = options.size << 30
    chosen = benchmarks(options.folder, size)
    if options.only:
        chosen = {name: chosen[name] for name in options.only.split(",")}
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        with open(folder / "builds.bin", "wb") as file:
            for _ in range(size >> 24):
                file.write(os.urandom(1 << 24))
        everything = []
        for name in chosen:
            arguments = benchmarks(folder, size)[name]
            everything += compare(name, arguments, [options.before, options.after], options.device, options.rounds)
    print(f"\nAll {len(everything)} rows: geometric mean of the ratios {statistics.geometric_mean(everything):.3f}")


if __name__ == "__main__":
    main()
