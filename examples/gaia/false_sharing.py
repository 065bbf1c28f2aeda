#!/usr/bin/env python3
"""Two processors write disjoint halves of every page: figure 1 and the false-sharing experiment of the GAIA paper.

Each writes its half of all pages, over and over. The two may be a GPU and the CPU ("host:N"), two GPUs, or two
hosts. The ways:

    bifolio.map     both have the file mapped; what each has released is merged, once, at the end
    private, merge  each writes a buffer of its own, and one of them takes the other's halves at the end
    managed         both write one buffer of managed memory (UVM), which moves by pages
"""

from collections.abc import Callable
from typing import Any

import bifolio
import numpy

import common
from common import Device, Managed, Results, check, measure, named

SOURCE = r"""
// Writes its half of every page of 4 KiB, over and over; the last value stays.
extern "C" __global__ void write_half(volatile unsigned* words, unsigned long long count, unsigned half, unsigned from,
                                      unsigned times) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned turn = 1; turn <= times; turn++) {
        unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i < count / 2; i += stride) words[i / 512 * 1024 + half * 512 + i % 512] = ((from + turn) * 2 + half) * 2654435761u;
    }
}
"""

# Words of a page of 4 KiB.
WORDS = 1024


def value(turn: int, half: int) -> int:
    """What a half is filled with in a turn; all of its bytes change from turn to turn."""
    return (turn * 2 + half) * 2_654_435_761 % (1 << 32)


