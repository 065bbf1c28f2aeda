"""Mapped files: what is seen by whom, which memory may be lent, and that no array points to memory that is gone."""

import errno
import gc
import io
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import bifolio
import pytest

from conftest import gpus, need_gpu, need_module, run_program

PAGE = 64 << 10
HOSTS = ("host:0", "host:1")


def test_a_mapped_file_is_an_array_and_comes_once(path: Path, content: bytes) -> None:
    numpy = need_module("numpy")
    with bifolio.map(path, device="host:0") as mapping:
        assert (mapping.nbytes, len(mapping), mapping.offset) == (len(content), len(content), 0)
        assert (mapping.device, mapping.writable, mapping.path) == ("host:0", False, str(path))
        report = mapping.acquire()
        assert (report.fetched, report.hits, report.released) == (-(-len(content) // PAGE), 0, 0)
        assert report.seconds > 0
        array = numpy.asarray(mapping)
        assert (array.dtype, array.ctypes.data, array.flags.writeable) == (numpy.uint8, mapping.ptr, False)
        assert array.tobytes() == content
        again = mapping.acquire()
        assert (again.fetched, again.hits) == (0, report.fetched)
        mapping.release()
        assert mapping.release().released == 0
    assert mapping.closed


def test_advice_brings_pages_and_gives_them_back(path: Path, content: bytes) -> None:
    with bifolio.map(path, device="host:2") as mapping:
        mapping.advise("will_need")
        wanted = -(-len(content) // PAGE)
        deadline = time.monotonic() + 20
        while mapping.acquire().fetched and time.monotonic() < deadline:
            mapping.release()
        report = mapping.acquire()
        assert (report.fetched, report.hits) == (0, wanted)
        mapping.advise("dont_need")
        assert bytes(memoryview(mapping)) == content, "what is acquired stays"
        mapping.release()
        mapping.release()
        mapping.advise("dont_need")
        assert mapping.acquire().fetched == wanted
        mapping.release()
        with pytest.raises(ValueError, match="unknown advice"):
            mapping.advise("sequential")
        with pytest.raises((ValueError, IndexError, bifolio.Error)):
            mapping.advise("random", len(content), 1)


def test_a_part_is_mapped_and_acquired_by_itself(path: Path, content: bytes) -> None:
    with bifolio.map(path, 100_000, 200_000, device="host:1") as mapping:
        with mapping.acquired(5, 70_000) as part:
            assert (part.nbytes, len(part), part.ptr, part.device) == (70_000, 70_000, mapping.ptr + 5, "host:1")
            assert bytes(part) == content[100_005:170_005]
            assert part.report is not None and part.report.fetched > 0 and part.released is None
        assert part.released is not None and part.released.released == 0
        with pytest.raises(ValueError, match="already acquired"):
            part.__enter__()
        with pytest.raises(BufferError, match="is not acquired"):
            memoryview(part)


@pytest.mark.parametrize("close_first", [True, False])
def test_what_is_released_is_seen_by_all_and_what_is_not_by_none(path: Path, content: bytes, close_first: bool) -> None:
    numpy = need_module("numpy")
    one, two = (bifolio.map(path, writable=True, device=device) for device in HOSTS)
    with one.acquired() as mine:
        numpy.asarray(mine)[10:13] = 7
    assert mine.released is not None and mine.released.released == 1
    assert path.read_bytes() == content, "bytes move when somebody needs them"
    with two.acquired() as theirs:
        assert bytes(memoryview(theirs)[9:14]) == content[9:10] + b"\7\7\7" + content[13:14]
        numpy.asarray(theirs)[13] = 8
        seen = bytearray(6)
        assert one.read_into(seen, 9) == 6
        assert seen == content[9:10] + b"\7\7\7" + content[13:15], "not released yet"
    one.read_into(seen, 9)
    assert seen[4] == 8
    if close_first:
        # The last one to have it mapped takes what was released to the file.
        one.close()
        two.close()
    else:
        one.sync()
    assert path.read_bytes() == content[:10] + b"\7\7\7\x08" + content[14:]
    one.close()
    two.close()


def evict(path: Path) -> None:
    """Empties the page cache of a file."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def test_cpus_read_what_only_a_device_has_cached_from_there(path: Path, content: bytes) -> None:
    numpy = need_module("numpy")

    def cached() -> int:
        return bifolio.explain(path, device="host:0")["residency"]["cached_bytes"]

    expected = content[:5] + b"\1\1" + content[7:]
    # A file that changed within the clock's last tick may have changed unnoticed, and is asked.
    while time.time() - path.stat().st_mtime < 0.1:
        time.sleep(0.01)
    with bifolio.map(path, writable=True, device="host:0") as mapping:
        with mapping.acquired(0, 1 << 20) as part:
            numpy.asarray(part)[5:7] = 1
        evict(path)
        if cached() != 0:
            pytest.skip("this file system keeps the file in memory")
        seen = bytearray(1 << 20)
        assert mapping.read_into(seen) == len(seen)
        assert seen == expected[: 1 << 20]
        # What was released is home now, which takes the pages about it, and not the megabyte.
        assert cached() <= 64 << 10
        # What another writer does is noticed, and read from where it is.
        with open(path, "r+b") as file:
            file.write(b"xyz")
        expected = b"xyz" + expected[3:]
        evict(path)
        seen = bytearray(len(content))
        assert mapping.read_into(seen) == len(content)
        assert seen == expected
    assert path.read_bytes() == expected


def test_what_was_not_released_ends_with_the_mapping(path: Path, content: bytes) -> None:
    with pytest.warns(RuntimeWarning, match="1 pages that were changed and not released"):
        with bifolio.map(path, writable=True, device="host:0") as mapping:
            mapping.acquire()
            view = memoryview(mapping)
            view[:4] = b"gone"
    # The memory is there, and what was discarded is not.
    assert bytes(view) == content
    assert path.read_bytes() == content
    view.release()


@pytest.mark.parametrize("device", HOSTS)
def test_arrays_outlive_release_close_and_the_mapping(path: Path, content: bytes, device: str) -> None:
    numpy = need_module("numpy")
    mapping = bifolio.map(path, writable=True, device=device)
    mapping.acquire()
    by_buffer, by_dlpack = numpy.asarray(mapping), numpy.from_dlpack(mapping)
    mapping.release()
    mapping.close()
    del mapping
    gc.collect()
    for array in (by_buffer, by_dlpack):
        assert array.tobytes() == content
    del by_buffer
    gc.collect()
    assert by_dlpack.tobytes() == content
    # Mapped anew it is the same memory, and up to date.
    os.truncate(path, 1000)
    with bifolio.map(path, device=device) as mapping, mapping.acquired() as part:
        assert bytes(part) == content[:1000]
    path.write_bytes(content)
    with bifolio.map(path, 0, 2000, device=device) as mapping, mapping.acquired() as part:
        assert numpy.array(part, dtype="uint16").tolist() == list(content[:2000])


EVICTS = """
import sys, numpy, bifolio
path, frame = sys.argv[1], 2 << 20
with open(path, "rb") as file:
    content = file.read()
mapping = bifolio.map(path, device="host:0")
kept = []
for turn in range(2):
    for start in range(0, len(content), frame):
        with mapping.acquired(start, frame) as part:
            array = numpy.asarray(part)
            assert array.tobytes() == content[start : start + frame]
            if turn == 0 and start in (0, 6 * frame):
                kept.append((start, array))
        del array, part
for start, array in kept:
    assert array.tobytes() == content[start : start + frame], "its memory was taken away"
stats = bifolio.cache_stats()
(host,) = stats["devices"]
assert host["device"] == "host:0" and host["used_bytes"] <= host["budget_bytes"] == 4 * frame, stats
assert stats["evicted"] > 0, stats
try:
    mapping.acquire(0, 4 * frame)
except MemoryError as error:
    assert "budget" in str(error)
else:
    raise SystemExit("more was acquired than the budget holds")
del kept, array
with mapping.acquired(0, 4 * frame) as part:
    assert bytes(part) == content[: 4 * frame]
print("done")
"""


def test_lent_memory_is_not_evicted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("numpy")
    path = folder / "windows"
    path.write_bytes(random.Random(3).randbytes(16 << 20))
    monkeypatch.setenv("BIFOLIO_CACHE_BYTES", "8M")
    done = run_program(EVICTS, path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_memory_that_is_not_acquired_is_not_lent(path: Path) -> None:
    numpy = need_module("numpy")
    with bifolio.map(path, device="host:0") as mapping:
        for lend in (memoryview, numpy.asarray, numpy.from_dlpack):
            with pytest.raises(BufferError, match="is not acquired"):
                lend(mapping)
        mapping.acquire(0, mapping.nbytes - 1)
        with pytest.raises(BufferError, match=f"byte {mapping.nbytes - 1} "):
            memoryview(mapping)
        mapping.acquire(PAGE, mapping.nbytes - PAGE)
        memoryview(mapping).release()
        mapping.release(0, mapping.nbytes - 1)
        with pytest.raises(BufferError, match="byte 0 "):
            memoryview(mapping)
    with pytest.raises(BufferError, match="closed"):
        memoryview(mapping)


def test_views_of_read_only_mappings_are_read_only(path: Path) -> None:
    numpy = need_module("numpy")
    with bifolio.map(path, device="host:0") as mapping, mapping.acquired() as part:
        with pytest.raises(TypeError):
            memoryview(part)[0] = 1
        assert not numpy.from_dlpack(part).flags.writeable
        with pytest.raises(BufferError, match="read-only"):
            part.__dlpack__()
        with pytest.raises(ValueError, match="read-only"), bifolio.open(path) as file:
            file.read_into(part)
        with pytest.raises(io.UnsupportedOperation, match="writable=True"):
            mapping.write_from(b"x")
        with pytest.raises(AttributeError, match="no CUDA array interface"):
            part.__cuda_array_interface__  # noqa: B018
        assert part.__dlpack_device__() == mapping.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError, match="another device"):
            part.__dlpack__(max_version=(1, 0), dl_device=(2, 0))


def test_wrong_use_is_refused_with_a_sentence(path: Path, folder: Path, content: bytes) -> None:
    with pytest.raises(FileNotFoundError):
        bifolio.map(folder / "nothing", device="host:0")
    with pytest.raises(ValueError, match="cannot map bytes"):
        bifolio.map(path, 0, len(content) + 1, device="host:0")
    for offset in (len(content), 1 << 63):
        with pytest.raises(ValueError, match="lie outside the file"):
            bifolio.map(path, offset, device="host:0")
    with pytest.raises(ValueError, match="host:99"):
        bifolio.map(path, device="host:99")
    with pytest.raises(ValueError, match="an offset or length must be"):
        bifolio.map(path, -1, device="host:0")
    mapping = bifolio.map(path, writable=True, device="host:0")
    with pytest.raises(ValueError, match="cannot release bytes .*: not acquired"):
        mapping.release()
    for offset, length in ((0, 0), (0, len(content) + 1), (1 << 63, 1 << 63), (len(content), None)):
        with pytest.raises(ValueError, match="lie outside the mapping"):
            mapping.acquire(offset, length)
    with pytest.raises(ValueError, match="no streams"):
        mapping.acquire(stream=1)
    with pytest.raises(ValueError, match="do not fit"):
        mapping.write_from(b"xy", len(content) - 1)
    assert mapping.read_into(bytearray(5), len(content)) == 0
    with pytest.raises(ValueError, match="read-only"):
        mapping.read_into(b"12")
    mapping.close()
    mapping.close()
    for call in (mapping.acquire, mapping.release, mapping.sync, mapping.__enter__):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert mapping.closed and "read-only" not in repr(mapping)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_a_file_that_may_not_be_written_is_not_mapped_writable(path: Path) -> None:
    path.chmod(0o444)
    with pytest.raises(PermissionError):
        bifolio.map(path, writable=True, device="host:0")


def test_a_write_that_fails_is_the_systems_error(path: Path) -> None:
    # A limit on the size of files, in a process of its own, makes writing home fail.
    program = """
import resource, signal, sys, bifolio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
mapping = bifolio.map(sys.argv[1], writable=True, device="host:0")
with mapping.acquired() as part:
    memoryview(part)[100_000] ^= 1
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
try:
    mapping.sync()
except OSError as error:
    print(error.errno, "stays on the device" in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
mapping.sync()
"""
    before = path.read_bytes()
    done = run_program(program, path)
    assert (done.returncode, done.stdout) == (0, f"{errno.EFBIG} True\n"), done.stderr
    assert path.read_bytes()[100_000] == before[100_000] ^ 1


def test_a_close_that_cannot_write_says_so_and_loses_nothing(path: Path) -> None:
    program = """
import resource, signal, sys, bifolio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def change(at):
    mapping = bifolio.map(sys.argv[1], writable=True, device="host:0")
    with mapping.acquired() as part:
        memoryview(part)[at] ^= 1
    return mapping

soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
mapping = change(100_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
try:
    mapping.close()
except OSError as error:
    print(error.errno, "bytes 65536 to 131072 (1 page)" in str(error), mapping.closed)
# Whoever maps it again finds it.
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
with change(200_000) as mapping:
    pass
try:
    with change(300_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
except OSError as error:
    print(error.errno)
"""
    before = path.read_bytes()
    done = run_program(program, path)
    assert (done.returncode, done.stdout) == (0, f"{errno.EFBIG} True True\n{errno.EFBIG}\n"), done.stderr
    # Nobody is left to be told of the last.
    assert "what was released of bytes 262144 to 327680 (1 page) is lost" in done.stderr, done.stderr
    after = path.read_bytes()
    assert [after[at] ^ before[at] for at in (100_000, 200_000, 300_000)] == [1, 1, 0]


ENDS = """
import sys, bifolio, numpy
one = bifolio.map(sys.argv[1], writable=True, device="host:0")
with one.acquired() as part:
    array = numpy.asarray(part)
    array[:3] = 1
one.acquire()
array[3:6] = 2
kept = numpy.from_dlpack(one)
{end}
"""


@pytest.mark.parametrize("end", ["", "del one, part", "one.close()", "raise SystemExit(0)"])
def test_the_end_of_the_interpreter_keeps_what_was_released(path: Path, content: bytes, end: str) -> None:
    need_module("numpy")
    done = run_program(ENDS.format(end=end), path)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b"\1\1\1" + content[3:]


def test_children_of_fork_leave_the_parents_mappings_alone(path: Path, content: bytes) -> None:
    program = """
import gc, os, sys, bifolio
mapping = bifolio.map(sys.argv[1], writable=True, device="host:0")
mapping.acquire()
view = memoryview(mapping)
view[:2] = b"ab"
mapping.release()
child = os.fork()
if child == 0:
    try:
        mapping.acquire()
    except bifolio.Error as error:
        refused = "forked" in str(error)
    view.release()
    del view, mapping
    gc.collect()
    os._exit(0 if refused else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert bytes(view[:2]) == b"ab"
mapping.sync()
"""
    done = run_program(program, path)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b"ab" + content[2:]


def test_other_threads_go_on_while_a_file_comes(folder: Path) -> None:
    path = folder / "large"
    path.write_bytes(bytes(64 << 20))
    counted, ends, before = 0, False, sys.getswitchinterval()

    def count() -> None:
        nonlocal counted
        while not ends:
            counted += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    sys.setswitchinterval(1000)
    thread.start()
    try:
        with bifolio.map(path, device="host:0") as mapping:
            for _ in range(100):
                seen = counted
                with mapping.acquired():
                    pass
                if counted > seen:
                    break
            else:
                pytest.fail("no other thread ran while the file was acquired")
    finally:
        ends = True
        sys.setswitchinterval(before)
        thread.join()
        path.unlink()


def test_threads_share_a_mapping(path: Path, content: bytes) -> None:
    numpy = need_module("numpy")
    failures = []
    with bifolio.map(path, writable=True, device="host:0") as mapping:

        def work(number: int) -> None:
            try:
                for _ in range(20):
                    with mapping.acquired() as part:
                        numpy.asarray(part)[number::4] += 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        mapping.sync()
    assert path.read_bytes() == ((numpy.frombuffer(content, "uint8") + 20) & 255).astype("uint8").tobytes()


def test_the_stats_are_those_of_the_process(path: Path, content: bytes) -> None:
    pages = -(-len(content) // PAGE)

    def of_host(stats: dict[str, Any]) -> dict[str, Any]:
        (found,) = [device for device in stats["devices"] if device["device"] == "host:2"]
        return found

    with bifolio.map(path, writable=True, device="host:2") as mapping:
        before = bifolio.cache_stats()
        assert of_host(before)["pages"] == 0
        with mapping.acquired() as part:
            memoryview(part)[0] ^= 255
        after = bifolio.cache_stats()
        assert after["fetched"] - before["fetched"] == pages
        assert after["released"] - before["released"] == 1
        assert {name: of_host(after)[name] for name in ("pages", "behind", "pending")} == {
            "pages": pages,
            "behind": 0,
            "pending": 1,
        }
        assert 0 < of_host(after)["used_bytes"] <= of_host(after)["budget_bytes"]
        mapping.sync()
        assert of_host(bifolio.cache_stats())["pending"] == 0
    assert "pages=" not in repr(part.report) and f"fetched={pages}" in repr(part.report)


WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for line in sys.stdin:
    at, byte = map(int, line.split())
    os.pwrite(file, bytes([byte]), at)
    print("written", flush=True)
"""


class World:
    """A file, two hosts and a CPU process that write bytes of their own, and what all of them have published."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.truth = bytearray(random.Random(size).randbytes(size))
        path.write_bytes(self.truth)
        self.mappings = [bifolio.map(path, writable=True, device=device) for device in HOSTS]
        # What each has acquired: where, the context, a view, and what it has to show.
        self.parts: list[tuple[int, bifolio.Acquired, memoryview, bytearray] | None] = [None, None]
        self.unreleased: list[dict[int, int]] = [{}, {}]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        for device, mapping in enumerate(self.mappings):
            self.release(device)
            mapping.close()
        self.process.communicate()
        assert self.path.read_bytes() == self.truth

    def acquire(self, device: int, first: int, pages: int) -> None:
        """Windows begin and end where pages do, so that it is known what their release publishes."""
        if self.parts[device] is None:
            start = first * PAGE % self.size // PAGE * PAGE
            end = min(start + pages * PAGE, self.size)
            part = self.mappings[device].acquired(start, end - start).__enter__()
            self.parts[device] = (start, part, memoryview(part), self.truth[start:end])
            self.look(device)

    def again(self, device: int) -> None:
        """Brings up to date what is acquired; what was not released stays."""
        if held := self.parts[device]:
            start, part, view, _ = held
            self.mappings[device].acquire(start, part.nbytes)
            expected = self.truth[start : start + part.nbytes]
            for at, byte in self.unreleased[device].items():
                expected[at - start] = byte
            self.parts[device] = (start, part, view, expected)
            self.mappings[device].release(start, part.nbytes)
            self.publish(device)
            self.look(device)

    def look(self, device: int) -> None:
        if held := self.parts[device]:
            assert held[2] == held[3]

    def store(self, device: int, at: int, byte: int) -> None:
        if held := self.parts[device]:
            start, part, view, expected = held
            at = start + at % part.nbytes
            at -= (at - device) % 3
            if at >= start:
                view[at - start] = expected[at - start] = byte
                self.unreleased[device][at] = byte

    def publish(self, device: int) -> None:
        for at, byte in self.unreleased[device].items():
            self.truth[at] = byte
        self.unreleased[device] = {}

    def release(self, device: int) -> None:
        if held := self.parts[device]:
            self.look(device)
            held[1].__exit__()
            held[2].release()
            self.parts[device] = None
            self.publish(device)

    def outside(self, how: int, at: int, byte: int) -> None:
        at %= self.size
        at -= (at - 2) % 3
        if at < 0:
            return
        if how == 0:
            print(at, byte, file=self.process.stdin, flush=True)
            assert self.process.stdout is not None and self.process.stdout.readline() == "written\n"
        elif how == 1:
            with open(self.path, "r+b") as file:
                os.pwrite(file.fileno(), bytes([byte]), at)
        else:
            assert self.mappings[how % 2].write_from(bytes([byte]), at) == 1
        self.truth[at] = byte

    def read(self, device: int, at: int, length: int) -> None:
        at %= self.size
        seen = bytearray(length)
        read = self.mappings[device].read_into(seen, at)
        assert seen[:read] == self.truth[at : at + length]

    def evict(self) -> None:
        evict(self.path)

    def sync(self, device: int) -> None:
        self.mappings[device].sync()
        self.publish(device)
        assert self.path.read_bytes() == self.truth


def steps(strategies: Any) -> Any:
    device, at, byte = strategies.integers(0, 1), strategies.integers(0, 4 * PAGE), strategies.integers(0, 255)
    return strategies.one_of(
        strategies.tuples(strategies.just("acquire"), device, strategies.integers(0, 4), strategies.integers(1, 4)),
        strategies.tuples(strategies.just("store"), device, at, byte),
        strategies.tuples(strategies.just("release"), device),
        strategies.tuples(strategies.sampled_from(["look", "again"]), device),
        strategies.tuples(strategies.just("outside"), strategies.integers(0, 3), at, byte),
        strategies.tuples(strategies.just("read"), device, at, strategies.integers(1, 2 * PAGE)),
        strategies.tuples(strategies.just("sync"), device),
        strategies.tuples(strategies.just("evict")),
    )


def test_devices_and_processes_agree_with_an_array(folder: Path) -> None:
    hypothesis = need_module("hypothesis")
    strategies = need_module("hypothesis.strategies")

    @hypothesis.settings(max_examples=60, deadline=None, database=None, print_blob=True)
    @hypothesis.given(
        size=strategies.sampled_from([1, PAGE - 1, PAGE, 3 * PAGE + 17]),
        script=strategies.lists(steps(strategies), min_size=1, max_size=25),
    )
    def check(size: int, script: list[tuple[Any, ...]]) -> None:
        path = folder / f"world-{size}"
        path.unlink(missing_ok=True)
        world = World(path, size)
        for name, *arguments in script:
            getattr(world, name)(*arguments)
        world.close()

    check()


def test_a_gpu_has_mapped_files(path: Path, content: bytes) -> None:
    need_gpu()
    cupy = need_module("cupy")
    with bifolio.map(path, writable=True, device=gpus()[0]) as mapping, mapping.acquired() as part:
        array, shared = cupy.asarray(part), cupy.from_dlpack(part)
        assert array.data.ptr == shared.data.ptr == part.ptr
        assert array.get().tobytes() == content
        array[:4] = 9
        with pytest.raises(BufferError, match="CUDA array interface"):
            memoryview(part)
    assert array[:8].get().tobytes() == b"\x09" * 4 + content[4:8]
    seen = bytearray(8)
    with bifolio.map(path, device="host:0") as other, other.acquired(0, 8) as part:
        seen[:] = memoryview(part)
    assert seen == b"\x09" * 4 + content[4:8]
    assert path.read_bytes() == b"\x09" * 4 + content[4:]


def test_a_gpu_does_not_lend_what_is_not_acquired(path: Path) -> None:
    need_gpu()
    with bifolio.map(path, device=gpus()[0]) as mapping:
        for lend in (lambda: mapping.__cuda_array_interface__, lambda: mapping.__dlpack__(max_version=(1, 0))):
            with pytest.raises(BufferError, match="is not acquired"):
                lend()
