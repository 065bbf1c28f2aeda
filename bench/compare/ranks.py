#!/usr/bin/env python3
"""Ranks, a process for each device, load one safetensors file at the same time: Bifolio through its daemon, and its peers.

    bench/compare/ranks.py --folder /mnt/disk --devices cuda:0,cuda:1 --out ranks.md --json ranks.json

Each loader has a process for each rank, which stays alive. In each cache state (warm, cold) the first rank loads alone, and
then all load at once; `again` is a load of what the daemon has on the devices already, as a second process of a rank finds it.
A word of every MiB of the file is changed before every load, so that bytes of an earlier load are not taken for the file's;
after every load all tensors are compared with it on the device. What the disk reads is the kernel's count (/proc/diskstats).
"""

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from beside import cache, machine, model, report, sizes
from beside.loaders import LOADERS
from beside.process import Worker, WorkerError, WorkerMissing, python_worker
from load import Choice, repetitions

DAEMON = "bifolio.group"
# Peers in the states for which they are set up.
LOADED = (
    "bifolio.group,bifolio.group.share,bifolio.load_file,safetensors.load_file@warm,safetensors.prefetch8,"
    "fastsafetensors.buffered@warm,fastsafetensors.direct@cold,instanttensor.buffered,instanttensor.direct@cold"
)
SECTOR = 512
# Younger changes of a file may be followed by others that its times do not tell.
AGE_S = 0.1
# Opening the GPUs of a node takes seconds.
START_S = 120


@dataclass
class Load:
    """One load by one rank or by all."""

    seconds: float
    each: list[float]
    disk_bytes: int | None
    verified: int


@dataclass
class Row:
    """What is known of one loader."""

    name: str
    note: str = ""
    failed: str = ""
    # By state, and whether alone.
    loads: dict[tuple[str, bool], list[Load]] = field(default_factory=dict)


def main() -> int:
    args = arguments()
    path = args.folder / f"ranks-{args.size}.safetensors"
    print(f"making {path}, seed {args.seed}", file=sys.stderr)
    model.make(path, sizes.size(args.size), args.seed)
    try:
        with ExitStack() as stack:
            comparison = Comparison(args, path, stack)
            comparison.run()
            report.write(comparison.text(), comparison.data(), args.out, args.json)
            return comparison.status()
    finally:
        path.unlink(missing_ok=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the file goes [build]")
    parser.add_argument("--size", default="8.6GB", help="of the file [8.6GB]")
    parser.add_argument("--seed", type=int, default=secrets.randbits(40), help="of its bytes [drawn afresh]")
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="one for each rank; without a GPU host:0,host:0 [cuda:0,cuda:1]")
    parser.add_argument("--states", default="warm,again,cold", help="in this order [warm,again,cold]")
    parser.add_argument("--repetitions", default="warm=3,cold=1", help="loads of each [warm=3,cold=1]; again is as warm")
    parser.add_argument("--loaders", default=LOADED,
                        help="patterns, such as 'bifolio.group,instanttensor.*@cold' with the states of some")
    parser.add_argument("--time-limit", type=float, default=float("inf"),
                        help="seconds after which no further repetitions begin; the first always do")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one load [120]")
    parser.add_argument("--out", type=Path, help="a file for the report")
    parser.add_argument("--json", type=Path, help="a file for all single measurements")
    args = parser.parse_args()
    args.devices, args.states = args.devices.split(","), args.states.split(",")
    if unknown := set(args.states) - {"warm", "again", "cold"}:
        parser.error(f"no such state: {min(unknown)}; there are warm, again, cold")
    try:
        args.repetitions = repetitions(args.repetitions, ["warm", "cold"])
        args.loaders = Choice(args.loaders)
        sizes.size(args.size)
    except ValueError as error:
        parser.error(str(error))
    return args


