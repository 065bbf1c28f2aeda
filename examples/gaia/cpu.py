"""What CPUs do in the examples, with NumPy alone, and a CPU process that does it.

The process knows nothing of the cache, nor has it the package: it opens files, maps or writes them, and reads. Its
parent tells it what to do, a line of JSON for each job, and gets a line back (`Process`).
"""

import contextlib
import json
import mmap
import os
import random
import select
import subprocess
import sys
import threading
import time
from typing import Any

import numpy

# Words of a page of 4 KiB.
WORDS = 1024
# Rows of an image that are sharpened, and points that are assigned, at a time.
ROWS, POINTS = 64, 1 << 14
# Points that are dealt out together; of 16 such stripes the second side has some.
STRIPE, DEAL = 512, 16


def mark(turn: int) -> int:
    """A word for a turn. Of two turns all four bytes differ, unless they are a multiple of 251 apart."""
    return sum((turn * (byte + 2) + 17 * byte) % 251 << 8 * byte for byte in range(4))


def halves(words: Any, half: int) -> Any:
    """One of the two halves of every page of 4 KiB."""
    return words.reshape(-1, WORDS)[:, half * WORDS // 2 : (half + 1) * WORDS // 2]


def flip(words: Any, half: int, after: int, times: int) -> None:
    """Read, modify and write each word of some halves, turn by turn: every byte changes in every turn, and in all."""
    mine = halves(words, half)
    for turn in range(after + 1, after + times + 1):
        mine ^= numpy.uint32(mark(turn) ^ mark(turn - 1))


def sharpened(image: Any, top: int, bottom: int) -> Any:
    """Some rows of the sharpened image."""
    height, _ = image.shape
    rows = numpy.clip(numpy.arange(top - 1, bottom + 1), 0, height - 1)
    part = image[rows].astype("int16")
    sides = numpy.pad(part[1:-1], ((0, 0), (1, 1)), mode="edge")
    return numpy.clip(5 * part[1:-1] - part[:-2] - part[2:] - sides[:, :-2] - sides[:, 2:], 0, 255).astype("uint8")


def columns(image: Any, height: int, stripe: int, turn: int) -> Any:
    """One side's columns of an image, as (rows, stripes, columns of a stripe)."""
    return image.reshape(height, -1, 2, stripe)[:, :, turn]


def sharpen(source: Any, target: Any, height: int, stripe: int, turn: int, times: int) -> None:
    """Writes one side's columns, all of them, several times."""
    image, place = source.reshape(height, -1), columns(target, height, stripe, turn)
    for _ in range(times):
        for top in range(0, height, ROWS):
            bottom = min(top + ROWS, height)
            place[top:bottom] = sharpened(image, top, bottom).reshape(bottom - top, -1, 2, stripe)[:, :, turn]


def dealt(count: int, share: int, side: int) -> Any:
    """Numbers of the points of one side: of 16 stripes, the second side has as many as its share."""
    points = numpy.arange(count)
    return points[(points // STRIPE % DEAL < share) == bool(side)]


def assign(points: Any, mine: Any, centroids: Any, assignments: Any) -> Any:
    """Assigns points to their nearest centroids (of equal ones the first); sums and counts of each. All integers."""
    groups, dimensions = centroids.shape
    sums = numpy.zeros((groups, dimensions + 1), "int64")
    for start in range(0, len(mine), POINTS):
        part = mine[start : start + POINTS]
        places = points[part].astype("int64")
        distances = numpy.stack([((places - centroid) ** 2).sum(axis=1) for centroid in centroids])
        nearest = distances.argmin(axis=0)
        assignments[part] = nearest
        for dimension in range(dimensions):
            # Exact: bincount adds in float64, and the sums stay far below 2**53.
            sums[:, dimension] += numpy.bincount(nearest, places[:, dimension], groups).astype("int64")
        sums[:, dimensions] += numpy.bincount(nearest, minlength=groups)
    return sums


def moved(sums: Any, centroids: Any) -> Any:
    """The next centroids; one without a point stays."""
    counts = sums[:, -1:]
    return numpy.where(counts > 0, sums[:, :-1] // numpy.maximum(counts, 1), centroids)


def read_all(file: int, into: Any) -> None:
    """All of a file: one call reads 2 GiB at most."""
    view, done = memoryview(into), 0
    while done < len(view):
        read = os.preadv(file, [view[done : done + (1 << 30)]], done)
        if read == 0:
            raise OSError(f"the file ended {len(view) - done} bytes early")
        done += read


class Process:
    """The parent's end of a CPU process."""

    def __init__(self) -> None:
        # A session of its own: an interrupt of the terminal goes to the parent, which ends it.
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)

    def start(self, job: str, **words: Any) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps({"job": job, **words}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the CPU process has ended") from None

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def wait(self) -> Any:
        """The answer to what was started."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the CPU process has ended before its answer")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the CPU process failed: {answer['error']}")
        return answer["answer"]

    def do(self, job: str, **words: Any) -> Any:
        self.start(job, **words)
        return self.wait()

    def close(self) -> None:
        """Lets it end; one that is in the middle of a long job is ended."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Jobs:
    """What the process does, and what it has open."""

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}
        self.is_done = threading.Event()
        self.readers: list[threading.Thread] = []
        self.read_bytes: list[int] = []

    def open(self, name: str, path: str, store: str) -> None:
        """Opens a file to store into its mapping, to `write` what it keeps of it, or to read it."""
        file = os.open(path, os.O_RDONLY if store == "read" else os.O_RDWR)
        if store == "write":
            self.memory[name] = (file, None, numpy.fromfile(path, "uint8"))
            return
        access = mmap.PROT_READ if store == "read" else mmap.PROT_READ | mmap.PROT_WRITE
        # The file's length, not the descriptor's memory: shared memory of the parent comes in the same way.
        mapped = mmap.mmap(file, 0, mmap.MAP_SHARED, access)
        os.close(file)
        self.memory[name] = (None, mapped, numpy.frombuffer(mapped, "uint8"))

    def shut(self, name: str) -> None:
        file, mapped, array = self.memory.pop(name)
        del array
        if file is None:
            mapped.close()
        else:
            os.close(file)

    def flip(self, name: str, half: int, after: int, times: int) -> None:
        file, _, content = self.memory[name]
        words = content.view("uint32")
        if file is None:
            flip(words, half, after, times)
            return
        mine = halves(words, half)
        for turn in range(after, after + times):
            flip(words, half, turn, 1)
            for page, row in enumerate(mine):
                os.pwrite(file, row.data, page * WORDS * 4 + half * WORDS * 2)

    def look(self, name: str) -> int:
        """A sum of what it sees, to compare."""
        return int(self.memory[name][2].view("uint32").sum(dtype="uint64"))

    def take(self, name: str) -> int:
        """The same, of what the file has now."""
        file, _, content = self.memory[name]
        if file is not None:
            read_all(file, content)
        return self.look(name)

    def sharpen(self, source: str, target: str, height: int, stripe: int, turn: int, times: int) -> None:
        sharpen(self.memory[source][2], self.memory[target][2], height, stripe, turn, times)

    def assign(self, points: str, structure: str, groups: int, dimensions: int, share: int, layout: list[int]) -> None:
        """The second side's points; centroids, sums and assignments lie in the structure (see kmeans.py)."""
        content, (sums_at, assignments_at) = self.memory[structure][2], layout
        places = self.memory[points][2].view("int32").reshape(-1, dimensions)
        centroids = content[: groups * dimensions * 8].view("int64").reshape(groups, dimensions).copy()
        assignments = content[assignments_at : assignments_at + len(places) * 4].view("uint32")
        sums = assign(places, dealt(len(places), share, 1), centroids, assignments)
        content[sums_at : sums_at + sums.nbytes].view("int64")[:] = sums.reshape(-1)

    def cluster(self, count: int, groups: int, dimensions: int, rounds: int, seed: int) -> dict[str, Any]:
        """k-means of this process alone, over points of its own: seconds, and the sum of its centroids."""
        points = numpy.random.default_rng(seed).integers(0, 1000, (count, dimensions), "int32")
        centroids, assignments = points[:groups].astype("int64"), numpy.zeros(count, "uint32")
        everything = numpy.arange(count)
        started = time.perf_counter()
        for _ in range(rounds):
            centroids = moved(assign(points, everything, centroids, assignments), centroids)
        return {"seconds": time.perf_counter() - started, "sum": int(centroids.sum())}

    def keep_busy(self, path: str, request: int, threads: int) -> None:
        """Reads a file at random and past the page cache, until `stop_busy`."""
        self.is_done.clear()
        self.read_bytes = [0] * threads
        # Where the file system has no direct reads, what was read leaves the page cache at once.
        try:
            file, is_direct = os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except OSError:
            file, is_direct = os.open(path, os.O_RDONLY), False
        length = os.fstat(file).st_size // request

        def read(reader: int) -> None:
            buffer = mmap.mmap(-1, request)
            while not self.is_done.is_set():
                offset = random.randrange(length) * request
                self.read_bytes[reader] += os.preadv(file, [buffer], offset)
                if not is_direct:
                    os.posix_fadvise(file, offset, request, os.POSIX_FADV_DONTNEED)

        self.readers = [threading.Thread(target=read, args=(reader,)) for reader in range(threads)]
        self.started = time.perf_counter()
        for reader in self.readers:
            reader.start()

    def stop_busy(self) -> float:
        """Bytes that were read a second."""
        self.is_done.set()
        for reader in self.readers:
            reader.join()
        return sum(self.read_bytes) / (time.perf_counter() - self.started)


def serve() -> None:
    """Jobs from standard input until it ends."""
    jobs = Jobs()
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"answer": getattr(jobs, words.pop("job"))(**words)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    if jobs.readers:
        jobs.stop_busy()


if __name__ == "__main__":
    serve()
