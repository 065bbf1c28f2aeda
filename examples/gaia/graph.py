#!/usr/bin/env python3
"""Shortest paths over a graph whose weights a CPU process changes between the runs: figure 7 of the GAIA paper.

The graph is a file (CSR: offsets, targets, weights), of which a share of the pages with weights is rewritten
before every run, by `pwrite` in a process that knows nothing of the cache, or by the cache's own interface. The
ways to have the graph on the device again:

    acquire         the file is mapped, and an acquire finds out what has changed
    known writes    the same, with changes made through the cache's interface
    read_into       `bifolio.open().read_into` copies all of it
    read, copy      `pread` into page-locked memory, and a copy
    managed         `pread` into managed memory (UVM), which the kernel reads
    CPU only        NumPy, once, where --cpu asks for it; its distances are compared with the device's
"""

import heapq
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bifolio
import numpy

import common
from common import Device, Managed, Plain, Results, check, measure, named

PAGE = 64 << 10
NEVER = 0xFFFFFFFF
SHARES = (0, 1, 5, 10, 25, 50, 100)

SOURCE = r"""
// One round: a warp for each vertex whose distance has fallen, a lane for each of its edges.
extern "C" __global__ void relax(const long long* offsets, const unsigned* targets, const unsigned* weights,
                                 long long vertices, const unsigned char* active, unsigned char* next,
                                 unsigned* distances, unsigned* changed) {
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    const unsigned lane = threadIdx.x % 32;
    for (long long v = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32; v < vertices; v += warps) {
        if (!active[v]) continue;
        // It may fall meanwhile: whoever lowers it has the vertex looked at again in the next round.
        const unsigned base = ((volatile unsigned*)distances)[v];
        const long long end = offsets[v + 1];
        for (long long e = offsets[v] + lane; e < end; e += 32) {
            const unsigned target = targets[e], candidate = base + weights[e];
            if (candidate < ((volatile unsigned*)distances)[target] &&
                candidate < atomicMin(&distances[target], candidate)) {
                next[target] = 1;
                *changed = 1;
            }
        }
    }
}
"""

WRITER = r"""
import os, sys
import numpy
path, at, length, page = sys.argv[1], *map(int, sys.argv[2:5])
for line in sys.stdin:
    share, seed = map(int, line.split())
    sys.path.insert(0, sys.argv[5])
    from graph import updates
    file = os.open(path, os.O_RDWR)
    for offset, bytes in updates(at, length, share, seed):
        os.pwrite(file, bytes, offset)
    os.close(file)
    print("done", flush=True)
"""


