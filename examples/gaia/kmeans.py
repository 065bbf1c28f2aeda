#!/usr/bin/env python3
"""k-means, as a neighbour of false sharing and as its victim: figure 1c of the GAIA paper, and section 3.1.

*Shared*: a device and a CPU process cluster the same points together. One structure has the centroids, what each of
the two has summed up, and the group of every point; points are dealt out in stripes of 2 KiB of it, so that both write
to the same pages in every round. Coordinates are integers, and the result is exactly the CPU's. The ways:

    bifolio.map     the structure is a file that is mapped on the device and by the process; sums are read, and
                    centroids written, through the cache
    private, merge  each has a structure of its own; sums and centroids are copied, groups are merged at the end
    router          the process has the file mapped; the device's sums get there by `write_from`, the centroids and at
                    the end the groups come back by `read_into`
    managed         the structure is managed memory (UVM), and the CPU's part is a thread

*Beside*: a process clusters points of its own, while the device and another processor write halves of every page of
one buffer (`false_sharing.py`). The paper found it 47 % slower beside managed memory.
"""

import contextlib
import os
from typing import Any

import bifolio
import numpy

import common
import cpu
import false_sharing
from common import Device, Managed, SharedMemory, check, measure, named
from results import Results

SOURCE = r"""
// Assigns the first side's points to their nearest centroids, and adds up coordinates and counts (`assign` of cpu.py).
extern "C" __global__ void assign(const int* points, long long count, int dimensions, int groups, int share,
                                  const long long* centroids, unsigned* assignments, unsigned long long* sums) {
    __shared__ unsigned long long mine[1024];
    const int width = dimensions + 1;
    for (int i = threadIdx.x; i < groups * width; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        if (i / 512 % 16 < share) continue;
        long long best = 0x7fffffffffffffffLL;
        int nearest = 0;
        for (int group = 0; group < groups; group++) {
            long long distance = 0;
            for (int d = 0; d < dimensions; d++) {
                const long long apart = points[i * dimensions + d] - centroids[group * dimensions + d];
                distance += apart * apart;
            }
            if (distance < best) {
                best = distance;
                nearest = group;
            }
        }
        assignments[i] = nearest;
        for (int d = 0; d < dimensions; d++)
            atomicAdd(&mine[nearest * width + d], (unsigned long long)points[i * dimensions + d]);
        atomicAdd(&mine[nearest * width + dimensions], 1ULL);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < groups * width; i += blockDim.x)
        if (mine[i]) atomicAdd(&sums[i], mine[i]);
}
"""

# What the kernel has room for, in sums and counts.
ROOM = 1024
# Of the buffer beside which a process clusters: as in the paper.
BESIDE_BYTES, BESIDE_TURNS = 64 << 10, 256


class Task:
    """The points, what is asked for, and where the parts of the structure lie."""

    def __init__(self, options: Any) -> None:
        self.count, self.groups, self.dimensions = options.points, options.groups, options.dimensions
        self.rounds, self.share = options.rounds, options.share
        random = numpy.random.default_rng(options.seed)
        middles = random.integers(0, 1000, (self.groups, self.dimensions))
        places = middles[random.integers(0, self.groups, self.count)] + random.integers(0, 200, (self.count, self.dimensions))
        self.points = places.astype("int32")
        self.first = self.points[random.permutation(self.count)[: self.groups]].astype("int64")
        sums = self.groups * (self.dimensions + 1) * 8
        self.sums_at = [self.first.nbytes, self.first.nbytes + sums]
        self.assignments_at = self.first.nbytes + 2 * sums
        self.bytes = self.assignments_at + self.count * 4

    def solve(self) -> None:
        """The oracle: the CPU alone, round by round."""
        centroids, self.assignments = self.first, numpy.zeros(self.count, "uint32")
        everything = numpy.arange(self.count)
        for _ in range(self.rounds):
            centroids = cpu.moved(cpu.assign(self.points, everything, centroids, self.assignments), centroids)
        self.centroids = centroids

    def start(self) -> Any:
        """The structure before the first round: no group is there yet."""
        structure = numpy.full(self.bytes, 0xA5, "uint8")
        structure[: self.first.nbytes] = self.first.view("uint8").reshape(-1)
        return structure

    def parts(self, structure: Any, side: int) -> tuple[Any, Any, Any]:
        """Centroids, a side's sums, and groups."""
        sums = self.groups * (self.dimensions + 1) * 8
        return (
            structure[: self.first.nbytes].view("int64").reshape(self.groups, self.dimensions),
            structure[self.sums_at[side] : self.sums_at[side] + sums].view("int64").reshape(self.groups, -1),
            structure[self.assignments_at : self.bytes].view("uint32"),
        )


