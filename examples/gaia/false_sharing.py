#!/usr/bin/env python3
"""Two processors write disjoint halves of every page: figure 1 and the false-sharing experiment of the GAIA paper.

Each reads, modifies and writes its half of all pages of one buffer, turn by turn, so that every byte changes in every
turn and from the start of a run to its end. At the end the first has the other's halves (the first merge) and then
the other the first's (the second). The two may be a GPU and a CPU process ("process"), which stores into a mapping of
the file or writes to it and knows nothing of the cache; two GPUs; or hosts. The ways:

    bifolio.map     both have the file mapped, and acquire what the other has released
    bifolio mount   the same through the daemon's cache, and the CPU process has the file open on a mount (`--mount`): it
                    sees what the other has released without a call, and nobody compares the file
    private, merge  each has a buffer of its own, and takes the other's halves out of a copy of the other's
    router          the same, but what the other has comes through a file, by `write_from` and `read_into`
    managed         both write one buffer of managed memory (UVM), which moves by pages; the CPU is a thread then, as
                    no other process sees managed memory, and nothing is merged
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bifolio
import numpy

import common
import cpu
from common import Device, Managed, SharedMemory, check, measure, named
from results import Results

SOURCE = r"""
__device__ unsigned mark(unsigned turn) {
    unsigned word = 0;
    for (unsigned byte = 0; byte < 4; byte++) word |= (turn * (byte + 2) + 17 * byte) % 251 << 8 * byte;
    return word;
}

// Reads, modifies and writes its half of every page of 4 KiB, turn by turn (`flip` of cpu.py).
extern "C" __global__ void flip_half(volatile unsigned* words, unsigned long long count, unsigned half, unsigned after,
                                     unsigned times) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned turn = after + 1; turn <= after + times; turn++) {
        const unsigned mask = mark(turn) ^ mark(turn - 1);
        unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i < count / 2; i += stride) words[i / 512 * 1024 + half * 512 + i % 512] ^= mask;
    }
}
"""

# After so many turns a byte may be what it was.
PERIOD = 251


class Side:
    """One of the two, with its halves: a device, or the CPU process."""

    def __init__(self, name: str, half: int) -> None:
        self.name, self.half, self.is_process = name, half, name == common.PROCESS
        self.device = Device("host:0" if self.is_process else name)

    def flip(self, words: Any, after: int, times: int) -> None:
        """So many turns, which follow that one."""
        if not self.device.is_gpu:
            cpu.flip(words, self.half, after, times)
            return
        with self.device.use():
            grid, block = self.device.grid(words.size // 2)
            arguments = (words, numpy.uint64(words.size), numpy.uint32(self.half), numpy.uint32(after), numpy.uint32(times))
            self.device.kernel(SOURCE, "flip_half")(grid, block, arguments)
        self.device.wait()

    def copy_half(self, into: Any, source: Any, half: int) -> None:
        """Takes one half of every page out of memory of the same device."""
        with self.device.use():
            cpu.halves(into, half)[:] = cpu.halves(source, half)
        self.device.wait()


class Way:
    """How the two share the buffer: memory of each, what one takes from the other, and what each sees in the end."""

    name, needs_process = "", True

    def __init__(self, sides: list[Side], total: int, store: str, places: tuple[Path, Path | None], seed: int) -> None:
        self.sides, self.total, self.store, (self.folder, self.mount) = sides, total, store, places
        self.initial = common.noise(total, seed).view("uint32")
        # No run writes what an earlier one has left: a store of the same value is no change.
        self.turn = 0
        self.closing = contextlib.ExitStack()
        self.process = self.closing.enter_context(cpu.Process()) if sides[1].is_process and self.needs_process else None
        with self.closing:
            self.set_up()
            self.closing = self.closing.pop_all()

    def set_up(self) -> None:
        """Memory with the initial content."""

    def write(self, side: Side, after: int, times: int) -> None:
        """The turns of one side, and what it needs to publish them."""

    def merge(self, side: Side) -> None:
        """One side takes the other's halves."""

    def seen(self, side: Side) -> Any:
        """What a side has after its merge."""

    def run(self, times: int) -> tuple[float, float, float]:
        """Seconds of writing, and of the two merges."""
        after, self.turn = self.turn, self.turn + times
        started = time.perf_counter()
        common.at_once(*(lambda side=side: self.write(side, after, times) for side in self.sides))
        written = time.perf_counter()
        self.merge(self.sides[0])
        merged = time.perf_counter()
        self.merge(self.sides[1])
        return written - started, merged - written, time.perf_counter() - merged

    def check(self, words: Any, who: str) -> None:
        wanted = self.initial ^ numpy.uint32(cpu.mark(self.turn) ^ cpu.mark(0))
        wrong = int((words != wanted).sum())
        check(wrong == 0, f"{self.name}: {who} has {wrong} of {wanted.size} words of {named(self.total)} that are wrong "
                          f"after turn {self.turn}")

    def verify(self) -> None:
        for side in self.sides:
            self.check(self.seen(side), side.name)

    def verify_file(self) -> None:
        """Where there is a file, it has everything too."""

    def file(self, name: str) -> Path:
        """A file with the initial content, which is removed at the end."""
        (path,) = self.closing.enter_context(common.scratch_files(self.folder, f"false-sharing-{name}"))
        self.initial.tofile(path)
        return path

    def by_process(self, after: int, times: int) -> None:
        assert self.process
        self.process.do("flip", name=self.name, half=1, after=after, times=times)

    def close(self) -> None:
        self.closing.close()


