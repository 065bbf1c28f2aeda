#!/usr/bin/env python3
"""Two devices write interleaved columns of one image: figure 8 of the GAIA paper.

An input image is sharpened into an output image, both files, row by row. Columns are dealt out in stripes, to one
device and the other by turns, so that every page of the output has bytes of both. The filter runs several times,
to vary how often a page is written between its transfers. The two devices may be a GPU and the CPU ("host:N"),
two GPUs, or two hosts. The ways:

    bifolio.map     both map input and output; a release publishes what each has written, byte by byte
    private, merge  each writes an image of its own, and their columns are put together at the end
    managed         both write one buffer of managed memory (UVM), which moves by pages
    CPU only        NumPy on one thread
"""

from collections.abc import Callable
from typing import Any

import bifolio
import numpy

import common
from common import Device, Managed, Results, check, measure, named

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

# Rows that NumPy sharpens at a time.
ROWS = 64


def sharpened(image: Any, top: int, bottom: int) -> Any:
    """Some rows of the sharpened image."""
    height, width = image.shape
    rows = numpy.clip(numpy.arange(top - 1, bottom + 1), 0, height - 1)
    part = image[rows].astype("int16")
    sides = numpy.pad(part[1:-1], ((0, 0), (1, 1)), mode="edge")
    return numpy.clip(5 * part[1:-1] - part[:-2] - part[2:] - sides[:, :-2] - sides[:, 2:], 0, 255).astype("uint8")


