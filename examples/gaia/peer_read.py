#!/usr/bin/env python3
"""A CPU reads, through the cache, what a device holds and the page cache does not: figure 5 of the GAIA paper.

The operating system's page cache is emptied before every run, and the CPU reads in requests of several sizes, in
order or at random, while the disk is idle or busy with another process's reads. The ways:

    released        the device has released changes of every byte, which nobody has flushed: only it has the bytes
    held            the device has the bytes, and so has the disk
    pread, cold     the same requests from the disk
    router          the device's memory is written to the file by `write_from`, and read by `pread`
    copied          no file: each request is copied from the device's memory
    managed         no file: the device has written managed memory (UVM), from which the CPU reads

A second part is what all this costs CPU I/O on a file that no device has: by `pread` and `pwrite`, while a device
holds another file and while none does; and through the cache, beside `pread` and `pwrite`.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import bifolio
import numpy

import common
import cpu
from common import Device, Managed, Times, check, measure, named
from results import Results

SHARES = (0, 25, 50, 75, 100)
# Requests of a run: of small ones, a part of the file is read.
REQUESTS = 4096
# The paper's requests of CPU I/O.
IO_REQUEST = 256 << 10
# Runs of which one is compared with another: what is looked for is one percent.
PAIRS = 9
BUSY_THREADS, BUSY_REQUEST = 4, 256 << 10
FRAME = 2 << 20
# What a device holds while CPUs use another file.
HELD = 64 << 20


class Reads:
    """The file, what a device has of it, and the ways to read it."""

    def __init__(self, options: Any, path: Any) -> None:
        self.device, self.path, self.total = Device(options.device), path, options.size
        # What a run has to read.
        self.content = common.noise(self.total, options.seed)
        self.content.tofile(path)
        self.turn, self.random = 0, numpy.random.default_rng(options.seed)
        self.into = numpy.empty(self.total, "uint8")
        self.lent = memoryview(self.into)
        self.mapping: bifolio.Mapping | None = None
        self.buffer = self.device.empty(self.total, "uint8")
        self.managed = Managed(self.device, self.total) if self.device.is_gpu else None

    def order(self, request: int, order: str) -> list[int]:
        """Offsets of a run."""
        offsets = numpy.arange(0, min(self.total, REQUESTS * request), request)
        return (self.random.permutation(offsets) if order == "at random" else offsets).tolist()

    def close(self) -> None:
        """What was released reaches the file."""
        if self.mapping:
            self.mapping.close()
            self.mapping = None

    def hold(self, held: int, is_changed: bool) -> None:
        """The device has the first bytes; changed, every byte becomes another and is released."""
        self.mapping = bifolio.map(self.path, writable=True, device=self.device.name)
        if held:
            with self.device.use(), self.mapping.acquired(0, held) as part:
                if is_changed:
                    self.change(self.content[:held].view("uint32"), self.device.array(part, "uint32"))
            del part

    def change(self, *arrays: Any) -> None:
        """Every byte becomes another."""
        self.turn += 1
        for array in arrays:
            array ^= numpy.uint32(cpu.mark(self.turn) ^ cpu.mark(self.turn - 1))
        self.device.wait()

    def prepare(self, way: str, held: int) -> None:
        """The device has the first bytes, and the page cache none."""
        self.close()
        if way in ("held", "released"):
            self.hold(held, way == "released")
        elif way in ("copied", "router"):
            if way == "router":
                self.change(self.content[:held].view("uint32"))
            with self.device.use():
                self.buffer[:] = self.device.upload(self.content)
            self.device.wait()
        elif way == "managed":
            self.managed.cpu[:] = self.content
            with self.device.use():
                # There and back, so that the device has the pages.
                self.change(self.managed.cpu.view("uint32"), self.managed.on(self.device, "uint32"))
        if way not in ("copied", "managed"):
            common.evict(self.path)
        self.into[:] = 0xA5

    def by_pread(self, offsets: list[int], request: int) -> None:
        file = os.open(self.path, os.O_RDONLY)
        for offset in offsets:
            os.preadv(file, [self.lent[offset : offset + request]], offset)
        os.close(file)

    def by_cache(self, offsets: list[int], request: int) -> None:
        mapping = self.mapping
        for offset in offsets:
            mapping.read_into(self.lent[offset : offset + request], offset)

    def routed(self, offsets: list[int], request: int) -> None:
        with bifolio.open(self.path, "r+") as file, self.device.use():
            file.write_from(self.buffer[: len(offsets) * request])
        self.by_pread(offsets, request)

    def copied(self, offsets: list[int], request: int) -> None:
        with self.device.use():
            for offset in offsets:
                part = self.buffer[offset : offset + request]
                if self.device.is_gpu:
                    part.get(out=self.into[offset : offset + request])
                else:
                    self.into[offset : offset + request] = part

    def by_managed(self, offsets: list[int], request: int) -> None:
        for offset in offsets:
            self.into[offset : offset + request] = self.managed.cpu[offset : offset + request]

    def ways(self) -> dict[str, Callable[[list[int], int], None]]:
        found = {"released": self.by_cache, "held": self.by_cache, "pread, cold": self.by_pread, "router": self.routed,
                 "copied": self.copied}
        return found | ({"managed": self.by_managed} if self.managed else {})

    def check(self, offsets: list[int], request: int, way: str) -> None:
        length = len(offsets) * request
        wrong = int((self.into[:length] != self.content[:length]).sum())
        check(wrong == 0, f"{way}, requests of {named(request)}: {wrong} bytes of {length}")


def paired(first: Callable[[], Any], second: Callable[[], Any], before: tuple[Callable[[], Any], Callable[[], Any]],
           pairs: int) -> tuple[Times, Times]:
    """Runs both by turns, so that what disturbs the machine for a while disturbs both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs + 1):
        # Who is second is no better off.
        for which in (0, 1) if number % 2 else (1, 0):
            before[which]()
            # What `before` did to the processor's caches is not what is looked for.
            (first, second)[which]()
            seconds[which].append(common.seconds_of((first, second)[which]))
    return Times(seconds[0][1:]), Times(seconds[1][1:])