class Mapped(Way):
    name = "bifolio.map"

    def set_up(self) -> None:
        self.path = self.file("mapped")
        self.mappings = {side.half: bifolio.map(self.path, writable=True, device=side.name)
                         for side in self.sides if not side.is_process}
        self.views = {}
        for half, mapping in self.mappings.items():
            self.closing.callback(mapping.close)
            with self.sides[half].device.use():
                mapping.acquire()
                # It keeps the memory in place; a kernel writes to it between an acquire and its release.
                self.views[half] = self.sides[half].device.array(mapping, "uint32")
                mapping.release()
        if self.process:
            self.host = numpy.empty(self.total, "uint8")
            self.process.do("open", name=self.name, path=str(self.path), store=self.store)

    def write(self, side: Side, after: int, times: int) -> None:
        if side.is_process:
            self.by_process(after, times)
            return
        with side.device.use():
            self.mappings[side.half].acquire()
            side.flip(self.views[side.half], after, times)
            self.mappings[side.half].release()

    def merge(self, side: Side) -> None:
        if side.is_process:
            # A CPU reads through the cache: of this process, as the other knows nothing of it.
            self.mappings[0].read_into(self.host)
            return
        with side.device.use():
            self.mappings[side.half].acquire()
            self.mappings[side.half].release()

    def seen(self, side: Side) -> Any:
        if side.is_process:
            return self.host.view("uint32")
        with side.device.use(), self.mappings[side.half].acquired() as part:
            return side.device.host(side.device.array(part, "uint32").copy())

    def verify_file(self) -> None:
        self.mappings[0].sync()
        self.check(numpy.fromfile(self.path, "uint32"), "the file")
        if self.process:
            wanted = int((self.initial ^ numpy.uint32(cpu.mark(self.turn) ^ cpu.mark(0))).sum(dtype="uint64"))
            check(self.store == "write" or self.process.do("look", name=self.name) == wanted, "the process sees another file")

    def close(self) -> None:
        self.views.clear()
        super().close()


class Mounted(Mapped):
    """Through the daemon's cache; the CPU process works on a mount of the folder, where it is told of what was released."""

    name = "bifolio mount"

    def set_up(self) -> None:
        assert self.process and self.mount
        # A name that a mount has not seen lately: it learns within a second what happens beside it.
        self.path = self.file(f"mounted-{os.getpid()}-{self.total}")
        self.shown = self.mount / self.path.name
        common.need(self.shown.exists(), f"{self.mount} does not show {self.folder}: mount it there, by `bifolio mount`")
        (first, _) = self.sides
        self.mappings = {first.half: bifolio.map(self.path, writable=True, device=first.name, shared=True)}
        self.closing.callback(self.mappings[first.half].close)
        with first.device.use():
            self.mappings[first.half].acquire()
            self.views = {first.half: first.device.array(self.mappings[first.half], "uint32")}
            self.mappings[first.half].release()
        self.process.do("open", name=self.name, path=str(self.shown), store=self.store)

    def merge(self, side: Side) -> None:
        if side.is_process:
            assert self.process
            self.sum = self.process.do("take", name=self.name)
            return
        super().merge(side)

    def seen(self, side: Side) -> Any:
        return numpy.fromfile(self.shown, "uint32") if side.is_process else super().seen(side)

    def verify(self) -> None:
        super().verify()
        wanted = int((self.initial ^ numpy.uint32(cpu.mark(self.turn) ^ cpu.mark(0))).sum(dtype="uint64"))
        check(self.sum == wanted, f"{self.name}: the process has not seen what was released")