class Graph:
    """A power-law graph as a file: where its parts lie."""

    def __init__(self, path: Path, vertices: int, edges: int, seed: int) -> None:
        self.path, self.vertices = path, vertices
        random = numpy.random.default_rng(seed)
        # Out-degrees of a Pareto distribution; targets crowd at a few vertices, scattered by a multiplication.
        shares = random.pareto(1.5, vertices) + 0.1
        degrees = numpy.floor(shares * (edges / shares.sum())).astype("int64")
        offsets = numpy.concatenate([[0], degrees.cumsum()]).astype("int64")
        self.edges = int(offsets[-1])
        self.source = int(degrees.argmax())
        up = lambda bytes: -(-bytes // PAGE) * PAGE  # noqa: E731
        self.targets_at = up(offsets.nbytes)
        self.weights_at = self.targets_at + up(self.edges * 4)
        self.bytes = self.weights_at + self.edges * 4
        with open(path, "wb") as file:
            file.write(offsets.tobytes())
            for part, at in (("targets", self.targets_at), ("weights", self.weights_at)):
                file.seek(at)
                for start in range(0, self.edges, 16 << 20):
                    count = min(16 << 20, self.edges - start)
                    if part == "targets":
                        ranks = (vertices * random.random(count, numpy.float32).astype("float64") ** 2.5).astype("uint64")
                        numbers = ranks * numpy.uint64(2_654_435_761) % numpy.uint64(vertices)
                    else:
                        numbers = random.integers(1, 256, count)
                    file.write(numbers.astype("uint32").tobytes())

    def parts(self, array: Any) -> tuple[Any, Any, Any]:
        """Offsets, targets and weights of its bytes."""
        return (
            array[: (self.vertices + 1) * 8].view("int64"),
            array[self.targets_at : self.targets_at + self.edges * 4].view("uint32"),
            array[self.weights_at : self.weights_at + self.edges * 4].view("uint32"),
        )


def updates(at: int, length: int, share: int, seed: int) -> Any:
    """New weights for some percent of the pages from `at` on, chosen at random: (offset, bytes)."""
    random = numpy.random.default_rng(seed)
    pages = -(-length // PAGE)
    chosen = numpy.sort(random.permutation(pages)[: pages * share // 100 if share < 100 else pages])
    for page in chosen:
        start = int(page) * PAGE
        count = min(PAGE, length - start) // 4
        yield at + start, random.integers(1, 256, count).astype("uint32").tobytes()


class ShortestPaths:
    """Bellman-Ford from one vertex, in rounds over the vertices whose distance has fallen."""

    def __init__(self, device: Device, graph: Graph) -> None:
        self.device, self.graph = device, graph
        self.distances = device.empty(graph.vertices, "uint32")
        if device.is_gpu:
            self.active, self.next = (device.empty(graph.vertices, "uint8") for _ in range(2))
            self.changed = device.empty(1, "uint32")

    def run(self, array: Any) -> None:
        offsets, targets, weights = self.graph.parts(array)
        self.distances[:] = NEVER
        self.distances[self.graph.source] = 0
        (self._on_gpu if self.device.is_gpu else self._on_host)(offsets, targets, weights)

    def _on_gpu(self, offsets: Any, targets: Any, weights: Any) -> None:
        kernel, vertices = self.device.kernel(SOURCE, "relax"), self.graph.vertices
        grid, block = self.device.grid(vertices * 32)
        self.active[:] = 0
        self.active[self.graph.source] = 1
        while True:
            self.next[:] = 0
            self.changed[:] = 0
            kernel(grid, block, (offsets, targets, weights, numpy.int64(vertices), self.active, self.next,
                                 self.distances, self.changed))
            if int(self.changed[0]) == 0:
                return
            self.active, self.next = self.next, self.active

    def _on_host(self, offsets: Any, targets: Any, weights: Any) -> None:
        front = numpy.array([self.graph.source])
        while front.size:
            starts, counts = offsets[front], offsets[front + 1] - offsets[front]
            edges = numpy.repeat(starts - counts.cumsum() + counts, counts) + numpy.arange(counts.sum())
            reached = targets[edges]
            candidates = numpy.repeat(self.distances[front], counts) + weights[edges]
            before = self.distances[reached]
            numpy.minimum.at(self.distances, reached, candidates)
            front = numpy.unique(reached[candidates < before])

    def result(self) -> Any:
        return self.device.host(self.distances)


def oracle(graph: Graph) -> Any:
    """Dijkstra's algorithm over what the file has."""
    offsets, targets, weights = (part.tolist() for part in graph.parts(numpy.fromfile(graph.path, "uint8")))
    distances = [NEVER] * graph.vertices
    distances[graph.source] = 0
    queue = [(0, graph.source)]
    while queue:
        distance, vertex = heapq.heappop(queue)
        if distance > distances[vertex]:
            continue
        for edge in range(offsets[vertex], offsets[vertex + 1]):
            candidate, target = distance + weights[edge], targets[edge]
            if candidate < distances[target]:
                distances[target] = candidate
                heapq.heappush(queue, (candidate, target))
    return numpy.array(distances, "uint32")


class Writer:
    """A CPU process that changes weights when it is told to."""

    def __init__(self, graph: Graph) -> None:
        program = [sys.executable, "-c", WRITER, graph.path, graph.weights_at, graph.edges * 4, PAGE, Path(__file__).parent]
        self.process = subprocess.Popen(
            [str(word) for word in program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
        )

    def update(self, share: int, seed: int) -> None:
        print(share, seed, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline() if self.process.stdout else ""
        check(answer == "done\n", "the process that changes weights has ended")

    def close(self) -> None:
        self.process.communicate()


def run(options: Any) -> Results:
    device = Device(options.device)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "gaia-graph"
    graph = Graph(path, options.vertices, options.edges, options.seed)
    # Everything is on the device at a time, and nothing is written there: no twins.
    common.budget(options.budget or graph.bytes + (64 << 20))
    paths = ShortestPaths(device, graph)
    results = Results(
        "graph",
        "Shortest paths over a graph that a CPU process changes",
        f"Figure 7 of the GAIA paper: a power-law graph of {graph.vertices} vertices and {graph.edges} edges, {graph.bytes} "
        f"bytes in the page cache, and new weights in some percent of their pages of 64 KiB before every run. \"input\" is "
        "the time until the device has the graph, \"all\" includes the search, the writer's time is in neither.",
        ("way", "updated %", "input s", "all s", "fetched", "compared"),
        options,
    )
    mapping = bifolio.map(path, device=device.name)
    through = bifolio.map(path, writable=True, device=device.name)
    writer, file, plain_file = Writer(graph), bifolio.open(path), open(path, "rb", buffering=0)
    target, plain = device.empty(graph.bytes, "uint8"), Plain(device, graph.bytes)
    shared = Managed(device, graph.bytes) if device.is_gpu else None
    seed, report, input_seconds = options.seed, None, [0.0]

    def by_process(share: int) -> None:
        nonlocal seed
        seed += 1
        writer.update(share, seed)

    def by_cache(share: int) -> None:
        nonlocal seed
        seed += 1
        for offset, bytes in updates(graph.weights_at, graph.edges * 4, share, seed):
            through.write_from(bytes, offset)

    def acquired(search: Callable[[Any], None]) -> None:
        nonlocal report
        with mapping.acquired() as part:
            report = part.report
            search(device.array(part, "uint8"))

    def read_into(search: Callable[[Any], None]) -> None:
        file.read_into(target)
        search(target)

    def read_copy(search: Callable[[Any], None]) -> None:
        array = plain.read(plain_file, 0, graph.bytes)
        device.wait()
        search(array)

    def managed(search: Callable[[Any], None]) -> None:
        common.read_fully(plain_file, 0, shared.cpu)
        search(shared.on(device, "uint8"))

    ways = {"acquire": (by_process, acquired), "known writes": (by_cache, acquired), "read_into": (by_process, read_into),
            "read, copy": (by_process, read_copy), "managed": (by_process, managed)}
    if shared is None:
        del ways["managed"]
    try:
        inputs: dict[tuple[str, int], float] = {}
        totals: dict[tuple[str, int], float] = {}
        for share in SHARES:
            for name, (update, way) in ways.items():
                seconds = []

                def once() -> None:
                    started = time.perf_counter()

                    def search(array: Any) -> None:
                        seconds.append(time.perf_counter() - started)
                        paths.run(array)

                    with device.use():
                        way(search)
                    device.wait()

                report = None
                times = measure(once, options.repetitions, lambda: update(share))
                inputs[name, share], totals[name, share] = float(numpy.median(seconds[1:])), times.median
                if graph.edges <= options.check_edges:
                    through.sync()
                    check((paths.result() == oracle(graph)).all(), f"{name} at {share} %: a distance")
                results.row(name, share, inputs[name, share], times.median, report.fetched if report else "",
                            report.compared if report else "")
            if graph.edges > options.check_edges:
                # All ways have seen their own weights: one more search by each over the same ones.
                by_process(0)
                found = []
                for name, (_, way) in ways.items():
                    with device.use():
                        way(paths.run)
                    found.append(paths.result().copy())
                check(all((one == found[0]).all() for one in found), f"at {share} % the ways differ")
        if options.cpu:
            on_cpu = ShortestPaths(Device("host:0"), graph)
            with device.use():
                acquired(paths.run)
            # Once, and without a warm-up: it takes long.
            started = time.perf_counter()
            on_cpu.run(numpy.fromfile(path, "uint8"))
            results.row("CPU only", "", "", time.perf_counter() - started, "", "")
            check((on_cpu.result() == paths.result()).all(), "the CPU's distances are others")
    finally:
        writer.close()
        mapping.close()
        through.close()
        file.close()
        plain_file.close()
        path.unlink()
    full = inputs["read_into", 0]
    for share, wanted in ((10, "a fifth of a full copy"), (100, "1.05 of a full copy")):
        measured = ", ".join(f"{name} {inputs[name, share] / full:.2f}" for name in ("acquire", "known writes"))
        results.figure(f"{share} % of the pages changed", wanted, f"{measured} of read_into")
    labels = [str(share) for share in SHARES]
    for title, numbers in (("Until the graph is on the device", inputs), ("With the search", totals)):
        series = [(name, [numbers[name, share] * 1e3 for share in SHARES]) for name in ways]
        results.plots.append(common.plot.lines(title, "percent of the weights' pages changed", "milliseconds", labels, series))
    results.write()
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0")
    parser.add_argument("--vertices", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--check-edges", type=int, default=200_000, help="graphs up to here are checked by Dijkstra's algorithm")
    parser.add_argument("--cpu", action="store_true", help="also search by NumPy alone, and compare")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
