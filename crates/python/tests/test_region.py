"""Regions: arrays larger than the memory that they get, who keeps it, and what is refused."""

import hashlib
import os
import platform
import threading
from collections.abc import Callable
from typing import Any

import bifolio
import pytest

from conftest import bytes_of_seed, gpus, need_gpu, need_module, run_program

BLOCK = 64 << 10
LEAST = 8 * BLOCK


@pytest.fixture
def paged() -> Callable[..., bifolio.Region]:
    """Regions of the host; skips where the kernel hands no page faults over."""

    def make(nbytes: int, budget: int = LEAST, **options: Any) -> bifolio.Region:
        try:
            return bifolio.paged(nbytes, budget, **{"device": "host", **options})
        except PermissionError as error:
            pytest.skip(str(error))

    return make


def test_an_array_four_times_its_budget_keeps_every_byte(paged: Callable[..., bifolio.Region]) -> None:
    numpy = need_module("numpy")
    content = bytes_of_seed(16 << 20)
    with paged(len(content), len(content) // 4) as region:
        array = numpy.frombuffer(region, "uint8")
        assert array.flags.writeable and not array.any()
        array[:] = numpy.frombuffer(content, "uint8")
        assert hashlib.sha256(array).digest() == hashlib.sha256(content).digest()
        stats = region.stats()
        assert stats["stored"] >= 192 and stats["fetched"] >= 192 and stats["lost"] == stats["refused"] == 0
        assert stats["resident_bytes"] <= region.budget
        assert region.take_trouble() is None
        assert bytes(memoryview(region)[-5:]) == content[-5:]
        del array
    assert region.closed


def test_it_is_sorted_and_summed_in_place(paged: Callable[..., bifolio.Region]) -> None:
    numpy = need_module("numpy")
    region = paged(8 << 20, 2 << 20)
    words = numpy.asarray(region).view("uint64")
    words[:] = numpy.random.default_rng(19).integers(0, 1 << 60, words.size, "uint64")
    expected = numpy.sort(words)
    words.sort()
    assert (words == expected).all()
    assert words.sum() == expected.sum()
    assert region.stats()["fetched"] > 96


def test_threads_share_it(paged: Callable[..., bifolio.Region]) -> None:
    numpy = need_module("numpy")
    region, rounds, count = paged(4 << 20), 5, 4
    failures = []

    def work(number: int) -> None:
        try:
            # Every fourth word of each page, so that threads write to the same blocks.
            words = numpy.frombuffer(region, "uint64")[number::count]
            for turn in range(rounds):
                assert (words == turn * (number + 1)).all()
                words += number + 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    words = numpy.frombuffer(region, "uint64")
    assert (words == numpy.tile(numpy.arange(1, count + 1, dtype="uint64"), words.size // count) * rounds).all()


def test_it_stays_while_it_is_viewed(paged: Callable[..., bifolio.Region]) -> None:
    numpy = need_module("numpy")
    region = paged(2 << 20)
    view, array = memoryview(region), numpy.frombuffer(region, "uint8")
    part = array[5:]
    with pytest.raises(BufferError, match="2 views"):
        region.close()
    view.release()
    del array
    with pytest.raises(BufferError, match="1 views"), region:
        part[0] = 7
    assert not region.closed and region.stats()["new_blocks"] > 0
    # An array outlives the name of its region.
    del region
    assert part[0] == 7 and part.size == (2 << 20) - 5


def test_a_closed_region_refuses_everything(paged: Callable[..., bifolio.Region]) -> None:
    region = paged(1 << 20)
    region.close()
    region.close()
    assert region.closed and "closed" in repr(region) and len(region) == region.nbytes == 1 << 20
    calls: list[Callable[[], object]] = [
        lambda: memoryview(region),
        lambda: bytearray(region),
        region.stats,
        region.take_trouble,
        region.__enter__,
        lambda: region.set_budget(LEAST),
        lambda: region.ptr,
        lambda: region.serves_system_calls,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="the region is closed"):
            call()


def test_the_budget_is_changed(paged: Callable[..., bifolio.Region]) -> None:
    region = paged(4 << 20, 4 << 20)
    assert region.budget == 4 << 20 and region.device == "host:0" and region.ptr % BLOCK == 0
    with memoryview(region) as view:
        view[:] = bytes_of_seed(4 << 20)
    region.set_budget(LEAST)
    assert region.budget == LEAST
    for _ in range(10_000):
        if region.stats()["resident_bytes"] <= LEAST:
            break
        threading.Event().wait(0.001)
    assert region.stats()["resident_bytes"] <= LEAST
    assert bytes(region) == bytes_of_seed(4 << 20)
    with pytest.raises(ValueError, match="524288"):
        region.set_budget(LEAST - 1)


def test_what_cannot_be_is_refused(paged: Callable[..., bifolio.Region]) -> None:
    paged(1).close()
    for nbytes, budget in [(0, LEAST), (1, LEAST - 1), (1, 0), (2**64 - 1, LEAST), (-1, LEAST), (2**64, LEAST)]:
        with pytest.raises(ValueError):
            bifolio.paged(nbytes, budget, "host")
    with pytest.raises(TypeError):
        bifolio.paged("1", LEAST, "host")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nonsense"):
        bifolio.paged(1, LEAST, "nonsense")
    with pytest.raises(bifolio.Error, match="host:99"):
        bifolio.paged(1, LEAST, "host:99")


def test_what_the_device_does_not_take_stays(paged: Callable[..., bifolio.Region]) -> None:
    content = bytes_of_seed(8 << 20)
    region = paged(len(content), device_bytes=2 << 20)
    with memoryview(region) as view:
        view[:] = content
        assert view == content
    assert region.stats()["refused"] > 0
    assert "takes no more of a region" in (region.take_trouble() or "")
    assert region.take_trouble() is None


def test_files_are_read_into_it(paged: Callable[..., bifolio.Region], path: Any, content: bytes) -> None:
    region = paged(len(content))
    if not region.serves_system_calls:
        pytest.skip("system calls may not meet memory of a region that is on the device")
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(region) == len(content)
    assert hashlib.sha256(region).digest() == hashlib.sha256(content).digest()


def test_cold_files_are_read_into_it(paged: Callable[..., bifolio.Region], path: Any, content: bytes) -> None:
    """By direct I/O, whose pages must not leave while the drive writes to them."""
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    region = paged(len(content))
    if not region.serves_system_calls or release < (6, 8):
        pytest.skip("this kernel does not tell that pages are pinned, or system calls may not meet those of a region")
    for turn in range(4):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with memoryview(region) as view:
            view[:] = bytes([turn]) * len(content)
        with bifolio.open(path) as file:
            assert file.read_into(region) == len(content)
        assert hashlib.sha256(region).digest() == hashlib.sha256(content).digest()


FORK = """
import bifolio, os, signal, sys
region = bifolio.paged(4 << 20, 1 << 19, "host")
with memoryview(region) as view:
    view[:] = bytes(range(256)) * (4 << 12)
child = os.fork()
if child == 0:
    signal.alarm(20)
    for call in (region.stats, region.close, lambda: memoryview(region), lambda: bifolio.paged(1, 1 << 19, "host")):
        try:
            call()
        except bifolio.Error as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    del region, call
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert bytes(region) == bytes(range(256)) * (4 << 12)
"""


def test_a_child_of_fork_is_refused(paged: Callable[..., bifolio.Region]) -> None:
    paged(1).close()
    done = run_program(FORK)
    assert done.returncode == 0, done.stderr


# A filter of system calls, as containers have one: userfaultfd, and the ioctl by which its device gives a descriptor.
FORBIDDEN = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
steps = [(0x20, 0, 0, 0), (0x15, 3, 0, 323), (0x15, 0, 3, 16), (0x20, 0, 0, 24), (0x15, 0, 1, 0xaa00),
         (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, program) != 0:
    sys.exit(77)
import bifolio
try:
    bifolio.paged(1 << 20, 1 << 19, "host")
except PermissionError as error:
    print(error)
"""


def test_it_is_said_when_page_faults_may_not_be_handled() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the filter is one of x86-64's system calls")
    done = run_program(FORBIDDEN)
    if done.returncode == 77:
        pytest.skip("this system takes no filters of system calls")
    assert done.returncode == 0, done.stderr
    assert "userfaultfd" in done.stdout and "seccomp" in done.stdout


LEFT = """
import bifolio, threading, time
region = bifolio.paged(4 << 20, 1 << 19, "host")
def work():
    view = memoryview(region)
    while True:
        for at in range(0, len(view), 4096):
            view[at] = 1
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def test_the_interpreter_ends_while_it_is_used(paged: Callable[..., bifolio.Region]) -> None:
    paged(1).close()
    done = run_program(LEFT)
    assert done.returncode == 0, done.stderr


def test_a_gpu_has_the_rest() -> None:
    need_gpu()
    numpy = need_module("numpy")
    content = bytes_of_seed(32 << 20)
    with bifolio.paged(len(content), 4 << 20, gpus()[0]) as region:
        array = numpy.frombuffer(region, "uint8")
        array[:] = numpy.frombuffer(content, "uint8")
        assert hashlib.sha256(array).digest() == hashlib.sha256(content).digest()
        assert region.stats()["stored"] > 400
        del array