class Private(Way):
    name = "private, merge"

    def set_up(self) -> None:
        self.buffers, self.scratch = {}, {}
        for side in self.sides:
            if side.is_process:
                self.shared = SharedMemory(self.sides[0].device, self.total)
                self.closing.callback(self.shared.close)
                self.shared.array.view("uint32")[:] = self.initial
                assert self.process
                self.process.do("open", name=self.name, path=self.shared.path, store="mmap")
                # Page-locked as well, where a GPU copies to it.
                self.merged = SharedMemory(self.sides[0].device, self.total)
                self.closing.callback(self.merged.close)
            else:
                self.buffers[side.half] = side.device.upload(self.initial.copy())
                self.scratch[side.half] = side.device.empty(self.initial.size, "uint32")

    def write(self, side: Side, after: int, times: int) -> None:
        if side.is_process:
            self.by_process(after, times)
        else:
            side.flip(self.buffers[side.half], after, times)

    def merge(self, side: Side) -> None:
        other = self.sides[1 - side.half]
        if side.is_process:
            # The first has everything.
            with other.device.use():
                self.download(other, self.merged.array.view("uint32"))
            return
        with side.device.use():
            if other.is_process:
                self.upload(side, self.shared.array.view("uint32"))
                side.copy_half(self.buffers[side.half], self.scratch[side.half], other.half)
                return
        with other.device.use():
            theirs = other.device.xp.ascontiguousarray(cpu.halves(self.buffers[other.half], other.half))
            # CuPy copies between GPUs directly.
            if other.device.is_gpu and not side.device.is_gpu:
                theirs = other.device.host(theirs)
            other.device.wait()
        with side.device.use():
            cpu.halves(self.buffers[side.half], other.half)[:] = side.device.upload(theirs)
        side.device.wait()

    def upload(self, side: Side, words: Any) -> None:
        """All of the other's, into the scratch memory: one long copy is faster than gathering halves first."""
        if side.device.is_gpu:
            self.scratch[side.half].set(words)
        else:
            self.scratch[side.half][:] = words

    def download(self, side: Side, words: Any) -> None:
        if side.device.is_gpu:
            self.buffers[side.half].get(out=words)
        else:
            words[:] = self.buffers[side.half]

    def seen(self, side: Side) -> Any:
        if side.is_process:
            return self.merged.array.view("uint32").copy()
        with side.device.use():
            return side.device.host(self.buffers[side.half]).copy()


class Routed(Private):
    name = "router"

    def set_up(self) -> None:
        self.buffers, self.scratch = {}, {}
        # Of each side one, which the other reads.
        self.paths = [self.file("first"), self.file("second")]
        self.files = [self.closing.enter_context(bifolio.open(path, "r+")) for path in self.paths]
        for side in self.sides:
            if side.is_process:
                assert self.process
                self.process.do("open", name=self.name, path=str(self.paths[1]), store=self.store)
            else:
                self.buffers[side.half] = side.device.upload(self.initial.copy())
                self.scratch[side.half] = side.device.empty(self.initial.size, "uint32")

    def merge(self, side: Side) -> None:
        other = self.sides[1 - side.half]
        if not other.is_process:
            with other.device.use():
                self.files[other.half].write_from(self.buffers[other.half].view("uint8"))
        if not side.is_process:
            with side.device.use():
                self.files[other.half].read_into(self.scratch[side.half].view("uint8"))
                side.copy_half(self.buffers[side.half], self.scratch[side.half], other.half)

    def seen(self, side: Side) -> Any:
        return numpy.fromfile(self.paths[0], "uint32") if side.is_process else super().seen(side)


class Shared(Way):
    name, needs_process = "managed", False

    def set_up(self) -> None:
        gpu = next(side.device for side in self.sides if side.device.is_gpu)
        self.memory = Managed(gpu, self.total)
        self.memory.cpu.view("uint32")[:] = self.initial

    def write(self, side: Side, after: int, times: int) -> None:
        side.flip(self.memory.on(side.device, "uint32"), after, times)

    def seen(self, side: Side) -> Any:
        return self.memory.cpu.view("uint32").copy()


def ways(sides: list[Side], has_mount: bool) -> list[type[Way]]:
    return [Mapped] + ([Mounted] if has_mount else []) + [Private, Routed] + ([Shared] if any(side.device.is_gpu for side in sides) else [])


@contextlib.contextmanager
def prepared(sides: list[Side], total: int, store: str, places: tuple[Path, Path | None], seed: int) -> Iterator[dict[str, Way]]:
    """All ways, each with memory of its own."""
    with contextlib.ExitStack() as closing:
        made = {}
        for kind in ways(sides, places[1] is not None):
            made[kind.name] = kind(sides, total, store, places, seed)
            closing.callback(made[kind.name].close)
        yield made