class Side:
    """One of the two, with its halves."""

    def __init__(self, device: Device, half: int) -> None:
        self.device, self.half = device, half

    def halves(self, words: Any) -> Any:
        """Its half of every page."""
        return words.reshape(-1, WORDS)[:, self.half * WORDS // 2 : (self.half + 1) * WORDS // 2]

    def write(self, words: Any, after: int, times: int) -> None:
        """So many turns, which follow that one."""
        if not self.device.is_gpu:
            mine = self.halves(words)
            for turn in range(after + 1, after + times + 1):
                mine[:] = value(turn, self.half)
            return
        with self.device.use():
            grid, block = self.device.grid(words.size // 2)
            arguments = (words, numpy.uint64(words.size), numpy.uint32(self.half), numpy.uint32(after), numpy.uint32(times))
            self.device.kernel(SOURCE, "write_half")(grid, block, arguments)
        self.device.wait()


def run(options: Any) -> Results:
    devices = [Device(options.device), Device(options.other)]
    sides = [Side(device, half) for half, device in enumerate(devices)]
    total, count = options.size, options.size // 4
    check(total % 4096 == 0 and total > 0, "the size is a multiple of 4096")
    common.budget(options.budget or 4 * total + (64 << 20))
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "gaia-false-sharing"
    path.write_bytes(bytes(total))
    pair = f"{options.device} and {options.other}"
    results = Results(
        "false-sharing",
        f"Disjoint halves of every page, by {pair}",
        f"The false-sharing experiment of the GAIA paper (section 3.1 and its evaluation): {named(total)}, of whose pages of 4 KiB "
        "each of the two writes one half, so many times. \"merge\" is what happens after both have come to their end: "
        "the first has the other's halves then.",
        ("way", "times", "writing s", "merge s", "all s"),
        options,
    )
    merge_seconds: list[float] = []
    # No run writes what an earlier one has left: a store of the same value is no change.
    turns = 0

    def once(work: Callable[[], Any]) -> float:
        import time

        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    mappings = [bifolio.map(path, writable=True, device=device.name) for device in devices]
    views = []
    for side, mapping in zip(sides, mappings, strict=True):
        with side.device.use():
            mapping.acquire()
            # It keeps the memory in place; a kernel writes to it between an acquire and its release.
            views.append(side.device.array(mapping, "uint32"))
            mapping.release()

    def mapped(times: int) -> None:
        def work(side: Side) -> None:
            with side.device.use():
                mappings[side.half].acquire()
                side.write(views[side.half], turns, times)
                mappings[side.half].release()

        common.at_once(lambda: work(sides[0]), lambda: work(sides[1]))

        def merge() -> None:
            with devices[0].use():
                mappings[0].acquire()
                mappings[0].release()

        merge_seconds.append(once(merge))

    buffers = [device.empty(count, "uint32") for device in devices]
    for side, buffer in zip(sides, buffers, strict=True):
        with side.device.use():
            buffer[:] = 0

    def private(times: int) -> None:
        common.at_once(*(lambda side=side: side.write(buffers[side.half], turns, times) for side in sides))

        def merge() -> None:
            with devices[1].use():
                theirs = devices[1].xp.ascontiguousarray(sides[1].halves(buffers[1]))
                # CuPy copies between GPUs directly.
                if devices[1].is_gpu and not devices[0].is_gpu:
                    theirs = devices[1].host(theirs)
                devices[1].wait()
            with devices[0].use():
                sides[1].halves(buffers[0])[:] = devices[0].upload(theirs)
            devices[0].wait()

        merge_seconds.append(once(merge))

    gpu = next((device for device in devices if device.is_gpu), None)
    shared = Managed(gpu, total) if gpu else None

    def managed(times: int) -> None:
        common.at_once(*(lambda side=side: side.write(shared.on(side.device, "uint32"), turns, times) for side in sides))
        merge_seconds.append(0.0)

    def seen(name: str) -> Any:
        """What the first of the two has in the end."""
        with devices[0].use():
            if name == "bifolio.map":
                with mappings[0].acquired() as part:
                    return devices[0].host(devices[0].array(part, "uint32").copy())
            return devices[0].host(buffers[0]) if name == "private, merge" else shared.cpu.view("uint32").copy()

    ways: dict[str, Callable[[int], None]] = {"bifolio.map": mapped, "private, merge": private}
    if shared:
        ways["managed"] = managed
    numbers: dict[tuple[str, int], tuple[float, float, float]] = {}
    try:
        for times in options.times:
            for name, way in ways.items():
                merge_seconds.clear()

                def next_turns() -> None:
                    nonlocal turns
                    turns += times

                all_seconds = measure(lambda: way(times), options.repetitions, next_turns).median
                merged = float(numpy.median(merge_seconds[1:]))
                numbers[name, times] = (all_seconds - merged, merged, all_seconds)
                words = seen(name)
                for side in sides:
                    check((side.halves(words) == value(turns + times, side.half)).all(), f"{name}, {times} times, half {side.half}")
                if name == "bifolio.map":
                    home = turns + times
                results.row(name, times, *numbers[name, times])
        mappings[0].sync()
        last = numpy.fromfile(path, "uint32")
        for side in sides:
            check((side.halves(last) == value(home, side.half)).all(), f"the file, half {side.half}")
    finally:
        for mapping in mappings:
            mapping.close()
        path.unlink()
    most = options.times[-1]
    ratio = numbers["bifolio.map", most][2] / numbers["private, merge", most][2]
    results.figure(f"halves of every page, {most} times, beside private buffers and one merge", "within 5 %", f"{100 * (ratio - 1):+.1f} %")
    merge_us = numbers["bifolio.map", most][1] / (total / 4096) * 1e6
    results.figure("merge of a page of 4 KiB", "0.2 us (the paper: 1.4 us)", f"{merge_us:.3f} us, in the acquire that does it")
    if shared:
        slower = numbers["managed", most][2] / numbers["bifolio.map", most][2]
        results.figure(f"managed memory, {most} times", "the paper: up to 28 times private buffers", f"{slower:.1f} times bifolio.map")
    series = [(name, [numbers[name, times][2] * 1e3 for times in options.times]) for name in ways]
    labels = [str(times) for times in options.times]
    results.plots.append(common.plot.lines(f"Halves of every page, by {pair}", "times that each half is written", "milliseconds",
                                           labels, series, log=True))
    results.write()
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0", size="4M")
    parser.add_argument("--other", default="host:1", help="the one that writes the other halves")
    parser.add_argument("--times", type=lambda text: [int(number) for number in text.split(",")], default=[1, 4, 16],
                        help="how often each half is written")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
