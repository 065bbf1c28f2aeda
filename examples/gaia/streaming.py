#!/usr/bin/env python3
"""A kernel reads a whole file: figure 6 of the GAIA paper.

Three kernels: one that only reads, an LU factorisation of small tiles, and cuBLAS' SGEMM with the file as its
left matrix (on a host the same by NumPy). Two files, one smaller and one larger than the budget of the cache.
The ways to get the file to the kernel, window by window:

    bifolio.map     the file is mapped, and a window is acquired while the kernel is on it; what comes next is brought ahead
    no readahead    the same, after `advise("random")`
    one acquire     all of the file is acquired, and then the kernel runs; where it fits into the budget
    read_into       `bifolio.open().read_into` copies the file every time
    read, copy      `pread` into page-locked memory, and a copy
    managed         `pread` into managed memory (UVM), which the kernel reads
    CPU only        no device: NumPy on the mapped file
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bifolio
import numpy

import common
from common import Device, Managed, Plain, check, measure, named, windows
from results import Results

SOURCE = r"""
extern "C" __global__ void add_up(const unsigned long long* words, unsigned long long count, unsigned long long* sum) {
    unsigned long long mine = 0;
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        mine += words[i];
    for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(0xffffffffu, mine, step);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}

// A warp for each tile of 32 x 32 numbers, a lane for each of its columns. The diagonal is made dominant, so
// that no pivot is needed. What is left is the sum of the diagonals of U.
extern "C" __global__ void factorise(const float* numbers, unsigned long long tiles, double* sum) {
    __shared__ float shared[4][32][33];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float (*a)[33] = shared[warp];
    double mine = 0;
    const unsigned long long stride = (unsigned long long)gridDim.x * 4;
    for (unsigned long long tile = (unsigned long long)blockIdx.x * 4 + warp; tile < tiles; tile += stride) {
        const float* from = numbers + tile * 1024;
        for (unsigned row = 0; row < 32; row++) a[row][lane] = from[row * 32 + lane] + (row == lane ? 32.0f : 0.0f);
        __syncwarp();
        for (unsigned k = 0; k < 31; k++) {
            const float pivot = a[k][k], above = a[k][lane];
            for (unsigned row = k + 1; row < 32; row++) {
                const float factor = a[row][k] / pivot;
                if (lane > k) a[row][lane] -= factor * above;
            }
            __syncwarp();
        }
        mine += a[lane][lane];
        __syncwarp();
    }
    for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(0xffffffffu, mine, step);
    if (lane == 0) atomicAdd(sum, mine);
}
"""

TILE = 32
# Numbers in a row of the file as a matrix, and columns of what it is multiplied with.
ROW = 1024
FRAME = 2 << 20


class AddUp:
    """Reads every word, and computes nothing but their sum."""

    name, tolerance = "read only", 0.0

    def __init__(self, device: Device) -> None:
        self.device, self.sum = device, device.empty(1, "uint64")

    def start(self) -> None:
        self.sum[:] = 0

    def feed(self, floats: Any) -> None:
        words = floats.view("uint64")
        if self.device.is_gpu:
            kernel = self.device.kernel(SOURCE, "add_up")
            kernel(*self.device.grid(words.size), (words, numpy.uint64(words.size), self.sum))
        else:
            self.sum += words.sum(dtype="uint64")

    def result(self) -> float:
        return int(self.device.host(self.sum)[0])


class Factorise:
    """LU of tiles of 32 x 32: much to compute for every byte."""

    name, tolerance = "LU", 1e-5

    def __init__(self, device: Device) -> None:
        self.device, self.sum = device, device.empty(1, "float64")

    def start(self) -> None:
        self.sum[:] = 0

    def feed(self, floats: Any) -> None:
        tiles = floats.size // TILE**2
        if self.device.is_gpu:
            kernel = self.device.kernel(SOURCE, "factorise")
            kernel(*self.device.grid(tiles * 32, 128), (floats, numpy.uint64(tiles), self.sum))
            return
        a = floats[: tiles * TILE**2].reshape(tiles, TILE, TILE).copy()
        diagonal = numpy.arange(TILE)
        a[:, diagonal, diagonal] += TILE
        for k in range(TILE - 1):
            factors = a[:, k + 1 :, k] / a[:, k, k, None]
            a[:, k + 1 :, k + 1 :] -= factors[:, :, None] * a[:, k, None, k + 1 :]
        self.sum += a[:, diagonal, diagonal].sum(dtype="float64")

    def result(self) -> float:
        return float(self.device.host(self.sum)[0])


class Multiply:
    """SGEMM of a library that knows nothing of files: cuBLAS by CuPy, or NumPy's."""

    name, tolerance = "SGEMM", 1e-4

    def __init__(self, device: Device) -> None:
        self.device, self.sum = device, device.empty(1, "float64")
        self.right = device.upload(numpy.random.default_rng(7).random((ROW, ROW), numpy.float32))

    def start(self) -> None:
        self.sum[:] = 0

    def feed(self, floats: Any) -> None:
        rows = floats.size // ROW
        product = self.device.xp.matmul(floats[: rows * ROW].reshape(rows, ROW), self.right)
        self.sum += product.sum(dtype="float64")

    def result(self) -> float:
        return float(self.device.host(self.sum)[0])


