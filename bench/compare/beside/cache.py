"""Sets the page-cache state of one file, and looks whether it is what was asked for.

Only what differs is changed, so that going from one state to the same state costs nothing: a comparison
sets a state before each load.
"""

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PAGE = mmap.PAGESIZE
PIECE = 4 << 20
THREADS = 8
STATES = ("warm", "half", "cold")
# The same number on every architecture, as all calls since 5.1 are.
SYS_CACHESTAT = 451

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class CachedFile:
    """A file whose cache state can be set and asked for."""

    def __init__(self, path: Path, stripe: int = 32 << 20) -> None:
        self.path, self.stripe = path, stripe
        self.file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.file).st_size
        # Without this the kernel reads ahead, into the stripes that are to stay uncached.
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        os.close(self.file)

    def set(self, state: str) -> float:
        """Brings the file into a state and returns the share that is cached then.

        Raises where the share is not what the state means, as on file systems that keep everything in memory.
        """
        wanted = [(start, min(self.stripe, self.size - start), self._is_wanted(state, start // self.stripe))
                  for start in range(0, self.size, self.stripe)]
        unwanted = [(start, length) for start, length, cached in wanted if not cached]
        if any(self.cached(*part) for part in unwanted):
            self._drop(unwanted if len(unwanted) < len(wanted) else [(0, self.size)])
        if any(self.cached(*part) for part in unwanted):
            # The kernel keeps pages in large folios, and one that reaches into the next stripe stays.
            self._drop([(0, self.size)])
        self._fill([(start, length) for start, length, cached in wanted
                    if cached and self.cached(start, length) != length])
        share, expected = self.cached(0, self.size) / self.size, sum(part[1] for part in wanted if part[2]) / self.size
        if abs(share - expected) > 0.01:
            raise OSError(f"{self.path}: {100 * share:.1f} % is cached where {state} needs {100 * expected:.1f} %; "
                          "is it on tmpfs, mapped by a program, or too large for this machine's memory?")
        return share

    def cached(self, start: int, length: int) -> int:
        """Bytes of a range that are in the page cache."""
        answer = self._cachestat(start, length)
        return self._mincore(start, length) if answer is None else answer

    def _is_wanted(self, state: str, stripe: int) -> bool:
        return {"warm": True, "cold": False, "half": stripe % 2 == 0}[state]

    def _drop(self, ranges: list[tuple[int, int]]) -> None:
        # Dirty pages would stay.
        os.fdatasync(self.file)
        for start, length in ranges:
            os.posix_fadvise(self.file, start, length, os.POSIX_FADV_DONTNEED)

    def _fill(self, ranges: list[tuple[int, int]]) -> None:
        pieces = [(at, min(PIECE, start + length - at)) for start, length in ranges
                  for at in range(start, start + length, PIECE)]

        def read(piece: tuple[int, int]) -> None:
            at, length = piece
            scratch = memoryview(bytearray(length))
            done = 0
            while done < length:
                got = os.preadv(self.file, [scratch[done:]], at + done)
                if got == 0:
                    raise EOFError(f"{self.path} was cut to {at + done} bytes while its cache state was being set")
                done += got

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(read, pieces))

    def _cachestat(self, start: int, length: int) -> int | None:
        span = (ctypes.c_uint64 * 2)(start, length)
        counts = (ctypes.c_uint64 * 5)()
        # Through libc.syscall, as glibc has no name for it yet. Kernels before 6.5 refuse it.
        if _libc.syscall(SYS_CACHESTAT, self.file, ctypes.byref(span), ctypes.byref(counts), 0) != 0:
            return None
        return min(counts[0] * PAGE, length)

    def _mincore(self, start: int, length: int) -> int:
        pages = -(-length // PAGE)
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, self.file, start)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"{self.path}: mmap of {length} bytes at {start}")
        try:
            states = (ctypes.c_uint8 * pages)()
            if _libc.mincore(address, length, states) != 0:
                raise OSError(ctypes.get_errno(), f"{self.path}: mincore of {length} bytes at {start}")
            return min(sum(state & 1 for state in states) * PAGE, length)
        finally:
            _libc.munmap(address, length)
