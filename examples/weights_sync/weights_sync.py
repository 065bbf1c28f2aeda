#!/usr/bin/env python3
"""A trainer changes weights that servers use: each server sees one version at a time, and only what changed is moved.

The weights are a file in the daemon's cache. The trainer acquires the layers that it trains, stores into them, and releases
them: that is a new version. A server acquires the weights between two tokens. Until it does so again it has the version that
it acquired, whatever the trainer does meanwhile, and what the trainer has not released nobody else sees.

Every server checks every word that it is given: all layers that are trained are of one version, which never goes backwards,
and the others are as they were. At the end it is checked that no more pages were fetched than changed.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bifolio
import numpy

LAYER = 256 << 10
PAGE = 64 << 10
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main() -> int:
    arguments = parse()
    if arguments.role == "server":
        return serve(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder, prefix="weights-sync-")))
        os.environ["BIFOLIO_SOCKET"] = str(folder / "socket")
        stack.enter_context(daemon(arguments))
        path = folder / "weights"
        # Version 0 of all layers, which is no hole of the file.
        with open(path, "wb") as file:
            for _ in range(arguments.layers):
                file.write(bytes(LAYER))
        return run(arguments, path)


def run(arguments: argparse.Namespace, path: Path) -> int:
    """Trains beside servers, and says what that has moved."""
    command = [sys.executable, __file__, "--role", "server", "--path", str(path), *sys.argv[1:]]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    servers = [subprocess.Popen(command, **pipes) for _ in range(arguments.servers)]
    try:
        for server in servers:
            assert server.stdout.readline() == "ready\n", "a server did not begin"
        steps = train(arguments, path)
        said = []
        for server in servers:
            text, _ = server.communicate()
            if server.returncode != 0:
                return server.returncode
            said.append(json.loads(text))
    finally:
        for server in servers:
            server.kill()
            server.wait()
    report(arguments, steps, said)
    return 0


def train(arguments: argparse.Namespace, path: Path) -> list[float]:
    """Makes versions; how long each one's release took."""
    first, end = trained(arguments)
    releases = []
    with bifolio.map(path, writable=True, device=arguments.trainer or arguments.device, shared=True) as mapping:
        for version in range(1, arguments.steps + 1):
            with mapping.acquired(first, end - first) as window:
                words = array(window, mapping)
                # One part after the other: nobody sees the halves.
                for part in range(0, len(words), LAYER // 4):
                    words[part : part + LAYER // 4] = version
                wait_for(mapping)
                del words
                begin = time.perf_counter()
            releases.append(time.perf_counter() - begin)
            time.sleep(arguments.pause)
    return releases


def serve(arguments: argparse.Namespace) -> int:
    """Acquires the weights between tokens until the input ends."""
    first, end = trained(arguments)
    tokens, versions, acquires, counts = 0, [], [], {"fetched": 0, "copied": 0}
    with bifolio.map(arguments.path, device=arguments.device, shared=True) as mapping:
        print("ready", flush=True)
        while not versions or versions[-1] < arguments.steps:
            with mapping.acquired() as window:
                for name in counts:
                    counts[name] += getattr(window.report, name)
                acquires.append(window.report.seconds)
                words = array(window, mapping)
                version = int(words[first // 4])
                # Twice, as a token takes its time: the version stays.
                for _ in range(2):
                    assert bool((words[first // 4 : end // 4] == version).all()), f"version {version} is not whole"
                    assert not bool(words[: first // 4].any()), "a layer has changed that nobody trains"
                del words
            assert not versions or version >= versions[-1], f"version {version} after {versions[-1]}"
            versions.append(version)
            tokens += 1
    first_load, later = acquires[0], acquires[1:] or acquires
    seen = {"tokens": tokens, "versions": len(set(versions)), "first_s": first_load, "acquire_s": statistics.median(later)}
    print(json.dumps({**seen, **counts}))
    return 0


def report(arguments: argparse.Namespace, releases: list[float], servers: list[dict[str, Any]]) -> None:
    first, end = trained(arguments)
    pages, changed = arguments.layers * LAYER // PAGE, (end - first) // PAGE
    fetched = sum(server["fetched"] for server in servers)
    print(f"{pages} pages of {PAGE >> 10} KiB, {changed} of them trained; {arguments.steps} versions, {len(servers)} servers")
    print(f"release: {statistics.median(releases) * 1e3:.3f} ms in the median")
    for number, server in enumerate(servers):
        print(
            f"server {number}: {server['tokens']} tokens, {server['versions']} versions; first acquire "
            f"{server['first_s'] * 1e3:.3f} ms, later ones {server['acquire_s'] * 1e3:.3f} ms in the median; "
            f"{server['fetched']} pages fetched, {server['copied']} copied on the device"
        )
    # All once, for the device that the servers share, and of each version what has changed.
    most = pages + arguments.steps * changed
    print(f"{fetched} pages fetched by all servers, {most} at most where only what changes is moved")
    assert fetched <= most, "more was fetched than has changed"


def trained(arguments: argparse.Namespace) -> tuple[int, int]:
    """The bytes of the layers that are trained: the last ones."""
    count = max(1, round(arguments.layers * arguments.changed / 100))
    return (arguments.layers - count) * LAYER, arguments.layers * LAYER


def array(window: Any, mapping: Any) -> Any:
    """The words of what is acquired, where they are."""
    return module(mapping).asarray(window).view("uint32")


def module(mapping: Any) -> Any:
    if mapping.device.startswith("host"):
        return numpy
    import cupy

    cupy.cuda.Device(int(mapping.device.partition(":")[2])).use()
    return cupy


def wait_for(mapping: Any) -> None:
    """Kernels have come to their end."""
    if module(mapping) is not numpy:
        module(mapping).cuda.get_current_stream().synchronize()


@contextlib.contextmanager
def daemon(arguments: argparse.Namespace) -> Iterator[None]:
    """A daemon of this example's own, of the devices that it uses."""
    devices = dict.fromkeys([arguments.device, arguments.trainer or arguments.device])
    # What the trainer and the servers have, with twins, and a version for each server.
    memory = arguments.layers * LAYER * (3 + arguments.servers) + (256 << 20)
    command = [sys.executable, "-m", "bifolio.daemon", "--memory", str(memory)]
    command += [word for device in devices for word in ("--device", device)]
    process = subprocess.Popen(command)
    try:
        while not Path(os.environ["BIFOLIO_SOCKET"]).exists():
            assert process.poll() is None, "the daemon did not begin"
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host:0", help="of the servers, such as cuda:0; GPUs take CuPy")
    parser.add_argument("--trainer", metavar="DEVICE", help="of the trainer; the servers' if not named")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--size", type=size, default=64 << 20, help="of the weights, such as 8G")
    parser.add_argument("--changed", type=float, default=10, metavar="PERCENT", help="how much of them is trained")
    parser.add_argument("--steps", type=int, default=10, help="versions that the trainer makes")
    parser.add_argument("--pause", type=float, default=0.05, metavar="SECONDS", help="between two of them")
    parser.add_argument("--folder", help="where the file is kept: on ext4, XFS or Btrfs, where nothing is compared")
    parser.add_argument("--role", choices=["server"], help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.layers = max(2, arguments.size // LAYER)
    return arguments


def size(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1].upper()] if text[-1:].isalpha() else int(text)


if __name__ == "__main__":
    sys.exit(main())
