"""What the examples share: devices, clean times, data, cache states, and results as files.

`host:N` computes with NumPy, `cuda:N` with CuPy. Sizes are bytes, times are seconds.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bifolio
import numpy

import plot

BLOCK = 64 << 20
SUFFIXES = {"K": 10, "M": 20, "G": 30, "T": 40}


def size(text: str) -> int:
    """A number of bytes such as 4096, 64K or 2G."""
    number, shift = (text[:-1], SUFFIXES[text[-1].upper()]) if text[-1:].upper() in SUFFIXES else (text, 0)
    return int(number) << shift


def named(count: int) -> str:
    """The same the other way."""
    for suffix, shift in reversed(SUFFIXES.items()):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift}{suffix}"
    return str(count)


def arguments(description: str, **sizes: str) -> argparse.ArgumentParser:
    """The options of every example, and its sizes with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", default="host:0", help="host:N, computing with NumPy, or cuda:N, with CuPy")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the files are made, on a disk")
    parser.add_argument("--repetitions", type=int, default=3, help="timed runs, after one that is not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for the results: Markdown, JSON and a plot (SVG)")
    parser.add_argument("--tag", default="", help="the end of the results' names, such as h200")
    for name, default in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=size, default=default, help="bytes")
    return parser


class Device:
    """Where kernels run: NumPy on a host, CuPy on a GPU."""

    def __init__(self, name: str) -> None:
        self.name, self.is_gpu = name, name.startswith("cuda:")
        self.index = int(name.partition(":")[2] or 0)
        self.kernels: dict[tuple[str, str], Any] = {}
        if self.is_gpu:
            import cupy

            self.xp: Any = cupy
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


def measure(work: Callable[[], Any], repetitions: int, before: Callable[[], Any] = lambda: None) -> Times:
    """Runs it once to warm up, and then that many times; `before` is not timed."""
    seconds = []
    for _ in range(repetitions + 1):
        before()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return Times(seconds[1:])


def at_once(*works: Callable[[], Any]) -> None:
    """Runs each on a thread of its own; the first failure is raised."""
    import threading

    failures: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def windows(total: int, window: int) -> Iterator[tuple[int, int]]:
    """Offset and length of the parts of a file, from its start to its end."""
    for start in range(0, total, window):
        yield start, min(window, total - start)


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


@dataclass
class Results:
    """A table that is printed as it grows, and files of it."""

    name: str
    title: str
    says: str
    columns: Sequence[str]
    options: argparse.Namespace
    rows: list[list[Any]] = field(default_factory=list)
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)

    def row(self, *values: Any) -> None:
        if not self.rows:
            print(self._line(self.columns), flush=True)
        self.rows.append(list(values))
        print(self._line(values), flush=True)

    def figure(self, name: str, wanted: str, measured: str) -> None:
        """A number that was asked for."""
        self.figures.append((name, wanted, measured))
        print(f"{name}: {measured} (wanted: {wanted})", flush=True)

    def _line(self, values: Sequence[Any]) -> str:
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        return "  ".join(
            cell.ljust(22) if at == 0 else cell.rjust(max(len(column), 10))
            for at, (cell, column) in enumerate(zip(cells, self.columns, strict=True))
        )

    def write(self) -> None:
        """Markdown, JSON and a plot, with the date, where a folder was asked for."""
        out = self.options.out
        if out is None:
            return
        out.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        stem = f"{today}-gaia-{self.name}" + (f"-{self.options.tag}" if self.options.tag else "")
        with_options = {name: str(value) for name, value in vars(self.options).items() if name not in ("out", "folder")}
        document = {
            "title": self.title,
            "date": today,
            "machine": machine(self.options),
            "options": with_options,
            "columns": list(self.columns),
            "rows": self.rows,
            "figures": [dict(zip(("figure", "wanted", "measured"), figure, strict=True)) for figure in self.figures],
            "cache": bifolio.cache_stats(),
        }
        (out / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n")
        for number, svg in enumerate(self.plots):
            (out / f"{stem}{'' if number == 0 else f'-{number + 1}'}.svg").write_text(svg)
        (out / f"{stem}.md").write_text(self._markdown(stem, today))

    def _markdown(self, stem: str, today: str) -> str:
        shown, skip = [], False
        for word in sys.argv[1:]:
            # Where the files lay says nothing to others.
            skip, hidden = word in ("--folder", "--out"), skip
            shown += [] if hidden or word.startswith(("--folder=", "--out=")) else [word] + (["..."] if skip else [])
        command = f"examples/gaia/{Path(sys.argv[0]).name} {shlex.join(shown)}".strip()
        parts = [f"# {self.title}, {today}", self.says, machine(self.options), f"```\n{command}\n```"]
        for number in range(len(self.plots)):
            parts.append(f"![{self.title}]({stem}{'' if number == 0 else f'-{number + 1}'}.svg)")
        if self.figures:
            lines = [f"| {name} | {wanted} | {measured} |" for name, wanted, measured in self.figures]
            parts.append("\n".join(["## Figures asked for\n", "| figure | wanted | measured |", "|---|---|---|", *lines]))
        table = "\n".join([self._line(self.columns), *map(self._line, self.rows)])
        parts.append(f"## All numbers\n\n```\n{table}\n```")
        return "\n\n".join(parts) + "\n"


def machine(options: argparse.Namespace) -> str:
    """A sentence about where it was measured."""
    names = [getattr(options, name) for name in ("device", "other") if getattr(options, name, None)]
    devices = " and ".join(f"{name} ({Device(name).title})" for name in names)
    driver = ""
    if any(name.startswith("cuda:") for name in names):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.split()
            driver = f", driver {found[0]}" if found else ""
    processors = len(os.sched_getaffinity(0))
    return (
        f"Bifolio {bifolio.__version__} on {devices}{driver}; {processors} processors, Linux {platform.release()}, "
        f"Python {platform.python_version()}. Medians of {options.repetitions} runs after one that is not timed; "
        f"seed {options.seed}."
    )


__all__ = [
    "Device",
    "Managed",
    "Plain",
    "Results",
    "Times",
    "arguments",
    "at_once",
    "budget",
    "check",
    "evict",
    "float_file",
    "measure",
    "named",
    "plot",
    "read_fully",
    "size",
    "warm",
    "windows",
]
