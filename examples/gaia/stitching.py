#!/usr/bin/env python3
"""Two processors write interleaved columns of one image: figure 8 of the GAIA paper.

An input image is sharpened into an output image, both files, row by row. Columns are dealt out in stripes, to one
side and the other by turns, so that every page of the output has bytes of both. The filter runs several times, to
vary how often a page is written between its transfers. The two may be a GPU and a CPU process ("process"), which maps
both files and knows nothing of the cache; two GPUs; or hosts. The ways:

    bifolio.map     input and output are mapped; a release publishes what each has written, byte by byte
    private, merge  each writes an image of its own, and their columns are put together at the end
    router          the same, but a device's whole image goes into the file by `write_from`, and then the other's columns
    managed         both write one buffer of managed memory (UVM), which moves by pages; the CPU is a thread then
    CPU only        NumPy on one thread
"""

import contextlib
from typing import Any

import bifolio
import numpy

import common
import cpu
from common import Device, Managed, SharedMemory, check, measure
from results import Results

SOURCE = r"""
extern "C" __global__ void sharpen(const unsigned char* input, unsigned char* output, long long width, long long height,
                                   long long stripe, long long turn) {
    const long long stride = (long long)gridDim.x * blockDim.x, pairs = width / (2 * stripe);
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < pairs * stripe * height; i += stride) {
        const long long y = i / (pairs * stripe), own = i % (pairs * stripe);
        const long long x = (2 * (own / stripe) + turn) * stripe + own % stripe;
        const long long up = y > 0 ? y - 1 : y, down = y + 1 < height ? y + 1 : y;
        const long long left = x > 0 ? x - 1 : x, right = x + 1 < width ? x + 1 : x;
        const int sum = 5 * input[y * width + x] - input[up * width + x] - input[down * width + x] -
                        input[y * width + left] - input[y * width + right];
        output[y * width + x] = (unsigned char)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
}
"""


