#!/usr/bin/env python3
"""A collage from a data set that does not fit into the cache's budget: table 2 of the GAIA paper.

For each block of a picture the most similar tile is looked for among those of its bucket, which is that of its mean
colour: what is read of the data set depends on the picture, and is about a quarter. The ways:

    bifolio.map     a kernel finds the buckets, they are acquired as many at a time as the budget has room for, and a
                    kernel looks through them
    the same again  the same once more: what the budget has kept is there
    router          the buckets are read by `read_batch` into one buffer, as many at a time
    read, copy      the buckets are read by `pread` into page-locked memory, and copied
    managed         the whole data set is read into managed memory (UVM) before the kernel starts, as the paper does
    CPU only        NumPy on the mapped file, which is the oracle
    demand mode     the Rust example of the same name, on a data set of its own of the same size (--demand PROGRAM): there
                    kernels ask for the pages that they need (docs/demand.md)
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bifolio
import numpy

import common
from common import Device, Managed, check, measure, named
from results import Results

# A tile of 32 x 32 pixels of three bytes, in a record of a page.
PIXELS, RECORD = 3072, 4096
# Tiles of a bucket: 1 MiB, which lies together.
TILES = 256
BUCKET = TILES * RECORD

SOURCE = r"""
// The bucket of each block: its mean colour, in steps.
extern "C" __global__ void find_buckets(const unsigned char* blocks, int count, int steps, int buckets, int* found) {
    const int block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= count) return;
    long long sums[3] = {0, 0, 0};
    for (int i = 0; i < 3072; i++) sums[i % 3] += blocks[block * 3072LL + i];
    int bucket = 0;
    for (int colour = 0; colour < 3; colour++) bucket = bucket * steps + (int)(sums[colour] / 1024 * steps / 256);
    found[block] = bucket % buckets;
}

// The nearest tile of the block's bucket, which lies at this address: a thread block for each, a warp for a tile. Of
// equally near ones it is the first.
extern "C" __global__ void find_tiles(const unsigned long long* addresses, const int* chosen, const unsigned char* blocks,
                                      unsigned long long* best, unsigned char* pixels) {
    __shared__ unsigned long long nearest;
    const int block = chosen[blockIdx.x], lane = threadIdx.x % 32;
    const unsigned char* bucket = (const unsigned char*)addresses[blockIdx.x];
    const unsigned char* mine = blocks + block * 3072LL;
    if (threadIdx.x == 0) nearest = ~0ULL;
    __syncthreads();
    for (int tile = threadIdx.x / 32; tile < 256; tile += blockDim.x / 32) {
        const unsigned char* other = bucket + tile * 4096LL;
        unsigned distance = 0;
        for (int i = lane; i < 3072; i += 32) distance += abs(mine[i] - other[i]);
        for (int step = 16; step > 0; step /= 2) distance += __shfl_down_sync(0xffffffffu, distance, step);
        if (lane == 0) atomicMin(&nearest, (unsigned long long)distance << 32 | tile);
    }
    __syncthreads();
    const unsigned char* tile = bucket + (nearest & 0xffffffffu) * 4096;
    for (int i = threadIdx.x; i < 3072; i += blockDim.x) pixels[block * 3072LL + i] = tile[i];
    if (threadIdx.x == 0) best[block] = nearest;
}
"""


class DataSet:
    """Tiles in buckets of like colour, and pictures that need a quarter of them."""

    def __init__(self, path: Path, total: int, seed: int) -> None:
        self.path, self.total, self.buckets = path, total, total // BUCKET
        self.steps = 1
        while self.steps**3 < self.buckets:
            self.steps += 1
        self.random = numpy.random.default_rng(seed)
        grain = self.random.integers(0, 256, (TILES, RECORD), "uint8")
        grain[:, :PIXELS] %= self.spread()
        with open(path, "wb") as file:
            for bucket in range(self.buckets):
                # Tiles differ from bucket to bucket in their colour, and in which of them is which.
                tiles = numpy.roll(grain, bucket * 37, axis=0)
                tiles[:, :PIXELS] += numpy.tile(self.lowest(bucket), PIXELS // 3)
                file.write(tiles.data)

    def spread(self) -> int:
        """How far the colours of a bucket lie apart."""
        return max(1, 256 // self.steps)

    def lowest(self, bucket: int) -> Any:
        """The darkest colour of a bucket."""
        parts = numpy.array([bucket // self.steps**2, bucket // self.steps % self.steps, bucket % self.steps])
        return -(-parts * 256 // self.steps).astype("uint8")

    def picture(self, blocks: int) -> Any:
        """Blocks whose colours are those of a quarter of the buckets, at random."""
        quarter = self.random.permutation(self.buckets)[: max(1, self.buckets // 4)]
        found = self.random.integers(0, self.spread(), (blocks, PIXELS), "uint8")
        lowest = numpy.stack([self.lowest(bucket) for bucket in quarter])
        return found + numpy.tile(lowest[self.random.integers(0, len(quarter), blocks)], PIXELS // 3)


def buckets_of(blocks: Any, steps: int, buckets: int) -> Any:
    """The oracle's `find_buckets`."""
    means = blocks.reshape(len(blocks), -1, 3).sum(axis=1, dtype="int64") // (PIXELS // 3) * steps // 256
    return ((means[:, 0] * steps + means[:, 1]) * steps + means[:, 2]) % buckets


