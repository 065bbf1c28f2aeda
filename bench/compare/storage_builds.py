#!/usr/bin/env python3
"""Two builds of the command beside each other, for storage: exports, mounts, scrubs and rebuilds, by turns.

    bench/compare/storage_builds.py BEFORE AFTER FOLDER [--rounds N] [--size MiB]

BEFORE and AFTER are binaries, each with its plugin for nbdkit beside it. FOLDER lies in memory, so that no disk is
measured, and has room for eight times the size. Every way runs with one and then the other build, the first of each
round changing, on the same volumes of random bytes. Printed is a table in Markdown: best and median rates of each, and
their ratios; above 1 the second build is quicker. nbdcopy, nbdkit, cryptsetup and fusermount3 have to be installed.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
MEMBERS = 6


def call(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": PATH})
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")


def seconds(work: Callable[[], None]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


@contextlib.contextmanager
def serving(command: list[object], ready: Callable[[], bool], end: Callable[[], None] | None = None) -> Iterator[None]:
    """A server that is ready, and ended afterwards."""
    server = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "PATH": PATH})
    try:
        while not ready():
            if server.poll() is not None:
                sys.exit(f"{' '.join(map(str, command))} ended: {server.stderr.read() if server.stderr else ''}")
            time.sleep(0.01)
        yield
    finally:
        if end:
            end()
        else:
            server.terminate()
        server.wait()


class Volumes:
    """What is measured, made once."""

    def __init__(self, folder: Path, after: str, size: int) -> None:
        self.folder, self.size = folder, size
        self.random, self.key = folder / "random", folder / "key"
        self.random.write_bytes(os.urandom(size))
        self.key.write_text("a passphrase")
        self.mount, self.vault = folder / "mount", folder / "vault"
        self.mount.mkdir()
        self.vault.mkdir()
        pbkdf = {"luks2": ["--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4",
                           "--pbkdf-parallel", "1"], "luks1": ["--pbkdf-force-iterations", "1000"]}
        for name, kind, more in (("luks2-4096", "luks2", ["--sector-size", "4096"]),
                                 ("luks2-512", "luks2", ["--sector-size", "512"]), ("luks1", "luks1", [])):
            with open(folder / name, "wb") as file:
                file.truncate(size + (16 << 20))
            call("cryptsetup", "luksFormat", "-q", "--type", kind, *more, *pbkdf[kind], "--key-size", "512",
                 folder / name, self.key)
        for chunk in ("64K", "512K"):
            call(after, "volume", "create", "raid6", "--size", f"{(size // (MEMBERS - 2) >> 20) + 16}M", "--chunk", chunk,
                 *self.members(chunk))
            with self.export(after, self.members(chunk)) as uri:
                call("nbdcopy", self.random, uri)
        call(after, "crypt", "init", "--scryptn", "10", "--passfile", self.key, self.vault)

    def members(self, chunk: str) -> list[Path]:
        return [self.folder / f"raid-{chunk}-{number}" for number in range(MEMBERS)]

    @contextlib.contextmanager
    def export(self, binary: str, paths: list[Path], *more: object) -> Iterator[str]:
        socket = self.folder / "socket"
        socket.unlink(missing_ok=True)
        command: list[object] = [binary, "volume", "export", *paths, *more, "--nbd", f"unix:{socket}"]
        with serving(command, socket.exists):
            yield f"nbd+unix:///?socket={socket}"

    @contextlib.contextmanager
    def mounted(self, binary: str) -> Iterator[None]:
        command: list[object] = [binary, "crypt", "mount", "--passfile", self.key, self.vault, self.mount]
        with serving(command, self.mount.is_mount, lambda: call("fusermount3", "-u", self.mount)):
            yield

    def ways(self, binary: str) -> Iterator[tuple[str, float]]:
        """Every way once, with its rate in GB/s."""
        copy = ["nbdcopy", "--connections=4", "--request-size=1048576"]
        for name in ("luks2-4096", "luks2-512", "luks1"):
            with self.export(binary, [self.folder / name], "--key-file", self.key) as uri:
                yield f"NBD {name}, write", self.size / seconds(lambda: call(*copy, self.random, uri)) / 1e9
                yield f"NBD {name}, read", self.size / seconds(lambda: call(*copy, uri, "null:")) / 1e9
        for chunk in ("64K", "512K"):
            with self.export(binary, self.members(chunk)) as uri:
                yield f"NBD raid6 {chunk}, write", self.size / seconds(lambda: call(*copy, self.random, uri)) / 1e9
                yield f"NBD raid6 {chunk}, read", self.size / seconds(lambda: call(*copy, uri, "null:")) / 1e9
            with self.export(binary, self.members(chunk)[2:]) as uri:
                yield f"NBD raid6 {chunk}, two gone, read", self.size / seconds(lambda: call(*copy, uri, "null:")) / 1e9
            members = self.members(chunk)
            yield f"scrub {chunk}", self.size / seconds(lambda: call(binary, "volume", "scrub", *members)) / 1e9
            yield f"rebuild {chunk}", self.size / seconds(lambda: self.rebuild(binary, members)) / 1e9
        with self.mounted(binary):
            file = self.mount / "file"
            yield "directory, write", self.size / seconds(
                lambda: call("dd", f"if={self.random}", f"of={file}", "bs=1M", "conv=fsync")) / 1e9
        with self.mounted(binary):
            yield "directory, read", self.size / seconds(
                lambda: call("dd", f"if={file}", "of=/dev/null", "bs=1M")) / 1e9
            file.unlink()

    def rebuild(self, binary: str, members: list[Path]) -> None:
        new = self.folder / "new"
        new.unlink(missing_ok=True)
        call(binary, "volume", "rebuild", *members[1:], "--onto", new)
        new.rename(members[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=512, help="of each volume, in MiB")
    options = parser.parse_args()
    for program in ("nbdcopy", "nbdkit", "cryptsetup", "fusermount3"):
        if not shutil.which(program, path=PATH):
            sys.exit(f"storage_builds: {program} is missing; scripts/setup.sh test installs it")
    binaries = [str(Path(binary).resolve()) for binary in (options.before, options.after)]
    for binary in binaries:
        if not os.access(binary, os.X_OK):
            sys.exit(f"storage_builds: {binary} is not a program that can be run; name two builds of the command")
    if not options.folder.is_dir():
        sys.exit(f"storage_builds: {options.folder} is not a folder; name one in memory, such as /dev/shm")
    taken: list[dict[str, list[float]]] = [{}, {}]
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        volumes = Volumes(Path(scratch), binaries[1], options.size << 20)
        for turn in range(options.rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                for name, rate in volumes.ways(binaries[which]):
                    taken[which].setdefault(name, []).append(rate)
    print("| way | before, best | after, best | ratio | before, median | after, median | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, rates in taken[0].items():
        best, median = ([of(rates), of(taken[1][name])] for of in (max, statistics.median))
        print(f"| {name} | {best[0]:.3f} | {best[1]:.3f} | {best[1] / best[0]:.3f} "
              f"| {median[0]:.3f} | {median[1]:.3f} | {median[1] / median[0]:.3f} |")
    print(f"\n{options.rounds} rounds by turns, {options.size} MiB")


if __name__ == "__main__":
    main()
