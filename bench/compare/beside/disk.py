"""The bound of every cold load: unbuffered reads into host memory, many at a time."""

import mmap
import os
import queue
import threading
import time
from pathlib import Path

from .process import Timing

PIECE = 1 << 20
THREADS = 16


def read_directly(path: Path) -> Timing:
    """Reads a file past the page cache once. Falls back to buffered reads where `O_DIRECT` is refused."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        file = os.open(path, os.O_RDONLY)
    size, pieces, failures = os.fstat(file).st_size, queue.SimpleQueue(), []
    for at in range(0, size, PIECE):
        pieces.put(at)

    def work() -> None:
        # An anonymous mapping is aligned, which unbuffered reads ask for.
        with mmap.mmap(-1, PIECE) as buffer:
            try:
                while True:
                    at = pieces.get_nowait()
                    if os.preadv(file, [buffer], at) < min(PIECE, size - at):
                        raise EOFError(f"{path}: a short read at {at}")
            except queue.Empty:
                pass
            except (OSError, EOFError) as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    cpu, start = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timing = Timing(time.perf_counter() - start, time.process_time() - cpu)
    os.close(file)
    if failures:
        raise failures[0]
    return timing