def cpu_io(options: Any, reads: Reads, results: Results, path: Any) -> None:
    """What it costs to read and write a file that no device has."""
    total, request = options.size, min(IO_REQUEST, options.size)
    content = common.noise(total, options.seed + 1)
    content.tofile(path)
    lent, got = memoryview(content), reads.into
    file = os.open(path, os.O_RDWR)
    random = reads.random.permutation(numpy.arange(0, total, request)).tolist()
    orders = {"in order": sorted(random), "at random": random}

    def read(offsets: list[int]) -> None:
        for offset in offsets:
            os.preadv(file, [reads.lent[offset : offset + request]], offset)

    def write(offsets: list[int]) -> None:
        for offset in offsets:
            os.pwrite(file, lent[offset : offset + request], offset)

    def compare(name: str, rival: str, order: str, works: Any, before: Any) -> None:
        got[:] = 0xA5
        one, other = paired(*works, before, PAIRS if options.repetitions > 1 else 1)
        check((numpy.fromfile(path, "uint8") == content).all(), f"{name}, {order}: the file has changed")
        check("write" in name or (got == content).all(), f"{name}, {order}: what was read is not in the file")
        for way, times in ((name, one), (rival, other)):
            results.row(way, named(request), order, "warm", "", times.median, total / times.median / 1e9)
        results.figure(f"CPU I/O on a file that no device has: {name}, {order}", "within 1 %",
                       f"{100 * (one.median / other.median - 1):+.1f} % (the best of each: "
                       f"{100 * (one.best / other.best - 1):+.1f} %)")

    def held() -> None:
        if reads.mapping is None:
            reads.hold(min(HELD, reads.total), True)

    try:
        for order, offsets in orders.items():
            for name, work in (("pread", read), ("pwrite", write)):
                compare(f"{name}, a device holds another file", f"{name}, no device holds a file", order,
                        (lambda: work(offsets), lambda: work(offsets)), (held, reads.close))
            reads.close()
            with bifolio.map(path, writable=True, device=options.device) as mapping:

                def read_mapped() -> None:
                    for offset in offsets:
                        mapping.read_into(reads.lent[offset : offset + request], offset)

                def write_mapped() -> None:
                    for offset in offsets:
                        mapping.write_from(lent[offset : offset + request], offset)

                nothing = (common.nothing, common.nothing)
                compare("read through the cache", "pread", order, (read_mapped, lambda: read(offsets)), nothing)
                compare("write through the cache", "pwrite", order, (write_mapped, lambda: write(offsets)), nothing)
    finally:
        os.close(file)


