"""What the examples share: options, devices, clean times, data and cache states.

`host:N` computes with NumPy, `cuda:N` with CuPy. Sizes are bytes, times are seconds.
"""

import argparse
import contextlib
import mmap
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy

BLOCK = 64 << 20
# What `--other` calls a CPU process that knows nothing of the cache.
PROCESS = "process"
SUFFIXES = {"K": 10, "M": 20, "G": 30, "T": 40}


def size(text: str) -> int:
    """A number of bytes such as 4096, 64K or 2G."""
    number, shift = (text[:-1], SUFFIXES[text[-1].upper()]) if text[-1:].upper() in SUFFIXES else (text, 0)
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 4096, 64K or 2G")
    return int(number) << shift


def sizes(text: str) -> list[int]:
    """Some of them, with commas between them."""
    return [size(part) for part in text.split(",")]


def count(text: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def counts(text: str) -> list[int]:
    """Some of them, with commas between them."""
    return [count(part) for part in text.split(",")]


def device_name(text: str) -> str:
    if not re.fullmatch(r"(host|cuda):\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device such as host:0 or cuda:1")
    return text


def other_name(text: str) -> str:
    return text if text == PROCESS else device_name(text)


def named(count: int) -> str:
    """The same the other way."""
    for suffix, shift in reversed(SUFFIXES.items()):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift}{suffix}"
    return str(count)


def arguments(description: str, **defaults: str) -> argparse.ArgumentParser:
    """The options of every example, and those with sizes and their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", type=device_name, default="host:0", help="host:N, computing with NumPy, or cuda:N, with CuPy")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the files are made, on a disk")
    parser.add_argument("--repetitions", type=count, default=3, help="timed runs, after one that is not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for the results: Markdown, JSON and a plot (SVG)")
    parser.add_argument("--tag", default="", help="the end of the results' names, such as h200")
    for name, default in defaults.items():
        several = "," in default or name.endswith("s")
        parser.add_argument(f"--{name.replace('_', '-')}", type=sizes if several else size, default=default,
                            help="bytes, several with commas" if several else "bytes")
    return parser


def refuse(sentence: str) -> NoReturn:
    """Options that make no sense."""
    print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def need(condition: Any, sentence: str) -> None:
    if not condition:
        refuse(sentence)


class Device:
    """Where kernels run: NumPy on a host, CuPy on a GPU."""

    def __init__(self, name: str) -> None:
        self.name, self.is_gpu = name, name.startswith("cuda:")
        self.index = int(name.partition(":")[2] or 0)
        self.kernels: dict[tuple[str, str], Any] = {}
        if self.is_gpu:
            try:
                import cupy
            except ImportError as error:
                refuse(f"{name} needs CuPy, which computes on GPUs: {error}")
            self.xp: Any = cupy
            try:
                found = cupy.cuda.runtime.getDeviceCount()
            except cupy.cuda.runtime.CUDARuntimeError as error:
                refuse(f"there is no {name} here: {error}")
            need(self.index < found, f"there is no {name} here: CuPy finds {found} GPUs")
            with self.use():
                properties = cupy.cuda.runtime.getDeviceProperties(self.index)
                self.title = properties["name"].decode()
                self.processors = properties["multiProcessorCount"]
        else:
            self.xp, self.title, self.processors = numpy, "host memory, NumPy", os.cpu_count() or 1

    def use(self) -> contextlib.AbstractContextManager[Any]:
        """Within this, work of the calling thread goes to the device."""
        return self.xp.cuda.Device(self.index) if self.is_gpu else contextlib.nullcontext()

    def wait(self) -> None:
        """Until all work on the device is done."""
        if self.is_gpu:
            with self.use():
                self.xp.cuda.runtime.deviceSynchronize()

    def array(self, memory: Any, dtype: Any) -> Any:
        """Lent memory as an array of this type; what is left over at its end is left out."""
        whole = self.xp.asarray(memory)
        return whole[: whole.nbytes // numpy.dtype(dtype).itemsize * numpy.dtype(dtype).itemsize].view(dtype)

    def empty(self, count: int, dtype: Any) -> Any:
        with self.use():
            return self.xp.empty(count, dtype)

    def upload(self, array: Any) -> Any:
        with self.use():
            return self.xp.asarray(array)

    def host(self, array: Any) -> Any:
        """A copy in host memory."""
        return array.get() if self.is_gpu else array

    def kernel(self, source: str, name: str) -> Any:
        """A kernel of ours; the sources have 64-bit sizes."""
        if (source, name) not in self.kernels:
            self.kernels[source, name] = self.xp.RawKernel(source, name)
        return self.kernels[source, name]

    def grid(self, threads: int, block: int = 256) -> tuple[tuple[int], tuple[int]]:
        """As many blocks as the device runs at a time, or fewer: kernels stride over the rest."""
        return (max(1, min(-(-threads // block), self.processors * (2048 // block))),), (block,)


class Managed:
    """Managed memory (UVM), that a GPU and the CPU see at the same address; ordinary memory on a host."""

    def __init__(self, device: Device, bytes: int) -> None:
        self.bytes, self.device = bytes, device
        if device.is_gpu:
            with device.use():
                self.memory = device.xp.cuda.malloc_managed(bytes)
            import ctypes

            self.cpu = numpy.frombuffer((ctypes.c_uint8 * bytes).from_address(self.memory.ptr), "uint8")
        else:
            self.cpu = numpy.empty(bytes, "uint8")

    def on(self, device: Device, dtype: Any) -> Any:
        """As an array of a device."""
        count = self.bytes // numpy.dtype(dtype).itemsize
        if not device.is_gpu:
            return self.cpu[: count * numpy.dtype(dtype).itemsize].view(dtype)
        return device.xp.ndarray((count,), dtype, memptr=self.memory)


class Plain:
    """What programs without Bifolio do: `read` into page-locked memory, and a copy to the device."""

    def __init__(self, device: Device, bytes: int) -> None:
        self.device, self.target = device, device.empty(bytes, "uint8")
        if device.is_gpu:
            with device.use():
                self.memory = device.xp.cuda.alloc_pinned_memory(bytes)
            self.host = numpy.frombuffer(self.memory, "uint8", bytes)
        else:
            self.host = self.target

    def read(self, file: Any, offset: int, bytes: int) -> Any:
        read_fully(file, offset, self.host[:bytes])
        return self.upload(bytes)

    def upload(self, bytes: int) -> Any:
        """What is there in host memory, on the device."""
        if self.device.is_gpu:
            with self.device.use():
                self.target[:bytes].set(self.host[:bytes])
        return self.target[:bytes]


def read_fully(file: Any, offset: int, into: Any) -> None:
    """`pread` until everything is there: one call reads 2 GiB at most."""
    view, done = memoryview(into), 0
    while done < len(view):
        read = os.preadv(file.fileno(), [view[done : done + (1 << 30)]], offset + done)
        if read == 0:
            raise OSError(f"the file ended {len(view) - done} bytes early")
        done += read


@dataclass
class Times:
    """Seconds of the timed runs."""

    all: list[float]

    @property
    def median(self) -> float:
        return float(numpy.median(self.all))

    @property
    def best(self) -> float:
        return min(self.all)


def nothing() -> None:
    """What is done where there is nothing to do."""


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(work: Callable[[], Any], repetitions: int, before: Callable[[], Any] = nothing,
            verify: Callable[[], Any] = nothing) -> Times:
    """Runs it once, which is verified and not timed; then that many times, of which the last is verified again.

    `before` is not timed.
    """
    seconds = []
    for number in range(repetitions + 1):
        before()
        seconds.append(seconds_of(work))
        if number in (0, repetitions):
            verify()
    return Times(seconds[1:])


# Threads that are there already: starting one takes longer than some of what is measured.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="side")


def at_once(*works: Callable[[], Any]) -> list[float]:
    """Runs each on a thread of its own; the seconds that each took. The first failure is raised once all have ended."""
    started = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> float:
        started.wait()
        return seconds_of(work)

    running = []
    try:
        for work in works:
            running.append(_threads.submit(run, work))
        return [one.result() for one in running]
    finally:
        # An interrupt leaves none waiting for one that was not started, nor takes away memory that they still work on.
        if len(running) < len(works):
            started.abort()
        for one in running:
            one.exception()


def windows(total: int, window: int) -> Iterator[tuple[int, int]]:
    """Offset and length of the parts of a file, from its start to its end."""
    for start in range(0, total, window):
        yield start, min(window, total - start)


@contextlib.contextmanager
def scratch_files(folder: Path, *names: str) -> Iterator[list[Path]]:
    """Paths in a folder, which is made if it is missing. What is there at the end is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"gaia-{name}" for name in names]
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def noise(bytes: int, seed: int) -> Any:
    """Random bytes."""
    return numpy.random.default_rng(seed).integers(0, 256, bytes, "uint8")