def run(options: Any) -> Results:
    sides = [Side(options.device, 0), Side(options.other, 1)]
    for total in options.sizes:
        common.need(total % 4096 == 0 and total > 0, f"a size is a number of pages of 4 KiB, and not {named(total)}")
    for times in options.times:
        common.need(times % PERIOD,
                    f"after {times} turns the bytes are what they were: choose a count that {PERIOD} does not divide")
    common.need(options.mount is None or sides[1].is_process, "a mount is for a CPU process: choose --other process")
    common.need(options.device != options.other, f"two processors are needed, and not twice {options.device}")
    common.budget(options.budget or 4 * max(options.sizes) + (64 << 20))
    has_process = sides[1].is_process
    pair = f"{options.device} and {'a CPU process' if has_process else options.other}"
    stores = f" The process stores by {options.store}." if has_process else ""
    results = Results(
        "false-sharing",
        f"Disjoint halves of every page, by {pair}",
        "The false-sharing experiment of the GAIA paper (figure 1, and its evaluation in section 6.2): one buffer, of whose pages "
        "of 4 KiB each of the two reads, modifies and writes one half, so many turns. Every byte changes. In the first merge "
        f"{options.device} gets the other's halves, in the second the other gets its.{stores}",
        ("way", "buffer", "turns", "writing s", "first merge s", "second merge s", "all s"),
        options,
    )
    numbers: dict[tuple[str, int, int], tuple[float, float, float, float]] = {}

    def one_merge(name: str, total: int, times: int) -> float | None:
        found = numbers.get((name, total, times))
        return found and found[0] + found[1]

    def two_merges(name: str, total: int, times: int) -> float | None:
        found = numbers.get((name, total, times))
        return found and found[3]

    def summary() -> None:
        for total in options.sizes:
            for times in options.times:
                turns = f"halves of every page, {named(total)}, {'once' if times == 1 else f'{times} times'}"
                if has_process:
                    wanted, count, seconds = ("at most 1.3" if times >= 64 else "-"), "a merge", one_merge
                else:
                    wanted = {1: "at most 1.5", 256: "at most 1.2"}.get(times, "-") if total == 64 << 20 else "-"
                    count, seconds = "two merges", two_merges
                mine = seconds("bifolio.map", total, times)
                results.ratio(turns, wanted, mine, seconds("private, merge", total, times), f"private buffers and {count}")
                results.ratio(turns, "-", mine, seconds("router", total, times), "router")
                wanted = "below 1" if not has_process or times >= 16 else "-"
                results.ratio(turns, wanted, mine, seconds("managed", total, times), "managed")
                mounted = seconds("bifolio mount", total, times)
                results.ratio(f"{turns}, on a mount", "-", mounted, mine, "bifolio.map")
                results.ratio(f"{turns}, on a mount", "-", mounted, seconds("private, merge", total, times),
                              f"private buffers and {count}")
                results.ratio(f"{turns}, in managed memory", "the paper: up to 28 (figure 1)", seconds("managed", total, times),
                              one_merge("private, merge", total, times), "private, merge")
            times = options.times[0]
            merges = [numbers[key][1] for key in [("bifolio.map", total, times)] if key in numbers]
            if merges:
                is_figure = total == 64 << 20 and sides[1].device.is_gpu
                wanted = "at most 0.4 ms between two GPUs" if is_figure else "the paper: 1.4 us"
                results.figure(f"the first merge of {named(total)}", wanted, f"{merges[0] * 1e3:.3f} ms, "
                               f"{merges[0] * 1e6 * 4096 / total:.3f} us for a page of 4 KiB")
            names = [name for name in (kind.name for kind in ways(sides, options.mount is not None)) if (name, total, times) in numbers]
            series = [(name, [numbers.get((name, total, count), [None] * 4)[3] for count in options.times]) for name in names]
            series = [(name, [point and point * 1e3 for point in points]) for name, points in series]
            results.lines(f"Halves of every page of {named(total)}, by {pair}", "turns", "milliseconds",
                          list(map(str, options.times)), series, log=True)

    results.summary = summary
    with results:
        for total in options.sizes:
            with prepared(sides, total, options.store, (options.folder, options.mount), options.seed) as made:
                for times in options.times:
                    for name, way in made.items():
                        phases: list[tuple[float, float, float]] = []
                        seconds = measure(lambda: phases.append(way.run(times)), options.repetitions, verify=way.verify)
                        medians = [float(numpy.median(column)) for column in zip(*phases[1:], strict=True)]
                        numbers[name, total, times] = (*medians, seconds.median)
                        results.row(name, named(total), times, *numbers[name, total, times])
                for way in made.values():
                    way.verify_file()
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0", sizes="64K,1M")
    parser.add_argument("--other", type=common.other_name, default=common.PROCESS,
                        help="what writes the other halves: a device, or a CPU process (process)")
    parser.add_argument("--store", choices=["mmap", "write"], default="mmap", help="how the process stores")
    parser.add_argument("--mount", type=Path, help="where `bifolio mount` shows the folder, beside a daemon with the device: the "
                        "process also works there")
    parser.add_argument("--times", type=common.counts, default=[1, 4, 16], help="turns of each half, several with commas")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