def run(options: Any) -> Results:
    largest = max(options.requests)
    common.need(options.size % largest == 0 and options.size >= FRAME and options.size % FRAME == 0,
                f"the size is a multiple of 2M and of the largest request, {named(largest)}, and not {named(options.size)}")
    common.need(all(request and largest % request == 0 and request % 8 == 0 for request in options.requests),
                f"requests are parts of the largest, {named(largest)}, and of 8 bytes at least")
    common.budget(options.budget or 4 * options.size + (64 << 20))
    options.requests.sort()
    middle = options.requests[len(options.requests) // 2]
    results = Results(
        "peer-read",
        f"A CPU reads what {options.device} has cached",
        f"Figure 5 of the GAIA paper: a file of {named(options.size)}, of which a run reads at most {REQUESTS} requests, with an "
        "empty page cache. \"Released\" bytes are on the device alone, nobody has flushed them; \"held\" ones are on the disk as "
        f"well. The busy disk serves {BUSY_THREADS} threads of another process, which read {named(BUSY_REQUEST)} at random.",
        ("way", "request", "order", "disk", "held %", "seconds", "GB/s"),
        options,
    )
    rates: dict[tuple[str, int, str, str, int], float] = {}

    def summary() -> None:
        for request in options.requests:
            for order in ("in order", "at random"):
                for disk in ("idle", "busy"):
                    released = rates.get(("released", request, order, disk, 100))
                    cold = rates.get(("pread, cold", request, order, disk, 100))
                    if released and cold:
                        wanted = "at least 3" if request >= 64 << 10 else "at least 1"
                        results.figure(f"released and read by a CPU, {named(request)}, {order}, {disk} disk", wanted,
                                       f"{released / cold:.2f} times a cold read")
        for order in ("in order", "at random"):
            series = [(way, [rates.get((way, request, order, "idle", 100)) for request in options.requests])
                      for way in ("released", "held", "pread, cold", "router", "copied", "managed")]
            results.lines(f"A CPU reads {order} what {options.device} has", "request", "GB/s", list(map(named, options.requests)),
                          series, log=True)
        series = [(f"{way}, {order}", [rates.get((way, middle, order, "idle", share)) for share in SHARES])
                  for way in ("released", "held") for order in ("in order", "at random")]
        results.lines(f"Requests of {named(middle)}", f"percent of the file on {options.device}", "GB/s", list(map(str, SHARES)),
                      series)

    results.summary = summary
    with results, contextlib.ExitStack() as closing:
        path, busy, plain = closing.enter_context(common.scratch_files(options.folder, "peer", "peer-busy", "peer-plain"))
        reads = Reads(options, path)
        closing.callback(reads.close)
        other = closing.enter_context(cpu.Process())
        common.noise_file(busy, max(options.size, BUSY_REQUEST), options.seed)
        common.evict(busy)

        def one(way: str, request: int, order: str, disk: str, share: int) -> None:
            offsets = reads.order(request, order)
            length = len(offsets) * request
            held = length // 100 * share // FRAME * FRAME if share < 100 else length
            work = reads.ways()[way]
            times = measure(lambda: work(offsets, request), options.repetitions, lambda: reads.prepare(way, held),
                            lambda: reads.check(offsets, request, way))
            rates[way, request, order, disk, share] = length / times.median / 1e9
            results.row(way, named(request), order, disk, share, times.median, length / times.median / 1e9)

        for disk in ("idle", "busy"):
            if disk == "busy":
                other.do("keep_busy", path=str(busy), request=BUSY_REQUEST, threads=BUSY_THREADS)
            for request in options.requests:
                for order in ("in order", "at random"):
                    for way in reads.ways():
                        one(way, request, order, disk, 100)
        results.figure("reads of the other process on the busy disk", "-", f"{other.do('stop_busy') / 1e9:.2f} GB/s")
        for share in SHARES[:-1]:
            for order in ("in order", "at random"):
                for way in ("released", "held"):
                    one(way, middle, order, "idle", share)
        cpu_io(options, reads, results, plain)
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0", size="16M", requests="4K,64K,1M")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
