"""Files: what is read and written, where, and what is refused."""

import array
import errno
import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import bifolio
import pytest
from bifolio.compat import kvikio

from conftest import Kind, bytes_of_seed, need_module


def test_a_whole_file_lands_in_every_kind_of_buffer(path: Path, content: bytes, kind: Kind) -> None:
    buffer = kind.make(len(content))
    with bifolio.open(path) as file:
        assert file.read_into(buffer) == len(content)
    assert kind.look(buffer) == content


def test_a_range_lands_where_it_should_and_nowhere_else(path: Path, content: bytes, kind: Kind) -> None:
    buffer = kind.of(bytes(1000), path.parent)
    with bifolio.open(path) as file:
        assert file.read_into(buffer, 12_345, 300, buffer_offset=77) == 300
    assert kind.look(buffer) == bytes(77) + content[12_345:12_645] + bytes(623)


def test_every_kind_of_buffer_is_written(folder: Path, content: bytes, kind: Kind) -> None:
    buffer = kind.of(content, folder)
    target = folder / "written"
    with bifolio.open(target, "w") as file:
        assert file.write_from(buffer) == len(content)
        assert file.write_from(buffer, 10, 100, durable=True, buffer_offset=5000) == 100
        assert file.size == len(content)
        file.sync()
    assert target.read_bytes() == content[:10] + content[5000:5100] + content[110:]


def test_reads_end_where_the_file_ends(path: Path, content: bytes) -> None:
    buffer = bytearray(len(content) + 10)
    with bifolio.open(path) as file:
        assert file.read_into(buffer) == len(content)
        assert file.read_into(buffer, len(content) - 3) == 3
        assert file.read_into(buffer, len(content)) == 0
        assert file.read_into(buffer, len(content) + 1) == 0
        assert file.read_into(buffer, 2**63) == 0
        assert file.pread(buffer, len(content) + 1).result() == 0
        assert file.read_into(bytearray()) == 0
    assert buffer[: len(content) - 3] != content[:-3]
    assert buffer[:3] == content[-3:]


def test_numbers_may_be_those_of_numpy(path: Path, content: bytes) -> None:
    numpy = need_module("numpy")
    buffer = bytearray(10)
    with bifolio.open(path) as file:
        assert file.read_into(buffer, numpy.int64(7), numpy.uint8(10)) == 10
    assert buffer == content[7:17]


def test_batches_take_tuples_and_arrays(path: Path, content: bytes, kind: Kind) -> None:
    extents = [(offset, 512, place * 600) for place, offset in enumerate(range(999, 2_900_000, 9973))]
    room = len(extents) * 600
    expected = bytearray(room)
    for offset, length, place in extents:
        expected[place : place + length] = content[offset : offset + length]
    numbers = array.array("q", [number for extent in extents for number in extent])
    as_array = memoryview(numbers).cast("B").cast("q", (len(extents), 3))
    with bifolio.open(path) as file:
        for given in (extents, iter(extents), as_array):
            buffer = kind.of(bytes(room), path.parent)
            assert file.read_batch(buffer, given) == 512 * len(extents)
            assert kind.look(buffer) == expected
        buffer = kind.of(bytes(room), path.parent)
        assert file.pread_batch(buffer, as_array).result() == 512 * len(extents)
        assert kind.look(buffer) == expected


def test_batches_take_arrays_of_numpy(path: Path, content: bytes) -> None:
    numpy = need_module("numpy")
    buffer = bytearray(20)
    with bifolio.open(path) as file:
        for dtype in ("int64", "uint64", "<i8"):
            extents = numpy.array([[100, 10, 10], [5, 10, 0]], dtype=dtype)
            assert file.read_batch(buffer, extents) == 20
            assert buffer == content[5:15] + content[100:110]
        # The end of the file cuts extents short, as it does with pread.
        assert file.read_batch(buffer, [(len(content) - 4, 10, 0)]) == 4
        for wrong in (numpy.zeros((2, 2), "int64"), numpy.zeros((2, 3)), numpy.zeros((3, 2), "int64").T):
            with pytest.raises(TypeError, match="three columns"):
                file.read_batch(buffer, wrong)
        with pytest.raises(ValueError, match="extent 1 has a negative number, -1"):
            file.read_batch(buffer, numpy.array([[0, 1, 0], [0, -1, 1]]))


@pytest.mark.parametrize(
    ("extents", "kind", "words"),
    [
        ([(0, 10, 15)], ValueError, "does not fit"),
        ([(0, 10, 0), (50, 10, 5)], ValueError, "overlap"),
        ([(2**64 - 1, 10, 0)], ValueError, "overflows"),
        ([(-1, 10, 0)], ValueError, "an offset or length must be .*, got -1"),
        ([(1, 2)], ValueError, "length"),
        ([("a", 2, 3)], TypeError, "extents must be"),
        (7, TypeError, "extents must be"),
    ],
)
def test_wrong_batches_are_refused(path: Path, extents: Any, kind: type[Exception], words: str) -> None:
    with bifolio.open(path) as file, pytest.raises(kind, match=words):
        file.read_batch(bytearray(20), extents)


