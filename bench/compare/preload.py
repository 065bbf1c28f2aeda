#!/usr/bin/env python3
"""What the preload shim costs: `pread` into device memory beside the C ABI, and into host memory beside libc.

    bench/compare/preload.py --folder /mnt/disk --out bench/results/DATE-compare-preload-gpu.md

The program under the shim, examples/c/preload_bench.c, knows nothing of Bifolio. Processes stay alive and
take turns; the file is warm.
"""

import argparse
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from beside import cache, machine, model, report, sizes
from beside.native import Native, NotBuilt
from beside.process import Timing, Worker, WorkerError, start_all
from beside.turns import offset_of

# As in requests.py: what is read again and again is registered with the device meanwhile.
WARM_UP = 3
SHIM, NATIVE, HOST, HOST_SHIM = "shim", "c", "host", "host under the shim"
# What the program does without the shim, and bf_read without the question what comes before it.
PLAIN, UNORDERED = "plain", "c, unordered"


def main() -> int:
    args = arguments()
    path = args.folder / "compare-preload.bin"
    model.make(path, sizes.size(args.region), args.seed)
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bifolio-compare-")))
            comparison = Comparison(args, path, scratch)
            stack.callback(comparison.close)
            comparison.run()
            report.write(comparison.text(), comparison.data(), args.out, args.json)
            return comparison.status()
    finally:
        path.unlink(missing_ok=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the file is made [build]")
    parser.add_argument("--region", default="512M", help="size of the file [512M]")
    parser.add_argument("--seed", type=int, default=1, help="of the bytes and of the places [1]")
    parser.add_argument("--device", default=machine.default_device(), help="cuda:0 or host [the first GPU, else host]")
    parser.add_argument("--sizes", default="4K,64K,1M,16M", help="requests into device memory [4K,64K,1M,16M]")
    parser.add_argument("--host-sizes", default="64,4K,64K", help="requests into host memory [64,4K,64K]")
    parser.add_argument("--repetitions", type=int, default=25, help="runs of each [25]")
    parser.add_argument("--calls", type=int, default=20000, help="calls of a run into host memory [20000]")
    parser.add_argument("--run-bytes", default="256M", help="bytes of a run into device memory [256M]")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one run [60]")
    parser.add_argument("--target", type=Path, help="cargo's folder with the built libraries [target/release]")
    parser.add_argument("--out", type=Path, help="a file for the report")
    parser.add_argument("--json", type=Path, help="a file for all single measurements")
    args = parser.parse_args()
    try:
        args.device_bytes = [sizes.size(text) for text in args.sizes.split(",")]
        args.host_bytes = [sizes.size(text) for text in args.host_sizes.split(",")]
        args.run_length = sizes.size(args.run_bytes)
    except ValueError as error:
        parser.error(str(error))
    return args


class Comparison:
    """Processes that read into device memory, and a pair that reads into host memory."""

    def __init__(self, args: argparse.Namespace, path: Path, scratch: Path) -> None:
        self.args, self.path, self.scratch = args, path, scratch
        self.file, self.missing = cache.CachedFile(path), {}
        self.timings: dict[tuple[str, int], list[Timing]] = {}
        native = Native(args.target, scratch)
        memory = "cuda" if args.device.startswith("cuda") else "fenced"
        starts = {
            SHIM: lambda: native.unmodified(SHIM, memory, path, self._shim(native)),
            NATIVE: lambda: native.c(path, args.device),
            UNORDERED: lambda: native.c(path, args.device, UNORDERED, "unordered"),
            HOST: lambda: native.unmodified(HOST, "host", path, None),
            HOST_SHIM: lambda: native.unmodified(HOST_SHIM, "host", path, self._shim(native)),
        }
        if memory == "cuda":
            starts[PLAIN] = lambda: native.unmodified(PLAIN, "plain", path, None)
        else:
            self.missing[PLAIN] = "the device is no GPU: there is nothing to copy to"
        workers = []
        for name, start in starts.items():
            try:
                workers.append(start())
            except NotBuilt as reason:
                self.missing[name] = str(reason)
                print(f"skipped {name}: {reason}", file=sys.stderr)
        ready, missing, self.failed = start_all(workers, timeout=60)
        self.missing |= missing
        self.workers = {worker.name: worker for worker in ready}

    def _shim(self, native: Native) -> Path:
        return native.library("libbifolio_preload.so", "bifolio-preload")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.file.close()

    def run(self) -> None:
        """Sizes one after the other; within a size a pair takes turns, of which the first are not counted."""
        self.file.set("warm")
        into_device = (SHIM, NATIVE, PLAIN, UNORDERED)
        for pair, lengths in ((into_device, self.args.device_bytes), ((HOST, HOST_SHIM), self.args.host_bytes)):
            for length in lengths:
                for turn in range(-WARM_UP, self.args.repetitions):
                    order = random.Random(self.args.seed + turn).sample(pair, len(pair))
                    for name in order:
                        self._attempt(name, length, turn)

    def _attempt(self, name: str, length: int, turn: int) -> None:
        worker = self.workers.get(name)
        if worker is None or name in self.failed:
            return
        count, seed = self.count(name, length), self.args.seed + max(turn, 0)
        try:
            timing = worker.time("read", length, count, seed, timeout=self.args.timeout)
            if turn == -WARM_UP:
                self._check(worker, length, offset_of(count - 1, seed, self.file.size // length, length))
            elif turn >= 0:
                self.timings.setdefault((name, length), []).append(timing)
        except WorkerError as error:
            self.failed[name] = f"{sizes.spell(length)}: {error}"
            print(f"failed {name}: {self.failed[name]}", file=sys.stderr)

    def _check(self, worker: Worker, length: int, offset: int) -> None:
        dump = self.scratch / "dump"
        worker.ask("dump", 0, length, dump, timeout=self.args.timeout)
        if model.digest(dump, 0, length) != model.digest(self.path, offset, length):
            raise WorkerError(f"the {length} bytes at {offset} of the file are not what was read")

    def count(self, name: str, length: int) -> int:
        if name in (HOST, HOST_SHIM):
            return self.args.calls
        return max(4, self.args.run_length // length)

    def status(self) -> int:
        return int(bool(self.failed))

    def text(self) -> str:
        args = self.args
        lines = [
            report.title("The preload shim"), "",
            f"{machine.describe(args.device)}; {self.file.size} bytes on {machine.file_system(self.path)}, warm; "
            f"seed {args.seed}; {args.repetitions} runs of each, in turns; device {args.device}.", "",
        ]
        if self._both((SHIM, NATIVE), args.device_bytes):
            lines += ["`pread` of an unmodified program into device memory, beside `bf_read`, microseconds a call:", "",
                      self._device_table(), ""]
        if self._both((SHIM, PLAIN), args.device_bytes):
            lines += ["The same beside the plain program (`pread` into page-locked memory, `cuMemcpyHtoD`), "
                      "microseconds a call:", "", self._pair_table((PLAIN, SHIM)), ""]
        if self._both((NATIVE, UNORDERED), args.device_bytes):
            lines += ["What the order against default streams costs `bf_read`, microseconds a call:", "",
                      self._pair_table((UNORDERED, NATIVE)), ""]
        if self._both((HOST, HOST_SHIM), args.host_bytes):
            lines += ["`pread` into host memory, without and with the shim, nanoseconds a call:", "",
                      self._host_table(), ""]
        return "\n".join(lines + report.absent(self.missing, self.failed)).rstrip()

    def _device_table(self) -> str:
        rows = []
        for length in self.args.device_bytes:
            shim, native = self._per_call(SHIM, length), self._per_call(NATIVE, length)
            rows.append([sizes.spell(length), *(report.figure(value * 1e6) for value in (*native, *shim)),
                         f"{native[1] / shim[1]:.3f}", f"{native[0] / shim[0]:.3f}"])
        return report.table(["request", "bf_read best", "median", "pread best", "median",
                             "rate relative to bf_read, median", "best"], rows)

    def _pair_table(self, pair: tuple[str, str]) -> str:
        rows = []
        for length in self.args.device_bytes:
            one, other = (self._per_call(name, length) for name in pair)
            rows.append([sizes.spell(length), *(report.figure(value * 1e6) for value in (*one, *other)),
                         f"{other[1] / one[1]:.3f}", f"{other[0] / one[0]:.3f}"])
        return report.table(["request", f"{pair[0]} best", "median", f"{pair[1]} best", "median",
                             "time relative to the former, median", "best"], rows)

    def _host_table(self) -> str:
        rows = []
        for length in self.args.host_bytes:
            plain, shim = self._per_call(HOST, length), self._per_call(HOST_SHIM, length)
            rows.append([sizes.spell(length), *(report.figure(value * 1e9) for value in (*plain, *shim)),
                         f"{(shim[1] - plain[1]) * 1e9:.1f}", f"{(shim[0] - plain[0]) * 1e9:.1f}"])
        return report.table(["request", "plain best", "median", "shim best", "median", "extra, median", "extra, best"],
                            rows)

    def _both(self, names: tuple[str, str], lengths: list[int]) -> bool:
        return all(self.timings.get((name, length)) for name in names for length in lengths)

    def _per_call(self, name: str, length: int) -> tuple[float, float]:
        """Seconds for a call: best and median run."""
        seconds = [timing.seconds / self.count(name, length) for timing in self.timings[name, length]]
        return min(seconds), report.median(seconds)

    def data(self) -> dict:
        """All single measurements."""
        return {
            "machine": machine.describe(self.args.device), "device": self.args.device, "bytes": self.file.size,
            "seed": self.args.seed, "missing": self.missing, "failed": self.failed,
            "rows": [{"what": name, "request_bytes": length, "calls": self.count(name, length),
                      "seconds": [timing.seconds for timing in timings]}
                     for (name, length), timings in self.timings.items()],
        }


if __name__ == "__main__":
    sys.exit(main())
