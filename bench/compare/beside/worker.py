"""One loader in a process of its own: `worker.py LOADER FILE DEVICE`, commands on standard input.

    load                      -> ok SECONDS CPU_SECONDS       the whole file
    read LENGTH COUNT SEED    -> ok SECONDS CPU_SECONDS       COUNT requests of LENGTH bytes (see turns.py)
    digest NAME START LENGTH  -> ok SHA256                    of a tensor (load), or of what the last request read
    verify                    -> ok BYTES                     all tensors that were loaded, compared with the file
    release [keep]            -> ok                           keep: the memory stays with the library for its next load

Every answer is one line, also `error SENTENCE`; the first is `ready NOTE`, `missing REASON` or an error. The
programs in examples/c and crates/io/examples answer the same way, less `load`, and with `dump START LENGTH
PATH` instead of `digest`.
"""

import gc
import hashlib
import os
import sys
import time

import loaders
import whole
from turns import offset_of

# Else `import requests`, which peers do, might find a script of this folder's parent.
sys.path.pop(0)


class Worker:
    """Carries out the commands."""

    def __init__(self, loader: loaders.Loader, path: str) -> None:
        self.loader, self.path, self.size, self.opened = loader, path, os.path.getsize(path), False
        self.buffer_bytes = 0

    def load(self) -> str:
        self.loader.prepare(self.size)
        return timed(self.loader.load)

    def read(self, length: str, count: str, seed: str) -> str:
        length_bytes, slots = int(length), self.size // int(length)
        offsets = [offset_of(number, int(seed), slots, length_bytes) for number in range(int(count))]
        if not self.opened:
            self.loader.requests_open()
            self.opened = True
        if self.buffer_bytes != length_bytes:
            self.loader.buffer = None
            self.loader.prepare(length_bytes)
            self.buffer_bytes = length_bytes
        request, buffer = self.loader.request, self.loader.buffer

        def run() -> None:
            for offset in offsets:
                request(buffer, offset, length_bytes)

        return timed(run)

    def digest(self, name: str, start: str, length: str) -> str:
        content = self.loader.bytes_of(name, int(start), int(length))
        if len(content) != int(length):
            raise ValueError(f"{name} has {len(content)} bytes where the file has {length}")
        return hashlib.sha256(content).hexdigest()

    def verify(self) -> str:
        return str(whole.verify(self.loader.tensors, self.path))

    def release(self, keep: str = "") -> str:
        if self.opened:
            self.loader.requests_close()
            self.opened = False
        self.buffer_bytes = 0
        self.loader.release(keep == "keep")
        gc.collect()
        return ""


def timed(run) -> str:
    cpu, start = time.process_time(), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return f"{seconds!r} {time.process_time() - cpu!r}"


def main() -> None:
    name, path, device = sys.argv[1:]
    # Peers print; answers need a channel of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        loader = loaders.LOADERS[name]()
        print("ready", one_line(loader.open(path, device)), file=answers)
    except loaders.Missing as reason:
        print("missing", one_line(reason), file=answers)
        return
    except Exception as error:
        print("error", one_line(f"it does not start: {type(error).__name__}: {error}"), file=answers)
        return
    worker = Worker(loader, path)
    for line in sys.stdin:
        command, *words = line.split()
        try:
            print("ok", getattr(worker, command)(*words), file=answers)
        except Exception as error:
            print("error", one_line(f"{type(error).__name__}: {error}"), file=answers)


def one_line(text: object) -> str:
    return " ".join(str(text).split())[:500]


if __name__ == "__main__":
    main()