def find_tiles(bucket: Any, blocks: Any, chosen: Any, best: Any, pixels: Any) -> None:
    """The oracle's, of one bucket."""
    tiles = bucket.reshape(TILES, RECORD)[:, :PIXELS].astype("int16")
    for block in chosen:
        distances = numpy.abs(tiles - blocks[block]).sum(axis=1, dtype="uint64")
        nearest = int(distances.argmin())
        best[block] = distances[nearest] << numpy.uint64(32) | numpy.uint64(nearest)
        pixels[block] = tiles[nearest]


class Search:
    """A picture on a device, its buckets, and what has been found."""

    def __init__(self, device: Device, data: DataSet, blocks: Any) -> None:
        self.device, self.data, self.count = device, data, len(blocks)
        self.blocks = device.upload(blocks)
        self.best, self.pixels = device.empty(self.count, "uint64"), device.empty(blocks.size, "uint8").reshape(blocks.shape)

    def start(self) -> None:
        """Finds the buckets; nothing of an earlier run is left."""
        with self.device.use():
            self.best[:], self.pixels[:] = 0x5A, 0x5A
            if self.device.is_gpu:
                found = self.device.empty(self.count, "int32")
                arguments = (self.blocks, *map(numpy.int32, (self.count, self.data.steps, self.data.buckets)), found)
                self.device.kernel(SOURCE, "find_buckets")((-(-self.count // 128),), (128,), arguments)
                buckets = self.device.host(found)
            else:
                buckets = buckets_of(self.blocks, self.data.steps, self.data.buckets)
        order = numpy.argsort(buckets, kind="stable")
        self.needed, starts = numpy.unique(buckets[order], return_index=True)
        self.chosen = numpy.split(order.astype("int32"), starts[1:])

    def look(self, numbers: Any, buckets: list[Any]) -> None:
        """Looks through some of the needed buckets, which are arrays of the device."""
        chosen = [self.chosen[number] for number in numbers]
        if not self.device.is_gpu:
            for bucket, blocks in zip(buckets, chosen, strict=True):
                find_tiles(bucket, self.blocks, blocks, self.best, self.pixels)
            return
        with self.device.use():
            addresses = numpy.array([bucket.data.ptr for bucket in buckets], "uint64")
            addresses = self.device.upload(numpy.repeat(addresses, [len(blocks) for blocks in chosen]))
            blocks = self.device.upload(numpy.concatenate(chosen))
            arguments = (addresses, blocks, self.blocks, self.best, self.pixels)
            self.device.kernel(SOURCE, "find_tiles")((int(blocks.size),), (256,), arguments)
        self.device.wait()

    def batches(self, bytes: int) -> Iterator[Any]:
        """Numbers of needed buckets, as many at a time as fit."""
        step = max(1, bytes // BUCKET)
        for start in range(0, len(self.needed), step):
            yield numpy.arange(start, min(start + step, len(self.needed)))

    def result(self) -> tuple[Any, Any]:
        with self.device.use():
            return self.device.host(self.best).copy(), self.device.host(self.pixels).copy()


def split(memory: Any) -> list[Any]:
    """Buckets that lie side by side."""
    return [memory[at : at + BUCKET] for at in range(0, memory.size, BUCKET)]


class Ways:
    """How the buckets get to the device."""

    def __init__(self, device: Device, data: DataSet, budget: int, closing: contextlib.ExitStack) -> None:
        self.device, self.data = device, data
        # Frames are larger than buckets: of what is acquired only a part is of use.
        self.room = max(BUCKET, budget // 8 // BUCKET * BUCKET)
        self.buffer, self.plain = device.empty(self.room, "uint8"), common.Plain(device, self.room)
        self.memory = Managed(device, data.total) if device.is_gpu else None
        self.file = closing.enter_context(bifolio.open(data.path))
        self.plain_file = closing.enter_context(open(data.path, "rb", buffering=0))
        self.mapping: bifolio.Mapping | None = None
        closing.callback(self.close)

    def close(self) -> None:
        if self.mapping:
            self.mapping.close()
            self.mapping = None

    def open(self) -> None:
        """A mapping that has nothing yet."""
        self.close()
        self.mapping = bifolio.map(self.data.path, device=self.device.name)
        # What comes next is not what lies behind.
        self.mapping.advise("random")

    def mapped(self, search: Search) -> None:
        assert self.mapping
        for numbers in search.batches(self.room):
            starts = search.needed[numbers].astype("int64") * BUCKET
            buckets: list[Any] = []
            with contextlib.ExitStack() as acquired, self.device.use():
                # What lies side by side is acquired as one.
                for run in numpy.split(starts, numpy.flatnonzero(numpy.diff(starts) != BUCKET) + 1):
                    part = acquired.enter_context(self.mapping.acquired(int(run[0]), len(run) * BUCKET))
                    buckets += split(self.device.array(part, "uint8"))
                search.look(numbers, buckets)
            # They keep the memory for as long as they are there.
            del part
            buckets.clear()

    def routed(self, search: Search) -> None:
        for numbers in search.batches(self.room):
            extents = [(int(bucket) * BUCKET, BUCKET, at * BUCKET) for at, bucket in enumerate(search.needed[numbers])]
            with self.device.use():
                self.file.read_batch(self.buffer, extents)
            search.look(numbers, split(self.buffer[: len(numbers) * BUCKET]))

    def copied(self, search: Search) -> None:
        for numbers in search.batches(self.room):
            for at, bucket in enumerate(search.needed[numbers]):
                place = self.plain.host[at * BUCKET : (at + 1) * BUCKET]
                common.read_fully(self.plain_file, int(bucket) * BUCKET, place)
            search.look(numbers, split(self.plain.upload(len(numbers) * BUCKET)))

    def managed(self, search: Search) -> None:
        common.read_fully(self.plain_file, 0, self.memory.cpu[: self.data.total])
        memory = self.memory.on(self.device, "uint8")
        for numbers in search.batches(self.data.total):
            search.look(numbers, [memory[bucket * BUCKET : (bucket + 1) * BUCKET] for bucket in map(int, search.needed[numbers])])

    def on_host(self, search: Search) -> None:
        # Mapped anew each time: pages of a mapping stay in the page cache.
        memory = numpy.memmap(self.data.path, "uint8", "r")
        for numbers in search.batches(self.data.total):
            search.look(numbers, [memory[bucket * BUCKET : (bucket + 1) * BUCKET] for bucket in map(int, search.needed[numbers])])


def by_demand(options: Any, state: str, results: Results) -> float | None:
    """The Rust example's numbers; None without it."""
    if options.demand is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".json") as numbers:
        sizes = [f"{options.size / (1 << 30)}", "--budget", f"{options.budget / (1 << 30)}", "--seed", f"{options.seed}"]
        words = [options.demand, options.device, options.folder, *sizes, "--rounds", f"{options.repetitions}"]
        words += ["--json", numbers.name] + (["--cold"] if state == "cold" else [])
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{options.demand}: {done.stderr.strip()}")
        seconds = json.load(open(numbers.name))["demand"]["seconds"]
    results.row("demand mode", state, seconds, "")
    return float(seconds)


def run(options: Any) -> Results:
    device = Device(options.device)
    common.need(options.size % BUCKET == 0 and options.size >= 8 * BUCKET,
                f"the data set has 8 buckets of {named(BUCKET)} at least, and whole ones: not {named(options.size)}")
    common.need(options.budget < options.size,
                f"the data set ({named(options.size)}) is larger than the budget ({named(options.budget)})")
    common.budget(options.budget)
    results = Results(
        "collage",
        "A collage from a data set that does not fit",
        f"Table 2 of the GAIA paper: {options.blocks} blocks of a picture, for each of which the nearest of {TILES} tiles is looked "
        f"for in one of {options.size // BUCKET} buckets of {named(BUCKET)}. The data set has {named(options.size)}, the cache "
        f"{named(options.budget)} on the device, and a quarter of the buckets is needed.",
        ("way", "state", "seconds", "needed MB"),
        options,
    )
    seconds: dict[tuple[str, str], float | None] = {}

    def summary() -> None:
        for state in ("cold", "warm"):
            mine = seconds.get(("bifolio.map", state))
            for rival, wanted in (("managed", "below 1 (the paper: 1/9 and 1/6)"), ("router", "-"), ("read, copy", "-")):
                results.ratio(f"collage, {state}", wanted, mine, seconds.get((rival, state)), rival)
        names = ("bifolio.map", "the same again", "router", "read, copy", "managed", "CPU only", "demand mode")
        groups = [(state, [seconds.get((name, state)) for name in names]) for state in ("cold", "warm")]
        results.bars("A collage", "seconds", groups, names, log=True)

    results.summary = summary
    with results, contextlib.ExitStack() as closing:
        (path,) = closing.enter_context(common.scratch_files(options.folder, "collage"))
        data = DataSet(path, options.size, options.seed)
        picture = data.picture(options.blocks)
        ways = Ways(device, data, options.budget, closing)
        oracle, search = Search(Device("host:0"), data, picture), Search(device, data, picture)
        oracle.start()
        ways.on_host(oracle)
        wanted = oracle.result()

        def time_it(name: str, state: str, found: Search, way: Callable[[Search], None], before: Callable[[], None]) -> None:
            def once() -> None:
                found.start()
                way(found)

            def verify() -> None:
                best, pixels = found.result()
                wrong = int(((best != wanted[0]) | (pixels != wanted[1]).any(axis=1)).sum())
                check(wrong == 0, f"{name}, {state}: {wrong} of {options.blocks} tiles")

            repetitions = 1 if name == "CPU only" else options.repetitions
            seconds[name, state] = measure(once, repetitions, before, verify).median
            results.row(name, state, seconds[name, state], len(found.needed) * BUCKET / 1e6)

        for state in ("cold", "warm"):
            common.warm(path)
            clean = (lambda: common.evict(path)) if state == "cold" else common.nothing

            def anew() -> None:
                ways.open()
                clean()

            time_it("bifolio.map", state, search, ways.mapped, anew)
            time_it("the same again", state, search, ways.mapped, clean)
            ways.close()
            time_it("router", state, search, ways.routed, clean)
            time_it("read, copy", state, search, ways.copied, clean)
            if device.is_gpu:
                time_it("managed", state, search, ways.managed, clean)
            time_it("CPU only", state, oracle, ways.on_host, clean)
            seconds["demand mode", state] = by_demand(options, state, results)
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", size="32M", budget="8M")
    parser.add_argument("--blocks", type=common.count, default=256, help="blocks of the picture")
    parser.add_argument("--demand", type=Path, help="the Rust example collage, to run it as well")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