class Side:
    """One of the two devices, with its columns."""

    def __init__(self, device: Device, turn: int, width: int, height: int, stripe: int) -> None:
        self.device, self.turn, self.width, self.height, self.stripe = device, turn, width, height, stripe

    def columns(self, image: Any) -> Any:
        """Its columns of an image, as (rows, stripes, columns of a stripe)."""
        return image.reshape(self.height, -1, 2, self.stripe)[:, :, self.turn]

    def sharpen(self, source: Any, target: Any, times: int) -> None:
        """Writes its columns, all of them, several times."""
        if self.device.is_gpu:
            kernel, (grid, block) = self.device.kernel(SOURCE, "sharpen"), self.device.grid(self.width * self.height // 2)
            sizes = [numpy.int64(number) for number in (self.width, self.height, self.stripe, self.turn)]
            with self.device.use():
                for _ in range(times):
                    kernel(grid, block, (source, target, *sizes))
            self.device.wait()
            return
        image, place = source.reshape(self.height, self.width), self.columns(target)
        for _ in range(times):
            for top in range(0, self.height, ROWS):
                bottom = min(top + ROWS, self.height)
                rows = sharpened(image, top, bottom).reshape(bottom - top, -1, 2, self.stripe)
                place[top:bottom] = rows[:, :, self.turn]


def run(options: Any) -> Results:
    devices = [Device(options.device), Device(options.other)]
    width, height, stripe = options.width, options.height, options.stripe
    check(width % (2 * stripe) == 0, f"the width is a multiple of {2 * stripe}, two stripes")
    sides = [Side(device, turn, width, height, stripe) for turn, device in enumerate(devices)]
    total = width * height
    options.folder.mkdir(parents=True, exist_ok=True)
    source, target = (options.folder / f"gaia-stitching-{name}" for name in ("input", "output"))
    image = numpy.random.default_rng(options.seed).integers(0, 256, (height, width), "uint8")
    source.write_bytes(image.tobytes())
    wanted = numpy.concatenate([sharpened(image, top, min(top + ROWS, height)) for top in range(0, height, ROWS)])
    # Input, output, its twin, what was released and not written home; and some room.
    common.budget(options.budget or 4 * total + (64 << 20))
    pair = f"{options.device} and {options.other}"
    results = Results(
        "stitching",
        f"Interleaved columns of one image, by {pair}",
        f"Figure 8 of the GAIA paper: an image of {width} x {height} bytes is sharpened, in stripes of {stripe} columns by turns. "
        "The whole is measured: the input comes from the page cache, and the output ends in the file (not durably).",
        ("way", "filter runs", "seconds", "GB/s"),
        options,
    )

    def empty_output() -> None:
        with open(target, "wb") as file:
            file.truncate(total)

    def mapped(times: int) -> None:
        # The mappings of both are there until both have released: else one would write home what the other waits for.
        with bifolio.map(target, writable=True, device=devices[0].name) as one, \
                bifolio.map(target, writable=True, device=devices[1].name) as other:

            def work(side: Side, output: bifolio.Mapping) -> None:
                with side.device.use(), bifolio.map(source, device=side.device.name) as input:
                    with input.acquired() as read, output.acquired() as written:
                        side.sharpen(side.device.array(read, "uint8"), side.device.array(written, "uint8"), times)

            common.at_once(lambda: work(sides[0], one), lambda: work(sides[1], other))

    def columns_of(side: Side, buffer: Any) -> Any:
        with side.device.use():
            return side.device.host(side.device.xp.ascontiguousarray(side.columns(buffer)))

    inputs = [device.empty(total, "uint8") for device in devices]
    outputs = [device.empty(total, "uint8") for device in devices]

    def private(times: int) -> None:
        merged = numpy.empty((height, width // (2 * stripe), 2, stripe), "uint8")

        def work(side: Side) -> None:
            with bifolio.open(source) as file:
                file.read_into(inputs[side.turn])
            side.sharpen(inputs[side.turn], outputs[side.turn], times)
            merged[:, :, side.turn] = columns_of(side, outputs[side.turn])

        common.at_once(lambda: work(sides[0]), lambda: work(sides[1]))
        with open(target, "r+b") as file:
            file.write(merged.data)

    gpu = next((device for device in devices if device.is_gpu), None)
    shared = [Managed(gpu, total) for _ in range(2)] if gpu else []

    def managed(times: int) -> None:
        with open(source, "rb", buffering=0) as file:
            common.read_fully(file, 0, shared[0].cpu)

        def work(side: Side) -> None:
            side.sharpen(shared[0].on(side.device, "uint8"), shared[1].on(side.device, "uint8"), times)

        common.at_once(lambda: work(sides[0]), lambda: work(sides[1]))
        with open(target, "r+b") as file:
            file.write(shared[1].cpu.data)

    def cpu_only(times: int) -> None:
        pixels = numpy.fromfile(source, "uint8")
        output = numpy.empty(total, "uint8")
        for turn in range(2):
            Side(Device("host:0"), turn, width, height, stripe).sharpen(pixels, output, times)
        with open(target, "r+b") as file:
            file.write(output.data)

    ways: dict[str, Callable[[int], None]] = {"bifolio.map": mapped, "private, merge": private}
    if gpu:
        ways |= {"managed": managed, "CPU only": cpu_only}
    seconds: dict[tuple[str, int], float] = {}
    try:
        for times in options.runs:
            for name, way in ways.items():
                if name == "CPU only" and times != options.runs[0]:
                    continue
                repetitions = 1 if name == "CPU only" else options.repetitions
                measured = measure(lambda: way(times), repetitions, empty_output)
                got = numpy.fromfile(target, "uint8").reshape(height, width)
                check((got == wanted).all(), f"{name}, {times} runs: {(got != wanted).sum()} pixels")
                seconds[name, times] = measured.median
                results.row(name, times, measured.median, total / measured.median / 1e9)
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
    most = options.runs[-1]
    results.figure(f"{most} filter runs, beside private buffers and a merge", "no slower",
                   f"{seconds['bifolio.map', most] / seconds['private, merge', most]:.2f} of their time")
    if gpu:
        results.figure(f"{most} filter runs, beside managed memory", "2.3 times as fast for the GPU, in the paper",
                       f"{seconds['managed', most] / seconds['bifolio.map', most]:.2f} times as fast as a whole")
    names = [name for name in ways if name != "CPU only"]
    series = [(name, [seconds[name, times] for times in options.runs]) for name in names]
    labels = [str(times) for times in options.runs]
    results.plots.append(common.plot.lines(f"One image, written by {pair}", "runs of the filter", "seconds", labels, series, log=True))
    results.write()
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0", stripe="256")
    parser.add_argument("--other", default="host:1", help="the device of the other columns")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--height", type=int, default=1024)
    parser.add_argument("--runs", type=lambda text: [int(number) for number in text.split(",")], default=[1, 2, 4],
                        help="how often the filter runs")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