class Daemon:
    """One of this run's own, which is started and ended again."""

    def __init__(self, devices: list[str], memory: int, environment: dict[str, str], log: Path) -> None:
        named = [word for device in dict.fromkeys(devices) for word in ("--device", device)]
        self.command = [sys.executable, "-m", "bifolio.daemon", "--memory", str(memory), *named]
        self.environment, self.log, self.process = {**os.environ, **environment}, log, None

    def start(self) -> None:
        """Returns when it serves, which it may do already."""
        if self.process is not None:
            return
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stderr=log)
        end = time.monotonic() + START_S
        while b"serving" not in self.log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > end:
                raise OSError(f"the daemon does not serve: {self.log.read_text().strip()}")
            time.sleep(0.01)

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None


class Comparison:
    """One run: the daemon, ranks of every loader, and the file whose cache state they share."""

    def __init__(self, args: argparse.Namespace, path: Path, stack: ExitStack) -> None:
        self.args, self.path, self.stack = args, path, stack
        self.file = cache.CachedFile(path)
        stack.callback(self.file.close)
        self.first = model.tensors(path)[0].start
        self.rows: dict[str, Row] = {}
        self.missing: dict[str, str] = {}
        self.begun = time.monotonic()
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bifolio-ranks-")))
        self.environment = {"BIFOLIO_SOCKET": str(self.folder / "cache.sock")}
        self.daemon = Daemon(args.devices, 2 * self.file.size, self.environment, self.folder / "daemon.txt")
        # Last, as workers that start none find it.
        stack.callback(self.daemon.end)
        self.ranks = self._start()

    def _start(self) -> dict[str, list[Worker]]:
        names = [name for name in LOADERS if self.args.loaders.has(name)]
        if any(name.startswith(DAEMON) for name in names):
            self.daemon.start()
        started, size = {}, len(self.args.devices)
        for name in names:
            started[name] = []
            for rank, device in enumerate(self.args.devices):
                environment = {**self.environment, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
                worker = python_worker(name, self.path, device, environment)
                self.stack.callback(worker.close)
                started[name].append(worker)
        ranks = {}
        for name, workers in started.items():
            try:
                for worker in workers:
                    # A fresh machine takes half a minute for its first import of PyTorch.
                    worker.wait_until_ready(180)
                ranks[name], self.rows[name] = workers, Row(name, workers[0].note)
            except WorkerMissing as reason:
                self.missing[name] = str(reason)
                print(f"skipped {name}: {reason}", file=sys.stderr)
            except WorkerError as error:
                self.rows[name] = Row(name, failed=str(error))
                print(f"failed {name}: {error}", file=sys.stderr)
        return ranks

    def run(self) -> None:
        """An untimed load of every rank first, in which everybody allocates what is kept, then the states."""
        for name in self.ranks:
            self._attempt(name, "warm", False, is_timed=False)
        for state in self.args.states:
            for turn in range(self.args.repetitions["warm" if state == "again" else state]):
                if turn and time.monotonic() - self.begun > self.args.time_limit:
                    print(f"{state}: stopped after {turn} repetitions, at the time limit", file=sys.stderr)
                    break
                for name in self.ranks:
                    if self.args.loaders.has(name, "warm" if state == "again" else state):
                        for alone in (True, False):
                            self._attempt(name, state, alone)

    def _attempt(self, name: str, state: str, alone: bool, is_timed: bool = True) -> None:
        row = self.rows[name]
        if row.failed or state == "again" and name != DAEMON:
            return
        workers = self.ranks[name][:1] if alone else self.ranks[name]
        try:
            self._stir()
            if state == "cold":
                # A daemon that has read a file often keeps its pages in memory.
                self.daemon.end()
            self.file.set("cold" if state == "cold" else "warm")
            if name.startswith(DAEMON):
                self.daemon.start()
            if state == "again":
                self._load(workers)
                self._tell(workers, "release", "keep")
            load = self._load(workers)
            load.verified = sum(map(int, self._tell(workers, "verify")))
            self._tell(workers, "release")
            if is_timed:
                row.loads.setdefault((state, alone), []).append(load)
        except (WorkerError, OSError) as error:
            row.failed = f"{state}: {error}"
            print(f"failed {name}: {row.failed}", file=sys.stderr)

    def _stir(self) -> None:
        """Changes a word of every MiB, so that nothing that was read before is the file."""
        with open(self.path, "r+b", buffering=0) as file:
            for at in range(self.first, self.file.size - (1 << 20) + 1, 1 << 20):
                os.pwrite(file.fileno(), secrets.token_bytes(8), at + secrets.randbelow((1 << 20) - 8))
        time.sleep(AGE_S)

    def _load(self, workers: list[Worker]) -> Load:
        disk, begun = disk_bytes(self.path), time.perf_counter()
        answers = self._tell(workers, "load")
        seconds, read = time.perf_counter() - begun, disk_bytes(self.path)
        each = [float(answer.split()[0]) for answer in answers]
        return Load(seconds, each, None if disk is None or read is None else read - disk, 0)

    def _tell(self, workers: list[Worker], *words: str) -> list[str]:
        """The same to all, who work at once."""
        for worker in workers:
            worker.say(*words)
        return [worker.hear(timeout=self.args.timeout) for worker in workers]

    def status(self) -> int:
        """1 where one of ours failed; peers may fail."""
        return int(any(row.failed for row in self.rows.values() if row.name.startswith("bifolio.")))

    def text(self) -> str:
        """The report."""
        args, size = self.args, self.file.size
        lines = [
            report.title("Ranks that load one safetensors file"), "",
            f"{machine.describe(args.devices[0])}; {size} bytes on {machine.file_system(self.path)}, random bytes of seed "
            f"{args.seed}, a word of each MiB drawn afresh before each load; {len(args.devices)} ranks on "
            f"{', '.join(args.devices)}.", "",
            "Seconds are those of the slowest rank, from the word to begin to its tensors on the device, medians; GB/s are "
            "bytes that arrived on all devices together, 1 GB = 1e9 bytes. After each load all bytes were compared with the "
            "file's. `again` is a load of what the daemon has on the devices.", "",
        ]
        for state in args.states:
            rows = [self._cells(row, state) for row in self.rows.values() if (state, False) in row.loads]
            if rows:
                head = ["loader", "one alone, s", "all at once, s", "ratio", "GB/s in all", "disk bytes over the file", "runs"]
                lines += [f"## {state.capitalize()}", "", report.table(head, rows), ""]
        lines += ["## Notes", "", *(f"- `{row.name}`: {row.note}" for row in self.rows.values() if row.note), ""]
        failed = {row.name: row.failed for row in self.rows.values() if row.failed}
        return "\n".join(lines + report.absent(self.missing, failed)).rstrip()

    def _cells(self, row: Row, state: str) -> list[str]:
        alone, together = row.loads.get((state, True), []), row.loads[state, False]
        one = report.median([load.seconds for load in alone]) if alone else None
        all_ = report.median([load.seconds for load in together])
        arrived = report.median([load.verified for load in together])
        disk = [load.disk_bytes / self.file.size for load in together if load.disk_bytes is not None]
        return [f"`{row.name}`", report.figure(one), report.figure(all_), report.figure(one and all_ / one),
                report.figure(report.rate(arrived, all_)), report.figure(max(disk, default=None)),
                f"{len(alone)}/{len(together)}"]

    def data(self) -> dict:
        """All single measurements."""
        return {
            "machine": machine.describe(self.args.devices[0]), "devices": self.args.devices, "bytes": self.file.size,
            "tensor_bytes": self.file.size - self.first,
            "seed": self.args.seed, "missing": self.missing,
            "rows": [{
                "loader": row.name, "note": row.note, "failed": row.failed,
                "loads": [{"state": state, "alone": alone, "seconds": load.seconds, "each": load.each,
                           "disk_bytes": load.disk_bytes, "verified_bytes": load.verified}
                          for (state, alone), loads in row.loads.items() for load in loads],
            } for row in self.rows.values()],
        }


def disk_bytes(path: Path) -> int | None:
    """What the disk of a file has read so far; None where the kernel counts for no disk of that number."""
    number = os.stat(path).st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        words = line.split()
        if (int(words[0]), int(words[1])) == (os.major(number), os.minor(number)):
            return int(words[5]) * SECTOR
    return None


if __name__ == "__main__":
    sys.exit(main())