class Way:
    """The device's part of a round is the same in all ways: what differs is where the structure lies."""

    name, store = "", ""

    def __init__(self, task: Task, device: Device, points: str, closing: contextlib.ExitStack, folder: Any) -> None:
        self.task, self.device, self.folder, self.closing = task, device, folder, closing
        self.device_points = device.upload(task.points)
        self.head = numpy.empty(task.assignments_at, "uint8")
        if self.name != "managed":
            self.process = closing.enter_context(cpu.Process())
            self.process.do("open", name="points", path=points, store="read")
        self.set_up()

    def by_device(self, structure: Any) -> None:
        """The first side's points; an array of its device."""
        task, device = self.task, self.device
        with device.use():
            centroids, sums, assignments = task.parts(structure, 0)
            if device.is_gpu:
                sums[:] = 0
                grid, block = device.grid(task.count)
                sizes = [numpy.int64(task.count), *map(numpy.int32, (task.dimensions, task.groups, task.share))]
                device.kernel(SOURCE, "assign")(grid, block, (self.device_points, *sizes, centroids, assignments, sums))
            else:
                mine = cpu.dealt(task.count, task.share, 0)
                sums[:] = cpu.assign(self.device_points, mine, centroids.copy(), assignments)
        device.wait()

    def by_cpu(self) -> None:
        """The second side's points."""
        task = self.task
        self.process.do("assign", points="points", structure="structure", groups=task.groups, dimensions=task.dimensions,
                        share=task.share, layout=[task.sums_at[1], task.assignments_at])

    def file(self) -> Any:
        (path,) = self.closing.enter_context(common.scratch_files(self.folder, f"kmeans-{self.name.split('.')[0]}"))
        self.task.start().tofile(path)
        self.process.do("open", name="structure", path=str(path), store="mmap")
        return path

    def set_up(self) -> None: ...

    def reset(self) -> None:
        """The structure is as at the start, wherever it is."""

    def first_side(self) -> None:
        """The device's part of a round."""

    def sums(self, side: int) -> Any:
        """What a side has summed up, for the CPU."""

    def publish(self, centroids: Any) -> None:
        """New centroids, for both."""

    def finish(self) -> None:
        """The device gets the other's groups."""

    def result(self) -> Any:
        """The structure as the device has it at the end, in host memory."""

    def run(self) -> None:
        centroids = self.task.first
        for _ in range(self.task.rounds):
            common.at_once(self.first_side, self.by_cpu)
            centroids = cpu.moved(self.sums(0) + self.sums(1), centroids)
            self.publish(centroids)
        self.finish()

    def verify(self) -> None:
        centroids, _, assignments = self.task.parts(self.result(), 0)
        check((centroids == self.task.centroids).all(), f"{self.name}: the centroids")
        wrong = int((assignments != self.task.assignments).sum())
        check(wrong == 0, f"{self.name}: the groups of {wrong} of {self.task.count} points")


class Mapped(Way):
    name = "bifolio.map"

    def set_up(self) -> None:
        self.path = self.file()
        self.mapping = bifolio.map(self.path, writable=True, device=self.device.name)
        self.closing.callback(self.mapping.close)
        self.at_home = numpy.memmap(self.path, "uint8", "r")

    def reset(self) -> None:
        self.mapping.write_from(self.task.start())
        self.settle()

    def settle(self) -> None:
        with self.device.use():
            self.mapping.acquire()
            self.mapping.release()

    def first_side(self) -> None:
        with self.device.use(), self.mapping.acquired() as part:
            self.by_device(self.device.array(part, "uint8"))

    def sums(self, side: int) -> Any:
        if side == 1:
            return self.task.parts(self.at_home, 1)[1]
        self.mapping.read_into(self.head)
        return self.task.parts(self.head, 0)[1]

    def publish(self, centroids: Any) -> None:
        self.mapping.write_from(centroids.view("uint8").reshape(-1))

    def finish(self) -> None:
        self.settle()

    def result(self) -> Any:
        with self.device.use(), self.mapping.acquired() as part:
            return self.device.host(self.device.array(part, "uint8").copy())