class Side:
    """One of the two, with its columns: a device, or the CPU process."""

    def __init__(self, name: str, turn: int, width: int, height: int, stripe: int) -> None:
        self.name, self.turn, self.is_process = name, turn, name == common.PROCESS
        self.device = Device("host:0" if self.is_process else name)
        self.width, self.height, self.stripe = width, height, stripe

    def columns(self, image: Any) -> Any:
        """Its columns of an image, as (rows, stripes, columns of a stripe)."""
        return cpu.columns(image, self.height, self.stripe, self.turn)

    def sharpen(self, source: Any, target: Any, times: int) -> None:
        """Writes its columns, all of them, several times."""
        if not self.device.is_gpu:
            cpu.sharpen(source, target, self.height, self.stripe, self.turn, times)
            return
        kernel, (grid, block) = self.device.kernel(SOURCE, "sharpen"), self.device.grid(self.width * self.height // 2)
        sizes = [numpy.int64(number) for number in (self.width, self.height, self.stripe, self.turn)]
        with self.device.use():
            for _ in range(times):
                kernel(grid, block, (source, target, *sizes))
        self.device.wait()


class Stitching:
    """Both images, and the ways to write the second. A way returns the seconds of each side."""

    def __init__(self, options: Any, closing: contextlib.ExitStack) -> None:
        self.width, self.height, self.stripe = options.width, options.height, options.stripe
        self.total = self.width * self.height
        self.sides = [Side(name, turn, self.width, self.height, self.stripe)
                      for turn, name in enumerate((options.device, options.other))]
        self.source, self.target = closing.enter_context(
            common.scratch_files(options.folder, "stitching-input", "stitching-output"))
        image = common.noise(self.total, options.seed).reshape(self.height, self.width)
        image.tofile(self.source)
        self.before = common.noise(self.total, options.seed + 1)
        self.before.tofile(self.target)
        self.wanted = numpy.concatenate([cpu.sharpened(image, top, min(top + cpu.ROWS, self.height))
                                         for top in range(0, self.height, cpu.ROWS)])
        devices = [side.device for side in self.sides]
        self.gpu = next((device for device in devices if device.is_gpu), None)
        self.process = closing.enter_context(cpu.Process()) if self.sides[1].is_process else None
        self.inputs, self.outputs = ([device.empty(self.total, "uint8") for device in devices] for _ in range(2))
        if self.process:
            # What the process writes privately is here as well, and a GPU could copy it by itself.
            self.shared = SharedMemory(devices[0], self.total)
            closing.callback(self.shared.close)
            self.process.do("open", name="shared", path=self.shared.path, store="mmap")
            self.process.do("open", name="input", path=str(self.source), store="read")
            self.outputs[1] = self.shared.array
        self.managed_memory = [Managed(self.gpu, self.total) for _ in range(2)] if self.gpu else []

    def empty_output(self) -> None:
        """The output is another image before: nothing is written where the same is already there."""
        with open(self.target, "r+b") as file:
            file.write(self.before.data)

    def check(self, name: str, times: int) -> None:
        got = numpy.fromfile(self.target, "uint8").reshape(self.height, self.width)
        check((got == self.wanted).all(), f"{name}, {times} runs: {(got != self.wanted).sum()} pixels")

    def by_process(self, target: str, times: int) -> None:
        assert self.process
        self.process.do("sharpen", source="input", target=target, height=self.height, stripe=self.stripe, turn=1, times=times)

    def mapped(self, times: int) -> list[float]:
        # The mappings of both are there until both have released: else one would write home what the other waits for.
        with contextlib.ExitStack() as closing:
            outputs = [None if side.is_process else
                       closing.enter_context(bifolio.map(self.target, writable=True, device=side.name)) for side in self.sides]
            if self.process:
                self.process.do("open", name="output", path=str(self.target), store="mmap")
                closing.callback(self.process.do, "shut", name="output")

            def work(side: Side) -> None:
                output = outputs[side.turn]
                if output is None:
                    self.by_process("output", times)
                    return
                with side.device.use(), bifolio.map(self.source, device=side.name) as input:
                    with input.acquired() as read, output.acquired() as written:
                        side.sharpen(side.device.array(read, "uint8"), side.device.array(written, "uint8"), times)

            return common.at_once(*(lambda side=side: work(side) for side in self.sides))

    def write_private(self, side: Side, times: int) -> None:
        """One side's columns, in memory of its own."""
        if side.is_process:
            self.by_process("shared", times)
            return
        with bifolio.open(self.source) as file, side.device.use():
            file.read_into(self.inputs[side.turn])
        side.sharpen(self.inputs[side.turn], self.outputs[side.turn], times)

    def columns_of(self, side: Side) -> Any:
        """Brought to host memory."""
        with side.device.use():
            return side.device.host(side.device.xp.ascontiguousarray(side.columns(self.outputs[side.turn])))

    def private(self, times: int) -> list[float]:
        merged = numpy.empty((self.height, self.width // (2 * self.stripe), 2, self.stripe), "uint8")

        def work(side: Side) -> None:
            self.write_private(side, times)
            merged[:, :, side.turn] = self.columns_of(side)

        seconds = common.at_once(*(lambda side=side: work(side) for side in self.sides))
        with open(self.target, "r+b") as file:
            file.write(merged.data)
        return seconds

    def routed(self, times: int) -> list[float]:
        seconds = common.at_once(*(lambda side=side: self.write_private(side, times) for side in self.sides))
        first, second = self.sides
        with bifolio.open(self.target, "r+") as file, first.device.use():
            file.write_from(self.outputs[0])
        second.columns(numpy.memmap(self.target, "uint8", "r+"))[:] = self.columns_of(second)
        return seconds

    def managed(self, times: int) -> list[float]:
        source, target = self.managed_memory
        with open(self.source, "rb", buffering=0) as file:
            common.read_fully(file, 0, source.cpu)

        def work(side: Side) -> None:
            side.sharpen(source.on(side.device, "uint8"), target.on(side.device, "uint8"), times)

        seconds = common.at_once(*(lambda side=side: work(side) for side in self.sides))
        with open(self.target, "r+b") as file:
            file.write(target.cpu.data)
        return seconds

    def cpu_only(self, times: int) -> list[float]:
        pixels, output = numpy.fromfile(self.source, "uint8"), numpy.empty(self.total, "uint8")
        for turn in range(2):
            cpu.sharpen(pixels, output, self.height, self.stripe, turn, times)
        with open(self.target, "r+b") as file:
            file.write(output.data)
        return [0.0, 0.0]


def run(options: Any) -> Results:
    common.need(options.width % (2 * options.stripe) == 0,
                f"the width is a multiple of two stripes, {2 * options.stripe}, and not {options.width}")
    common.need(options.device != options.other, f"two processors are needed, and not twice {options.device}")
    # Input, output, its twin, what was released and not written home; and some room.
    common.budget(options.budget or 4 * options.width * options.height + (64 << 20))
    pair = f"{options.device} and {'a CPU process' if options.other == common.PROCESS else options.other}"
    results = Results(
        "stitching",
        f"Interleaved columns of one image, by {pair}",
        f"Figure 8 of the GAIA paper: an image of {options.width} x {options.height} bytes is sharpened, in stripes of "
        f"{options.stripe} columns by turns. \"all\" is everything: the input comes from the page cache, and the output ends in "
        "the file (not durably). \"first\" and \"second\" are the times of the two until each has published what it wrote.",
        ("way", "filter runs", "first s", "second s", "all s", "GB/s"),
        options,
    )
    seconds: dict[tuple[str, int], float] = {}
    of_sides: dict[tuple[str, int], list[float]] = {}

    def summary() -> None:
        for times in options.runs:
            mine = seconds.get(("bifolio.map", times))
            for rival, wanted in (("managed", "below 1 (the paper: 0.76)"), ("private, merge", "-"), ("router", "-")):
                results.ratio(f"{times} filter runs", wanted, mine, seconds.get((rival, times)), rival)
            for side, paper in ((0, "the paper: 0.43 for its GPU"), (1, "the paper: 0.69 for its CPU")):
                mine, managed = (of_sides.get((name, times)) for name in ("bifolio.map", "managed"))
                results.ratio(f"{times} filter runs, the {('first', 'second')[side]} alone", paper, mine and mine[side],
                              managed and managed[side], "managed")
        names = ("bifolio.map", "private, merge", "router", "managed")
        series = [(name, [seconds.get((name, times)) for times in options.runs]) for name in names]
        results.lines(f"One image, written by {pair}", "runs of the filter", "seconds", list(map(str, options.runs)), series,
                      log=True)

    results.summary = summary
    with results, contextlib.ExitStack() as closing:
        stitching = Stitching(options, closing)
        ways = {"bifolio.map": stitching.mapped, "private, merge": stitching.private, "router": stitching.routed}
        if stitching.gpu:
            ways |= {"managed": stitching.managed, "CPU only": stitching.cpu_only}
        for times in options.runs:
            for name, way in ways.items():
                if name == "CPU only" and times != options.runs[0]:
                    continue
                sides: list[list[float]] = []
                repetitions = 1 if name == "CPU only" else options.repetitions
                measured = measure(lambda: sides.append(way(times)), repetitions, stitching.empty_output,
                                   lambda: stitching.check(name, times)).median
                seconds[name, times] = measured
                of_sides[name, times] = [float(numpy.median(column)) for column in zip(*sides[1:], strict=True)]
                results.row(name, times, *of_sides[name, times], measured, stitching.total / measured / 1e9)
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0", stripe="256")
    parser.add_argument("--other", type=common.other_name, default=common.PROCESS,
                        help="what writes the other columns: a device, or a CPU process (process)")
    parser.add_argument("--width", type=common.count, default=2048)
    parser.add_argument("--height", type=common.count, default=1024)
    parser.add_argument("--runs", type=common.counts, default=[1, 2, 4], help="how often the filter runs, several with commas")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
