#!/usr/bin/env python3
"""A kernel reads a whole file: figure 6 of the GAIA paper.

Three kernels: one that only reads, an LU factorisation of small tiles, and cuBLAS' SGEMM with the file as its
left matrix (on a host the same by NumPy). Two files, one smaller and one larger than the budget of the cache.
The ways to get the file to the kernel, window by window:

    bifolio.map     the file is mapped, and a window is acquired while the kernel is on it
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
from common import Device, Managed, Plain, Results, check, measure, named, windows

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

    def mapped(feed: Callable[[Any], None]) -> None:
        with bifolio.map(path, device=device.name) as mapping:
            through(mapping, feed)

    def through(mapping: bifolio.Mapping, feed: Callable[[Any], None]) -> None:
        for offset, length in windows(total, window):
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

    found = {"bifolio.map": mapped, "read_into": read_into, "read, copy": read_copy, "managed": managed}
    return {name: way for name, way in found.items() if device.is_gpu or name != "managed"}


def run(options: Any) -> Results:
    device = Device(options.device)
    common.budget(options.budget)
    results = Results(
        "streaming",
        "Streaming read of a mapped file",
        f"Figure 6 of the GAIA paper: kernels read a file of {named(options.small)} and one of {named(options.large)}; the "
        f"cache has {named(options.budget)} on the device, windows are of {named(options.window)}. "
        "\"again\" is the second pass over what the device has cached.",
        ("way", "kernel", "file", "state", "seconds", "GB/s"),
        options,
    )
    rates: dict[tuple[str, int, str, str], float] = {}

    def time_it(way: str, kernel: Any, file: int, state: str, work: Callable[[], None], before: Callable[[], None],
                wanted: float | None) -> None:
        def once() -> None:
            kernel.start()
            with device.use():
                work()
            device.wait()

        times = measure(once, options.repetitions, before)
        if wanted is not None:
            allowed = kernel.tolerance * abs(wanted)
            check(abs(kernel.result() - wanted) <= allowed, f"{way}, {kernel.name}: {kernel.result()}, not {wanted}")
        rates[way, file, state, kernel.name] = file / times.median / 1e9
        results.row(way, kernel.name, named(file), state, times.median, file / times.median / 1e9)

    options.folder.mkdir(parents=True, exist_ok=True)
    for total in (options.small, options.large):
        path = common.float_file(options.folder / f"gaia-streaming-{named(total)}", total, options.seed)
        try:
            found = ways(device, path, total, min(options.window, total))
            check_tiles(device, path)
            for make in KERNELS:
                kernel, wanted = make(device), expected_sum(path, make)
                for state in ("cold", "warm") if make is AddUp else ("warm",):
                    common.warm(path)
                    prepare = (lambda: common.evict(path)) if state == "cold" else (lambda: None)
                    for name, way in found.items():
                        time_it(name, kernel, total, state, lambda: way(kernel.feed), prepare, wanted)
                        # Of a kernel without an oracle all ways leave the same.
                        wanted = kernel.result() if wanted is None else wanted
                    if device.is_gpu and (make is not Factorise or total <= 64 << 20):
                        cpu = make(Device("host:0"))

                        def on_cpu() -> None:
                            # Mapped anew each time: pages of a mapping stay in the page cache.
                            data = numpy.memmap(path, "float32", "r")
                            for at, length in windows(total, options.window):
                                cpu.feed(data[at // 4 : (at + length) // 4])

                        times = measure(on_cpu, 1, prepare)
                        rates["CPU only", total, state, kernel.name] = total / times.median / 1e9
                        results.row("CPU only", kernel.name, named(total), state, times.median, total / times.median / 1e9)
                if total <= options.budget:
                    with bifolio.map(path, device=device.name) as mapping, mapping.acquired() as part:
                        array = device.array(part, "float32")

                        def again() -> None:
                            with mapping.acquired():
                                kernel.feed(array)

                        time_it("bifolio.map", kernel, total, "again", again, lambda: None, wanted)
                        del array
                    del part
        finally:
            path.unlink()
    for title, kernels in (("A kernel that only reads", ["read only"]), ("Kernels that compute", ["LU", "SGEMM"])):
        keys = [(file, state, kernel) for kernel in kernels for file in (options.small, options.large)
                for state in ("cold", "warm", "again") if ("bifolio.map", file, state, kernel) in rates]
        names = [name for name in ("bifolio.map", "read_into", "read, copy", "managed", "CPU only")
                 if any((name, *key) in rates for key in keys)]
        groups = [(f"{kernel + ', ' if len(kernels) > 1 else ''}{named(file)} {state}",
                   [rates.get((name, file, state, kernel)) for name in names]) for file, state, kernel in keys]
        results.plots.append(common.plot.bars(title, "GB/s of file", groups, names, log=True))
    small, large = options.small, options.large
    warm_rate, plain_rate = (rates[way, small, "warm", "read only"] for way in ("bifolio.map", "read_into"))
    results.figure("streaming read, warm, smaller than the budget", "45 GB/s, on an H200", f"{warm_rate:.1f} GB/s "
                   f"(the plain copy {plain_rate:.1f})")
    results.figure("the same, larger than the budget", "as the plain copy",
                   f"{rates['bifolio.map', large, 'warm', 'read only']:.1f} GB/s (the plain copy "
                   f"{rates['read_into', large, 'warm', 'read only']:.1f})")
    results.write()
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", small="16M", large="96M", budget="64M", window="16M")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