class Private(Way):
    name = "private, merge"

    def set_up(self) -> None:
        self.structure = self.device.empty(self.task.bytes, "uint8")
        self.other = self.device.empty(self.task.bytes, "uint8")
        # Which points are the process's, on the device.
        theirs = numpy.zeros(self.task.count, "bool")
        theirs[cpu.dealt(self.task.count, self.task.share, 1)] = True
        self.is_theirs = self.device.upload(theirs)
        self.memory()

    def memory(self) -> None:
        self.shared = SharedMemory(self.device, self.task.bytes)
        self.closing.callback(self.shared.close)
        self.process.do("open", name="structure", path=self.shared.path, store="mmap")

    def put(self, at: int, content: Any) -> None:
        """Into the device's structure."""
        with self.device.use():
            self.structure[at : at + content.nbytes] = self.device.upload(content)

    def reset(self) -> None:
        self.put(0, self.task.start())
        self.shared.array[:] = self.task.start()
        self.device.wait()

    def first_side(self) -> None:
        self.by_device(self.structure)

    def sums(self, side: int) -> Any:
        if side == 1:
            return self.task.parts(self.shared.array, 1)[1]
        with self.device.use():
            return self.device.host(self.task.parts(self.structure, 0)[1])

    def publish(self, centroids: Any) -> None:
        flat = centroids.view("uint8").reshape(-1)
        self.shared.array[: flat.size] = flat
        self.put(0, flat)

    def fetch(self) -> None:
        """The process's structure, beside the device's own."""
        if self.device.is_gpu:
            self.other.set(self.shared.array)
        else:
            self.other[:] = self.shared.array

    def finish(self) -> None:
        with self.device.use():
            self.fetch()
            mine, theirs = (self.task.parts(structure, 0)[2] for structure in (self.structure, self.other))
            mine[:] = self.device.xp.where(self.is_theirs, theirs, mine)
        self.device.wait()

    def result(self) -> Any:
        with self.device.use():
            return self.device.host(self.structure)


class Routed(Private):
    name = "router"

    def memory(self) -> None:
        self.path = self.file()
        self.routed = self.closing.enter_context(bifolio.open(self.path, "r+"))
        self.descriptor = os.open(self.path, os.O_RDWR)
        self.closing.callback(os.close, self.descriptor)
        self.at_home = numpy.memmap(self.path, "uint8", "r")

    def reset(self) -> None:
        self.put(0, self.task.start())
        os.pwrite(self.descriptor, self.task.start().data, 0)
        self.device.wait()

    def sums(self, side: int) -> Any:
        sums = self.task.parts(self.at_home, side)[1]
        if side == 0:
            at = self.task.sums_at[0]
            with self.device.use():
                self.routed.write_from(self.structure[at : at + sums.nbytes], at)
        return sums

    def publish(self, centroids: Any) -> None:
        flat = centroids.view("uint8").reshape(-1)
        os.pwrite(self.descriptor, flat.data, 0)
        with self.device.use():
            self.routed.read_into(self.structure[: flat.size], 0)

    def fetch(self) -> None:
        self.routed.read_into(self.other)


class Shared(Way):
    name = "managed"

    def set_up(self) -> None:
        self.memory = Managed(self.device, self.task.bytes)

    def reset(self) -> None:
        self.memory.cpu[:] = self.task.start()

    def first_side(self) -> None:
        self.by_device(self.memory.on(self.device, "uint8"))

    def by_cpu(self) -> None:
        task = self.task
        centroids, sums, assignments = task.parts(self.memory.cpu, 1)
        sums[:] = cpu.assign(task.points, cpu.dealt(task.count, task.share, 1), centroids.copy(), assignments)

    def sums(self, side: int) -> Any:
        return self.task.parts(self.memory.cpu, side)[1]

    def publish(self, centroids: Any) -> None:
        self.task.parts(self.memory.cpu, 0)[0][:] = centroids

    def result(self) -> Any:
        return self.memory.cpu.copy()


def together(options: Any, results: Results, note: dict[str, float]) -> None:
    """A device and a process cluster together."""
    task, device = Task(options), Device(options.device)
    task.solve()
    kinds = [Mapped, Private, Routed] + ([Shared] if device.is_gpu else [])
    with common.scratch_files(options.folder, "kmeans-points") as (points,):
        task.points.tofile(points)
        for kind in kinds:
            with contextlib.ExitStack() as closing:
                way = kind(task, device, str(points), closing, options.folder)
                note[way.name] = measure(way.run, options.repetitions, way.reset, way.verify).median
                results.row("together", way.name, task.rounds, note[way.name], note[way.name] / task.rounds * 1e3)