def test_what_the_system_refuses_is_its_exception(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing.*no such file|missing.*No such file") as missing:
        bifolio.open(folder / "missing")
    assert (missing.value.errno, missing.value.path) == (errno.ENOENT, str(folder / "missing"))
    with pytest.raises(OSError, match="directory|folder"):
        bifolio.open(folder)
    with pytest.raises(FileNotFoundError):
        bifolio.open(folder / "no" / "file", "w")
    with pytest.raises(FileNotFoundError):
        bifolio.explain(folder / "missing")
    ours = bifolio.Error("without parts")
    assert (ours.path, ours.offset, ours.errno) == (None, None, None)
    if os.geteuid() != 0:
        secret = folder / "secret"
        secret.write_bytes(b"x")
        secret.chmod(0)
        with pytest.raises(PermissionError):
            bifolio.open(secret)


def test_modes_are_those_of_python(folder: Path) -> None:
    target = folder / "modes"
    target.write_bytes(b"old content")
    with bifolio.open(target, "r+") as file:
        file.write_from(b"new")
    assert target.read_bytes() == b"new content"
    with bifolio.open(str(target), "w") as file:
        assert (file.size, file.mode, file.name) == (0, "r+", str(target))
    with bifolio.open(target) as file, pytest.raises(io.UnsupportedOperation, match="reading only"):
        file.write_from(b"x")
    with bifolio.open(target) as file, pytest.raises(io.UnsupportedOperation):
        file.pwrite(b"x")
    for mode in ("a", "x", "rw", ""):
        with pytest.raises(ValueError, match="invalid mode"):
            bifolio.open(target, mode)


def test_a_closed_file_refuses_everything(path: Path) -> None:
    file = bifolio.open(path)
    assert not file.closed
    file.close()
    file.close()
    assert file.closed
    calls = [
        lambda: file.read_into(bytearray(1)),
        lambda: file.write_from(b"x"),
        lambda: file.read_batch(bytearray(1), []),
        lambda: file.pread(bytearray(1)),
        lambda: file.pwrite(b"x"),
        lambda: file.pread_batch(bytearray(1), []),
        lambda: file.size,
        lambda: file.fileno(),
        lambda: file.explain(),
        lambda: file.sync(),
        lambda: file.advise("random"),
        lambda: file.__enter__(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    assert "closed" in repr(file)


def test_wrong_numbers_are_refused(path: Path) -> None:
    buffer = bytearray(10)
    with bifolio.open(path) as file:
        with pytest.raises(ValueError, match="an offset or length must be .*, got -1"):
            file.read_into(buffer, -1)
        with pytest.raises(ValueError, match="an offset or length must be"):
            file.read_into(buffer, 2**64)
        with pytest.raises(ValueError, match="cannot transfer 11 bytes with a buffer of 10"):
            file.read_into(buffer, 0, 11)
        with pytest.raises(ValueError, match="a buffer of 4"):
            file.pread(buffer, 0, 5, buffer_offset=6)
        with pytest.raises(ValueError, match="beyond the end of the buffer"):
            file.pread(buffer, buffer_offset=11)
        with pytest.raises(TypeError):
            file.read_into(buffer, "1")
        with pytest.raises(TypeError):
            file.read_into(buffer, 1.5)


def test_striped_sets_are_files(folder: Path, content: bytes) -> None:
    members = [folder / f"member-{number}" for number in range(3)]
    chunk = 64 << 10
    whole = content[: 3 * 10 * chunk]
    for number, member in enumerate(members):
        chunks = [whole[at : at + chunk] for at in range(number * chunk, len(whole), 3 * chunk)]
        member.write_bytes(b"".join(chunks))
    name = f"stripe:64K:{','.join(map(str, members))}"
    buffer = bytearray(len(whole))
    with bifolio.open(name) as file:
        assert file.size == len(whole)
        file.read_into(buffer)
    assert buffer == whole
    # "w" neither empties nor creates a set.
    with bifolio.open(name, "w") as file:
        assert file.size == len(whole)
    with pytest.raises(OSError, match="missing"):
        bifolio.open(f"stripe:64K:{folder / 'missing'},{members[0]}")


def test_plans_are_explained(path: Path, content: bytes) -> None:
    path.read_bytes()
    with bifolio.open(path) as file:
        plan = file.explain(100, 1000, "host")
        everything = file.explain(device="host", engine="cached")
    assert plan["device"] == "host:0"
    assert plan["residency"]["total_bytes"] == 1000
    assert sum(segment["length"] for segment in plan["segments"]) == 1000
    assert {segment["engine"] for segment in everything["segments"]} == {"cached"}
    assert bifolio.explain(path, device="host")["residency"]["total_bytes"] == len(content)
    with pytest.raises(ValueError, match="is not an engine"):
        bifolio.explain(path, engine="warp")
    with pytest.raises(ValueError, match="device"):
        bifolio.explain(path, device="gpu:0")


def test_devices_are_listed() -> None:
    devices = {device["id"]: device for device in bifolio.devices()}
    assert devices["host:0"]["memory_bytes"] > 0
    assert bifolio.default_device().partition(":")[0] in {"cuda", "opencl", "host"}
    assert {"cuda", "opencl", "host"} <= {backend["backend"] for backend in bifolio.backends()}


def test_the_default_device_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIFOLIO_DEVICE", "host:1")
    assert bifolio.default_device() == "host:1"
    assert bifolio.empty(5).device == "host:1"
    monkeypatch.setenv("BIFOLIO_DEVICE", "nowhere")
    with pytest.raises(ValueError, match="opencl:N"):
        bifolio.empty(5)


def test_advice_is_taken_by_name(path: Path) -> None:
    with bifolio.open(path) as file:
        for advice in ("sequential", "random", "normal"):
            file.advise(advice)
        with pytest.raises(ValueError, match="unknown advice"):
            file.advise("often")


def test_the_descriptor_is_the_file(path: Path, content: bytes) -> None:
    with bifolio.open(path) as file:
        assert os.pread(file.fileno(), 10, 5) == content[5:15]


def test_reads_let_other_threads_go_on(path: Path, content: bytes) -> None:
    """The interpreter switches threads only where it is told to: another thread can only count while a read
    has let go of the interpreter."""
    counted = 0
    ends = False

    def count() -> None:
        nonlocal counted
        while not ends:
            counted += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    buffer = bytearray(len(content))
    with bifolio.open(path) as file:
        sys.setswitchinterval(1000)
        try:
            thread.start()
            seen = None
            for _ in range(10_000):
                seen = counted
                file.read_into(buffer)
                if counted > seen:
                    break
            assert counted > seen
        finally:
            ends = True
            sys.setswitchinterval(before)
            thread.join()


def test_many_threads_read_one_file(path: Path, content: bytes) -> None:
    failures = []
    with bifolio.open(path) as file:

        def read(number: int) -> None:
            buffer = bytearray(50_000)
            for offset in range(number * 1000, len(content) - 50_000, 300_000):
                got = file.read_into(buffer, offset)
                if got != 50_000 or buffer != content[offset : offset + 50_000]:
                    failures.append(offset)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_calibration_measures_and_keeps_a_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIFOLIO_CACHE_DIR", str(folder / "cache"))
    profile = bifolio.calibrate(folder, "host", size=64 << 20, repetitions=1)
    assert profile["device"].startswith("host:0")
    assert {"cached", "buffered"} <= {curve["name"] for curve in profile["curves"]}
    assert list((folder / "cache" / "profiles").iterdir())
    with pytest.raises(OSError, match="missing"):
        bifolio.calibrate(folder / "missing" / "folder", "host")


def test_what_is_written_is_read_through_the_same_file(folder: Path) -> None:
    content = bytes_of_seed(5_000_003, 7)
    buffer = bytearray(len(content))
    with bifolio.open(folder / "both", "w") as file:
        writing = file.pwrite(content)
        reading = file.pread(buffer)
        assert writing.result() == reading.result() == len(content) == file.size
    assert buffer == content


@pytest.mark.parametrize("call", ["pread", "pread_batch", "kvikio"])
def test_reads_by_themselves_see_what_writes_before_them_append(folder: Path, call: str) -> None:
    # They were cut to the size that the file had when they were submitted: here to nothing.
    content = bytes_of_seed(3_000_003, 8)
    target = folder / f"appended-{call}"
    for _ in range(20):
        buffer = bytearray(len(content))
        with kvikio.CuFile(target, "w") if call == "kvikio" else bifolio.open(target, "w") as file:
            writing = file.pwrite(content)
            if call == "pread_batch":
                reading = file.pread_batch(buffer, [(1000, len(content) - 1000, 1000), (0, 1000, 0)])
            else:
                reading = file.pread(buffer)
            for future in (reading, writing):
                assert (future.get() if call == "kvikio" else future.result()) == len(content)
        assert buffer == content


def test_reads_beyond_the_end_have_no_bytes_whenever_that_is_known(path: Path, content: bytes) -> None:
    buffer = bytearray(b"untouched")
    with bifolio.open(path) as file:
        for offset in (len(content), len(content) + 1, 2**63 - 1, 2**63, 2**64 - 1):
            assert file.read_into(buffer, offset) == 0
            future = file.pread(buffer, offset)
            assert future.result() == 0
            assert future.exception() is None
            assert future.report()["bytes"] == 0
    assert buffer == b"untouched"
