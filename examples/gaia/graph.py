#!/usr/bin/env python3
"""Shortest paths over a graph whose weights a CPU process changes between the runs: figure 7 of the GAIA paper.

The graph is a file (CSR: offsets, targets, weights), of which a share of the pages with weights is rewritten
before every run, by `pwrite` in a process that knows nothing of the cache, or by the cache's own interface. The
ways to have the graph on the device again:

    acquire         the file is mapped, and an acquire finds out what the unknown process has changed
    known writes    the same, with changes made through the cache's interface
    read_into       `bifolio.open().read_into` copies all of it
    read, copy      `pread` into page-locked memory, and a copy
    managed         `pread` into managed memory (UVM), which the kernel reads
    CPU only        NumPy, once, where --cpu asks for it; its distances are compared with the device's
"""

import contextlib
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
from common import Device, Managed, Plain, check, measure
from results import Results

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
            [str(word) for word in program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ,
            start_new_session=True)

    def update(self, share: int, seed: int) -> None:
        print(share, seed, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline() if self.process.stdout else ""
        check(answer == "done\n", "the process that changes weights has ended")

    def close(self) -> None:
        self.process.communicate()


class Service:
    """A graph on a device, what changes it, and the ways to have it there again. A way is called with the search."""

    def __init__(self, device: Device, graph: Graph, seed: int, closing: contextlib.ExitStack) -> None:
        self.device, self.graph, self.seed, self.report = device, graph, seed, None
        self.paths = ShortestPaths(device, graph)
        self.mapping = closing.enter_context(bifolio.map(graph.path, device=device.name))
        self.through = closing.enter_context(bifolio.map(graph.path, writable=True, device=device.name))
        self.file = closing.enter_context(bifolio.open(graph.path))
        self.plain_file = closing.enter_context(open(graph.path, "rb", buffering=0))
        self.writer = Writer(graph)
        closing.callback(self.writer.close)
        self.target, self.plain = device.empty(graph.bytes, "uint8"), Plain(device, graph.bytes)
        self.memory = Managed(device, graph.bytes) if device.is_gpu else None
        self.ways = {"acquire": (self.by_process, self.acquired), "known writes": (self.by_cache, self.acquired),
                     "read_into": (self.by_process, self.read_into), "read, copy": (self.by_process, self.read_copy)}
        self.ways |= {"managed": (self.by_process, self.managed)} if self.memory else {}

    def by_process(self, share: int) -> None:
        self.seed += 1
        self.writer.update(share, self.seed)

    def by_cache(self, share: int) -> None:
        self.seed += 1
        for offset, bytes in updates(self.graph.weights_at, self.graph.edges * 4, share, self.seed):
            self.through.write_from(bytes, offset)

    def acquired(self, search: Callable[[Any], None]) -> None:
        with self.mapping.acquired() as part:
            self.report = part.report
            search(self.device.array(part, "uint8"))

    def read_into(self, search: Callable[[Any], None]) -> None:
        self.file.read_into(self.target)
        search(self.target)

    def read_copy(self, search: Callable[[Any], None]) -> None:
        array = self.plain.read(self.plain_file, 0, self.graph.bytes)
        self.device.wait()
        search(array)

    def managed(self, search: Callable[[Any], None]) -> None:
        common.read_fully(self.plain_file, 0, self.memory.cpu)
        search(self.memory.on(self.device, "uint8"))

    def answer(self, name: str, search: Callable[[Any], None] | None = None) -> Any:
        """The distances by a way, of the graph as it is now."""
        self.report = None
        with self.device.use():
            self.ways[name][1](search or self.paths.run)
        self.device.wait()
        return self.paths.result()

    def check_all(self, share: int, wanted: Any = None) -> None:
        """All ways give the same distances, and the oracle's if there is one."""
        self.by_process(share)
        self.through.sync()
        for name in self.ways:
            got = self.answer(name).copy()
            wanted = got if wanted is None else wanted
            check((got == wanted).all(), f"{name} at {share} %: {int((got != wanted).sum())} of {got.size} distances")


def check_small(device: Device, options: Any) -> None:
    """All ways against Dijkstra's algorithm, on a graph that is small enough for it."""
    edges = min(options.edges, options.check_edges)
    with common.scratch_files(options.folder, "graph-small") as (path,), contextlib.ExitStack() as closing:
        graph = Graph(path, max(2, min(options.vertices, edges // 20)), edges, options.seed)
        service = Service(device, graph, options.seed, closing)
        for share in (0, 10, 100):
            for name, (update, _) in service.ways.items():
                update(share)
                service.through.sync()
                wrong = int((service.answer(name) != oracle(graph)).sum())
                check(wrong == 0, f"{name} at {share} %: {wrong} of {graph.vertices} distances")


def run(options: Any) -> Results:
    device = Device(options.device)
    common.need(options.vertices > 1, "a graph has two vertices at least")
    # Everything is on the device at a time, and nothing is written there: no twins.
    common.budget(options.budget or 4 * options.edges * 2 + 16 * options.vertices + (64 << 20))
    results = Results(
        "graph",
        "Shortest paths over a graph that a CPU process changes",
        f"Figure 7 of the GAIA paper: a power-law graph of {options.vertices} vertices and some {options.edges} edges in the "
        "page cache, and new weights in some percent of their pages of 64 KiB before every run. \"input\" is the time until the "
        "device has the graph, \"all\" includes the search, the writer's time is in neither.",
        ("way", "updated %", "input s", "all s", "fetched", "compared"),
        options,
    )
    inputs: dict[tuple[str, int], float] = {}
    totals: dict[tuple[str, int], float] = {}

    def time_it(service: Service, name: str, share: int) -> None:
        seconds = []

        def once() -> None:
            started = time.perf_counter()

            def search(array: Any) -> None:
                seconds.append(time.perf_counter() - started)
                service.paths.run(array)

            service.answer(name, search)

        times = measure(once, options.repetitions, lambda: service.ways[name][0](share))
        inputs[name, share], totals[name, share] = float(numpy.median(seconds[1:])), times.median
        counted = (service.report.fetched, service.report.compared) if service.report else ("", "")
        results.row(name, share, inputs[name, share], times.median, *counted)

    def on_cpu(service: Service) -> None:
        found = ShortestPaths(Device("host:0"), service.graph)
        wanted = service.answer("acquire")
        # Once, and without a warm-up: it takes long.
        started = time.perf_counter()
        found.run(numpy.fromfile(service.graph.path, "uint8"))
        results.row("CPU only", "", "", time.perf_counter() - started, "", "")
        check((found.result() == wanted).all(), "the CPU's distances are others")

    def summary() -> None:
        for share, unknown, known in ((10, "at most 1.2", "at most 0.15"), (100, "at most 1.1", "at most 1.1")):
            for name, writer, wanted in (("acquire", "an unknown", unknown), ("known writes", "a known", known)):
                results.ratio(f"acquire after {writer} writer changed {share} %", wanted, inputs.get((name, share)),
                              inputs.get(("read_into", share)), "a copy of the file as it then is")
                results.ratio(f"the same with the search, {share} %, {writer} writer", "below 1", totals.get((name, share)),
                              totals.get(("managed", share)), "managed")
        names = ("acquire", "known writes", "read_into", "read, copy", "managed")
        for title, numbers in (("Until the graph is on the device", inputs), ("With the search", totals)):
            series = [(name, [(found := numbers.get((name, share))) and found * 1e3 for share in SHARES]) for name in names]
            results.lines(title, "percent of the weights' pages changed", "milliseconds", list(map(str, SHARES)), series)

    results.summary = summary
    with results, contextlib.ExitStack() as closing:
        check_small(device, options)
        (path,) = closing.enter_context(common.scratch_files(options.folder, "graph"))
        service = Service(device, Graph(path, options.vertices, options.edges, options.seed), options.seed, closing)
        for share in SHARES:
            service.check_all(share)
            for name in service.ways:
                time_it(service, name, share)
        if options.cpu:
            on_cpu(service)
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0")
    parser.add_argument("--vertices", type=common.count, default=20_000)
    parser.add_argument("--edges", type=common.count, default=1_000_000)
    parser.add_argument("--check-edges", type=common.count, default=60_000,
                        help="edges of the graph that Dijkstra's algorithm checks")
    parser.add_argument("--cpu", action="store_true", help="also search by NumPy alone, and compare")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