def beside(options: Any, results: Results, note: dict[str, float]) -> None:
    """A process clusters alone, and beside two that share pages."""
    sides = [false_sharing.Side(options.device, 0), false_sharing.Side(options.other, 1)]
    job = {"count": options.points, "groups": options.groups, "dimensions": options.dimensions, "rounds": options.rounds,
           "seed": options.seed}
    with cpu.Process() as process, \
            false_sharing.prepared(sides, BESIDE_BYTES, "mmap", (options.folder, None), options.seed) as ways:
        wanted = process.do("cluster", **job)["sum"]
        for name, way in [("alone", None), *ways.items()]:
            seconds, runs = [], 0
            if way:
                way.run(BESIDE_TURNS)
                way.verify()
            for _ in range(options.repetitions):
                process.start("cluster", **job)
                while way and not process.is_done():
                    way.run(BESIDE_TURNS)
                    runs += 1
                answer = process.wait()
                check(answer["sum"] == wanted, f"k-means beside {name}: the centroids")
                seconds.append(answer["seconds"])
            if way:
                way.verify()
            note[name] = float(numpy.median(seconds))
            results.row("beside", name, runs, note[name], note[name] / options.rounds * 1e3)


def run(options: Any) -> Results:
    common.need(options.groups * (options.dimensions + 1) <= ROOM,
                f"groups x (dimensions + 1) is at most {ROOM}, and not {options.groups * (options.dimensions + 1)}")
    common.need(options.groups <= options.points, f"there are {options.points} points for {options.groups} groups")
    common.need(0 < options.share < cpu.DEAL,
                f"the CPU's share is 1 to {cpu.DEAL - 1} of {cpu.DEAL} stripes, and not {options.share}")
    common.need(options.device != options.other, f"two processors are needed, and not twice {options.device}")
    common.budget(options.budget or 16 * options.points + (64 << 20))
    other = "another process" if options.other == common.PROCESS else options.other
    results = Results(
        "kmeans",
        f"k-means by {options.device} and a CPU process",
        f"Section 3.1 of the GAIA paper: {options.points} points of {options.dimensions} integers in {options.groups} groups, "
        f"{options.rounds} rounds. Together: of 16 stripes the process has {options.share}, and each round both write to every page "
        f"of one structure. Beside: a process clusters alone, while {options.device} and {other} write halves of the pages of "
        f"{named(BESIDE_BYTES)}; \"rounds\" is then how often they wrote {BESIDE_TURNS} times.",
        ("part", "way", "rounds", "seconds", "ms a round"),
        options,
    )
    shared: dict[str, float] = {}
    alone: dict[str, float] = {}

    def summary() -> None:
        for rival in ("managed", "private, merge", "router"):
            wanted = "below 1" if rival == "managed" else "-"
            results.ratio("k-means with a shared structure", wanted, shared.get("bifolio.map"), shared.get(rival), rival)
        for name in ("bifolio.map", "managed"):
            wanted = "the paper: as private buffers" if name == "bifolio.map" else "the paper: up to 1.47"
            results.ratio(f"k-means of a CPU beside false sharing by {name}", wanted, alone.get(name),
                          alone.get("private, merge"), "the same beside private buffers")
        names = ("bifolio.map", "private, merge", "router", "managed", "alone")
        groups = [("together", [shared.get(name) for name in names]), ("beside", [alone.get(name) for name in names])]
        results.bars("k-means", "seconds", groups, names)

    results.summary = summary
    with results:
        together(options, results, shared)
        beside(options, results, alone)
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0")
    parser.add_argument("--other", type=common.other_name, default=common.PROCESS,
                        help="what shares pages with the device in the second part: a device, or a CPU process (process)")
    parser.add_argument("--points", type=common.count, default=20_000)
    parser.add_argument("--dimensions", type=common.count, default=3)
    parser.add_argument("--groups", type=common.count, default=16)
    parser.add_argument("--rounds", type=common.count, default=4)
    parser.add_argument("--share", type=common.count, default=8, help="of 16 stripes of points, those of the CPU process")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