def noise_file(path: Path, bytes: int, seed: int) -> Path:
    """A file of random bytes, whose blocks differ."""
    base = noise(min(BLOCK, bytes), seed)
    with open(path, "wb") as file:
        for number, (_, length) in enumerate(windows(bytes, BLOCK)):
            file.write((base[:length] ^ numpy.uint8(number & 0xFF)).data)
    return path


class SharedMemory:
    """Memory that a CPU process maps by its path, and that a GPU copies by itself."""

    def __init__(self, device: "Device", bytes: int) -> None:
        self.file = os.memfd_create("gaia")
        os.ftruncate(self.file, bytes)
        self.path = f"/proc/{os.getpid()}/fd/{self.file}"
        self.array = numpy.frombuffer(mmap.mmap(self.file, bytes), "uint8")
        self.device = device
        if device.is_gpu:
            with device.use():
                device.xp.cuda.runtime.hostRegister(self.array.ctypes.data, bytes, 0)

    def close(self) -> None:
        if self.device.is_gpu:
            with self.device.use():
                self.device.xp.cuda.runtime.hostUnregister(self.array.ctypes.data)
        os.close(self.file)


def float_file(path: Path, bytes: int, seed: int) -> Path:
    """A file of float32 in [0, 1), whose blocks differ: the low bits of a block are mixed with its number."""
    base = numpy.random.default_rng(seed).random(min(BLOCK, bytes) // 4, numpy.float32).view("uint32")
    with open(path, "wb") as file:
        for number, (_, length) in enumerate(windows(bytes, BLOCK)):
            # The eight low bits of the mantissa move a number by less than a ten-thousandth, and never to a NaN.
            file.write((base ^ numpy.uint32(number & 0xFF))[: length // 4].tobytes())
    return path


def evict(path: Path) -> None:
    """Takes a file out of the operating system's page cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def warm(path: Path) -> None:
    """Has all of a file in the page cache."""
    scratch = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(scratch):
            pass


def budget(bytes: int) -> None:
    """Limits the page cache on each device; before the first mapping."""
    os.environ["BIFOLIO_CACHE_BYTES"] = str(bytes)


def check(condition: Any, sentence: str) -> None:
    """Wrong results make an example fail, and not only slow."""
    if not condition:
        raise SystemExit(f"wrong result: {sentence}")
