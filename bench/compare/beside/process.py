"""The side of a comparison that starts workers, asks them, and survives what happens to them."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


class WorkerError(Exception):
    """A worker failed, died, or did not answer in time; the message says which."""


class WorkerMissing(Exception):
    """What the worker needs is not there."""


@dataclass(frozen=True)
class Timing:
    """One measurement."""

    seconds: float
    cpu_seconds: float


class Worker:
    """A process that measures one thing; see worker.py for what it understands."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name, self.note, self._pending, self._log = name, "", b"", tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
            env={**os.environ, **(environment or {})})

    def wait_until_ready(self, timeout: float) -> None:
        """Imports and device contexts take seconds, so all workers are started before the first is awaited."""
        word, self.note = self._answer(timeout)
        if word == "missing":
            self.close()
            raise WorkerMissing(self.note)
        if word != "ready":
            self.close()
            raise WorkerError(self.note)

    def ask(self, *words: object, timeout: float) -> str:
        """Sends one command and returns what comes after `ok`."""
        self.say(*words)
        return self.hear(timeout=timeout)

    def say(self, *words: object) -> None:
        """Sends one command, whose answer is to be heard later: several workers work at once."""
        try:
            self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        except BrokenPipeError:
            raise WorkerError(self._epitaph()) from None

    def hear(self, *, timeout: float) -> str:
        """What comes after `ok` of the answer to what was said."""
        word, rest = self._answer(timeout)
        if word != "ok":
            raise WorkerError(rest or word)
        return rest

    def time(self, *words: object, timeout: float) -> Timing:
        """Sends a command whose answer is a measurement."""
        seconds, cpu_seconds = self.ask(*words, timeout=timeout).split()
        return Timing(float(seconds), float(cpu_seconds))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process: by the end of its input, and by force where that is not enough."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self, timeout: float) -> tuple[str, str]:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                self._process.wait()
                raise WorkerError(f"no answer within {timeout:.0f} s; it was ended")
            part = os.read(self._process.stdout.fileno(), 65536)
            if not part:
                raise WorkerError(self._epitaph())
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        word, _, rest = line.decode(errors="replace").partition(" ")
        return word, rest.strip()

    def _epitaph(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        last = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()][-1:]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"it died by {how}" + "".join(f": {line[:300]}" for line in last)


def python_worker(name: str, path: Path, device: str, environment: dict[str, str] | None = None) -> Worker:
    """A worker for one of `loaders.LOADERS`."""
    return Worker(name, [sys.executable, str(WORKER), name, str(path), device], environment)


def start_all(workers: list[Worker], timeout: float) -> tuple[list[Worker], dict[str, str], dict[str, str]]:
    """Waits for all; returns those that are ready, why others are missing, and how others failed."""
    ready, missing, failed = [], {}, {}
    for worker in workers:
        try:
            worker.wait_until_ready(timeout)
            ready.append(worker)
        except WorkerMissing as reason:
            missing[worker.name] = str(reason)
            print(f"skipped {worker.name}: {reason}", file=sys.stderr)
        except WorkerError as error:
            failed[worker.name] = str(error)
            print(f"failed {worker.name}: {error}", file=sys.stderr)
    return ready, missing, failed