KERNELS: list[Callable[[Device], Any]] = [AddUp, Factorise, Multiply]


def expected_sum(path: Path, kernel: type) -> float | None:
    """What a kernel leaves, by another way; None where that takes too long."""
    data = numpy.memmap(path, "float32", "r")
    if kernel is AddUp:
        return int(data.view("uint64").sum(dtype="uint64"))
    if kernel is Multiply:
        # The sum of a product is that of the left's columns times the right's rows.
        right = numpy.random.default_rng(7).random((ROW, ROW), numpy.float32).sum(axis=1, dtype="float64")
        columns = sum(data[at // 4 : (at + length) // 4].reshape(-1, ROW).sum(axis=0, dtype="float64")
                      for at, length in windows(data.nbytes, 64 << 20))
        return float(columns @ right)
    return None


def check_tiles(device: Device, path: Path) -> None:
    """The LU kernel against LAPACK-free elimination in float64, on the first tiles."""
    first = numpy.fromfile(path, "float32", 64 * TILE**2)
    kernel = Factorise(device)
    kernel.start()
    with device.use():
        kernel.feed(device.upload(first))
    wanted = 0.0
    for tile in first.astype("float64").reshape(-1, TILE, TILE):
        a = tile + TILE * numpy.eye(TILE)
        for k in range(TILE - 1):
            a[k + 1 :] -= numpy.outer(a[k + 1 :, k] / a[k, k], a[k])
        wanted += numpy.trace(a)
    check(abs(kernel.result() - wanted) <= 1e-4 * abs(wanted), f"LU: {kernel.result()} is not {wanted}")


def ways(device: Device, path: Path, total: int, window: int) -> dict[str, Callable[[Callable[[Any], None]], None]]:
    """How the file gets to the kernel; each is called with what takes a window."""

    def through(feed: Callable[[Any], None], length: int, advice: str = "normal") -> None:
        with bifolio.map(path, device=device.name) as mapping:
            mapping.advise(advice)
            for offset, length in windows(total, length):
                with mapping.acquired(offset, length) as part:
                    feed(device.array(part, "float32"))
                # It keeps the window's memory for as long as it is there.
                del part

    target = device.empty(window, "uint8")

    def read_into(feed: Callable[[Any], None]) -> None:
        with bifolio.open(path) as file:
            for offset, length in windows(total, window):
                file.read_into(target[:length], offset)
                feed(target[:length].view("float32"))
                device.wait()

    plain = Plain(device, window)

    def read_copy(feed: Callable[[Any], None]) -> None:
        with open(path, "rb", buffering=0) as file:
            for offset, length in windows(total, window):
                feed(plain.read(file, offset, length).view("float32"))
                device.wait()

    shared = Managed(device, window)

    def managed(feed: Callable[[Any], None]) -> None:
        with open(path, "rb", buffering=0) as file:
            for offset, length in windows(total, window):
                common.read_fully(file, offset, shared.cpu[:length])
                feed(shared.on(device, "float32")[: length // 4])
                device.wait()

    found = {
        "bifolio.map": lambda feed: through(feed, window),
        "no readahead": lambda feed: through(feed, window, "random"),
        "one acquire": lambda feed: through(feed, total),
        "read_into": read_into,
        "read, copy": read_copy,
        "managed": managed,
    }
    return {name: way for name, way in found.items() if device.is_gpu or name != "managed"}


def ways_of(kernel: type, is_smaller: bool, is_widest: bool) -> list[str]:
    """What is of interest: all of it by the widest windows, and by others what only reads."""
    if kernel is not AddUp:
        return ["bifolio.map", "read_into", "read, copy", "managed"] if is_widest else []
    names = ["bifolio.map", "no readahead", "one acquire", "read_into", "read, copy", "managed"]
    return [name for name in names if name != "one acquire" or (is_smaller and is_widest)]


Key = tuple[str, str, int, int, str]


def run(options: Any) -> Results:
    device = Device(options.device)
    common.need(all(window % (4 * ROW * TILE) == 0 and window for window in options.windows + [options.small, options.large]),
                f"files and windows are multiples of {named(4 * ROW * TILE)}, which the kernels take together")
    common.need(options.small <= options.budget < options.large, "the budget lies between the sizes of the two files")
    options.windows.sort()
    common.need(max(options.windows[-1], FRAME) <= options.budget,
                f"the budget ({named(options.budget)}) has room for the widest window and for {named(FRAME)}, in which memory is "
                "mapped")
    common.budget(options.budget)
    widest = options.windows[-1]
    results = Results(
        "streaming",
        "Streaming read of a mapped file",
        f"Figure 6 of the GAIA paper: kernels read a file of {named(options.small)} and one of {named(options.large)}; the "
        f"cache has {named(options.budget)} on the device. \"again\" is the second pass over what the device has cached.",
        ("way", "kernel", "file", "window", "state", "seconds", "GB/s"),
        options,
    )
    # GB/s by way, kernel, file, window and state.
    rates: dict[Key, float] = {}

    def rate(way: str, file: int, state: str = "warm", kernel: str = AddUp.name, window: int = widest) -> float | None:
        return rates.get((way, kernel, file, window, state))

    def note(key: Key, seconds: float) -> None:
        rates[key] = key[2] / seconds / 1e9
        results.row(*key[:2], named(key[2]), named(key[3]), key[4], seconds, rates[key])

    def time_it(key: Key, kernel: Any, work: Callable[[], None], before: Callable[[], None], wanted: list[float]) -> None:
        def once() -> None:
            kernel.start()
            with device.use():
                work()
            device.wait()

        def verify() -> None:
            got = kernel.result()
            # Of a kernel without an oracle for all of a file, all ways leave the same.
            wanted.extend([] if wanted else [got])
            check(abs(got - wanted[0]) <= kernel.tolerance * abs(wanted[0]), f"{key[0]}, {key[1]}: {got}, not {wanted[0]}")

        note(key, measure(once, options.repetitions, before, verify).median)

    def on_cpu(make: Any, path: Path, total: int, state: str, prepare: Callable[[], None], wanted: list[float]) -> None:
        kernel = make(Device("host:0"))

        def work() -> None:
            kernel.start()
            # Mapped anew each time: pages of a mapping stay in the page cache.
            data = numpy.memmap(path, "float32", "r")
            for at, length in windows(total, widest):
                kernel.feed(data[at // 4 : (at + length) // 4])

        def verify() -> None:
            got = kernel.result()
            check(abs(got - wanted[0]) <= kernel.tolerance * abs(wanted[0]), f"CPU only, {kernel.name}: {got}, not {wanted[0]}")

        note(("CPU only", kernel.name, total, widest, state), measure(work, 1, prepare, verify).median)

    def again(make: Any, path: Path, total: int, wanted: list[float]) -> None:
        kernel = make(device)
        with bifolio.map(path, device=device.name) as mapping, mapping.acquired() as part:
            array = device.array(part, "float32")

            def work() -> None:
                with mapping.acquired():
                    kernel.feed(array)

            time_it(("bifolio.map", kernel.name, total, widest, "again"), kernel, work, common.nothing, wanted)
            del array
        del part

    def one_file(path: Path, total: int) -> None:
        check_tiles(device, path)
        for make in KERNELS:
            sums = expected_sum(path, make)
            wanted = [] if sums is None else [sums]
            for state in ("cold", "warm") if make is AddUp else ("warm",):
                prepare = (lambda: common.evict(path)) if state == "cold" else common.nothing
                for window in options.windows:
                    found, is_widest = ways(device, path, total, min(window, total)), window == widest
                    if state == "cold" and not is_widest:
                        continue
                    common.warm(path)
                    for name in ways_of(make, total <= options.budget, is_widest):
                        if name in found:
                            kernel = make(device)
                            work = found[name]
                            time_it((name, kernel.name, total, window, state), kernel, lambda: work(kernel.feed), prepare, wanted)
                if device.is_gpu and (make is not Factorise or total <= 64 << 20):
                    on_cpu(make, path, total, state, prepare, wanted)
            if total <= options.budget:
                again(make, path, total, wanted)

    def summary() -> None:
        small, large = options.small, options.large
        mapped, copied = rate("bifolio.map", small), rate("read_into", small)
        if mapped and copied:
            results.figure("streaming read, warm, smaller than the budget", "at least 48 GB/s, on an H200",
                           f"{mapped:.1f} GB/s by windows of {named(widest)} (the plain copy {copied:.1f})")
        if mapped and (whole := rate("one acquire", small)):
            results.figure(f"windows of {named(widest)} beside one acquire", "within 5 %", f"{100 * (mapped / whole - 1):+.1f} %")
        if mapped and (without := rate("no readahead", small)):
            results.figure("readahead", "-", f"{mapped / without:.2f} times as fast as without")
        if (mapped := rate("bifolio.map", large)) and (copied := rate("read_into", large)):
            results.figure("streaming read, warm, larger than the budget", "as the plain copy",
                           f"{mapped:.1f} GB/s (the plain copy {copied:.1f})")
        names = ("bifolio.map", "read_into", "read, copy", "managed", "CPU only")
        for title, kernels in (("A kernel that only reads", [AddUp]), ("Kernels that compute", [Factorise, Multiply])):
            groups = []
            for kernel, file, state in ((kernel, file, state) for kernel in kernels for file in (small, large)
                                        for state in ("cold", "warm", "again")):
                label = f"{kernel.name + ', ' if len(kernels) > 1 else ''}{named(file)} {state}"
                groups.append((label, [rate(name, file, state, kernel.name) for name in names]))
            results.bars(title, "GB/s of file", groups, names, log=True)
        if len(options.windows) > 1:
            series = [(name, [rate(name, small, window=window) for window in options.windows])
                      for name in ("bifolio.map", "no readahead", "read_into")]
            results.lines("Windows, warm, smaller than the budget", "window", "GB/s of file", list(map(named, options.windows)), series)

    results.summary = summary
    with results:
        for total in (options.small, options.large):
            with common.scratch_files(options.folder, f"streaming-{named(total)}") as (path,):
                common.float_file(path, total, options.seed)
                one_file(path, total)
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", small="16M", large="96M", budget="64M", windows="4M,16M")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
