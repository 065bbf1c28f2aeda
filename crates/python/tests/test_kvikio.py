"""The stand-in for KvikIO: its names and arguments, and the same outcomes."""

import enum
import fcntl
import importlib
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from bifolio.compat import kvikio
from bifolio.compat.kvikio import cufile as kvikio_cufile

from conftest import Kind, need_gpu, need_module

# What KvikIO 26.10 has, for comparison where it is not installed.
SIGNATURES = {
    "__init__": ["self", "file", "flags"],
    "close": ["self"],
    "fileno": ["self"],
    "open_flags": ["self"],
    "pread": ["self", "buf", "size", "file_offset", "task_size"],
    "pwrite": ["self", "buf", "size", "file_offset", "task_size"],
    "read": ["self", "buf", "size", "file_offset", "task_size"],
    "write": ["self", "buf", "size", "file_offset", "task_size"],
    "raw_read_async": ["self", "buf", "raw_stream", "size", "file_offset", "dev_offset"],
    "raw_write_async": ["self", "buf", "raw_stream", "size", "file_offset", "dev_offset"],
    "raw_read": ["self", "buf", "size", "file_offset", "dev_offset"],
    "raw_write": ["self", "buf", "size", "file_offset", "dev_offset"],
    "is_direct_io_supported": ["self"],
}


def test_methods_and_arguments_are_those_of_kvikio() -> None:
    for name, arguments in SIGNATURES.items():
        assert list(inspect.signature(getattr(kvikio.CuFile, name)).parameters) == arguments


def test_methods_and_arguments_are_those_of_the_kvikio_that_is_installed() -> None:
    theirs = need_module("kvikio.cufile")
    for name in SIGNATURES:
        ours = inspect.signature(getattr(kvikio.CuFile, name)).parameters
        assert list(ours) == list(inspect.signature(getattr(theirs.CuFile, name)).parameters)
    for name in ("get", "done"):
        assert hasattr(theirs.IOFuture, name) and hasattr(kvikio.IOFuture, name)


def test_a_program_of_kvikios_goes_on(folder: Path, content: bytes, kind: Kind) -> None:
    path = folder / "kvikio"
    buffer = kind.of(content, folder)
    with kvikio.CuFile(path, "w") as file:
        assert file.write(buffer) == len(content)
        assert file.pwrite(buffer, size=100, file_offset=50, task_size=4096).get() == 100
        assert file.raw_write(buffer, 10, 0, dev_offset=20) == 10
    assert file.closed
    expected = bytearray(content)
    expected[50:150] = content[:100]
    expected[:10] = content[20:30]
    assert path.read_bytes() == expected
    with kvikio.CuFile(str(path), "r") as file:
        target = kind.of(bytes(len(content)), folder)
        future = file.pread(target, file_offset=0)
        assert future.get() == len(content)
        assert future.done()
        assert kind.look(target) == expected
        target = kind.of(bytes(1000), folder)
        assert file.read(target, size=100, file_offset=7) == 100
        assert file.raw_read(target, size=50, file_offset=9, dev_offset=500) == 50
        assert kind.look(target) == expected[7:107] + bytes(400) + expected[9:59] + bytes(450)
        assert os.pread(file.fileno(), 5, 0) == expected[:5]
        assert file.open_flags() & os.O_ACCMODE == os.O_RDONLY
        assert file.open_flags() == fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
        assert isinstance(file.is_direct_io_supported(), bool)


def test_streams_are_for_gpus(path: Path) -> None:
    with kvikio.CuFile(path) as file, pytest.raises(ValueError, match="no streams"):
        file.raw_read_async(bytearray(4), 0)


def test_requests_on_streams(path: Path, content: bytes) -> None:
    cupy = need_module("cupy")
    need_gpu()
    stream = cupy.cuda.Stream(non_blocking=True)
    target = cupy.zeros(len(content) + 5, "uint8")
    with kvikio.CuFile(path, "r+") as file:
        assert file.raw_read_async(target, stream.ptr, len(content), 0, 5).check_bytes_done() == len(content)
        assert target.get().tobytes() == bytes(5) + content
        with stream:
            target += 1
        assert file.raw_write_async(target, stream.ptr, 5, 0).check_bytes_done() == 5
    assert path.read_bytes()[:5] == b"\x01" * 5


def flags_and_outcomes(cu_file: Any, path: Path) -> dict[str, Any]:
    """What flags do: whether a file can be written, and whether it was emptied."""
    outcomes: dict[str, Any] = {}
    for flags in ("r", "rb", "rw", "rb+", "r+", "r+b", "w", "wb", "w+", "w+b", "", "+", "+r", "a", "a+", "x", "R"):
        path.write_bytes(b"content")
        try:
            file = cu_file(path, flags)
        except ValueError:
            outcomes[flags] = "refused"
        else:
            outcomes[flags] = (file.open_flags() & os.O_ACCMODE != os.O_RDONLY, path.stat().st_size == 0)
            file.close()
    return outcomes


def test_flags_are_looked_at_as_kvikio_does(path: Path) -> None:
    outcomes = flags_and_outcomes(kvikio.CuFile, path)
    reads, updates, writes = (False, False), (True, False), (True, True)
    expected = dict.fromkeys(("r", "rb", "rw", "rb+"), reads) | dict.fromkeys(("r+", "r+b"), updates)
    expected |= dict.fromkeys(("w", "wb", "w+", "w+b"), writes)
    expected |= dict.fromkeys(("", "+", "+r", "a", "a+", "x", "R"), "refused")
    assert outcomes == expected
    with pytest.raises(ValueError, match="invalid flags 'a'"):
        kvikio.CuFile(path, "a")


def test_flags_are_those_of_the_kvikio_that_is_installed(path: Path) -> None:
    theirs = need_module("kvikio.cufile")
    assert flags_and_outcomes(kvikio.CuFile, path) == flags_and_outcomes(theirs.CuFile, path)


# What is not there: files of other machines, mappings, statistics, and tools of KvikIO's own.
NOT_THERE = {
    "Mmap", "RemoteEndpointType", "RemoteFile", "Summary", "SummaryMonitor", "infer_remote_endpoint_type",
    "kvikio_deprecation_notice", "nsys_plugin_search_dir",
}  # fmt: skip


def test_names_and_settings_are_those_of_the_kvikio_that_is_installed() -> None:
    theirs = need_module("kvikio")
    assert set(theirs.__all__) - NOT_THERE <= set(kvikio.__all__)
    for name in ("buffer", "stream", "numpy", "defaults", "cufile_driver"):
        mine, other = (importlib.import_module(f"{package.__name__}.{name}") for package in (kvikio, theirs))
        for function, there in vars(other).items():
            if inspect.isfunction(there) and there.__module__ == other.__name__ and not function.startswith("_"):
                parameters = inspect.signature(there).parameters
                assert list(inspect.signature(getattr(mine, function)).parameters) == list(parameters), function
    names = [name for name in vars(need_module("kvikio._lib.defaults")) if name.startswith("set_")]
    assert names
    for name in names:
        asked = need_module("kvikio.defaults").get(name[4:])
        assert kvikio.defaults.get(name[4:]) == (asked.value if isinstance(asked, enum.Enum) else asked)
    for name in dir(need_module("kvikio.cufile_driver").properties):
        if not name.startswith("_"):
            assert hasattr(kvikio.cufile_driver.properties, name)


def test_arrays_come_from_files_and_go_to_files(folder: Path, content: bytes) -> None:
    numpy, kvikio_numpy = need_module("numpy"), need_module("bifolio.compat.kvikio.numpy")
    path = folder / "array"
    values = numpy.frombuffer(content[:24_000], "<i4").reshape(50, 120)
    kvikio_numpy.tofile(values, path)
    assert path.read_bytes() == content[:24_000]
    kvikio_numpy.tofile(values.T, str(path))
    assert path.read_bytes() == values.T.tobytes()
    with path.open("rb") as file:
        for given in (path, str(path), file):
            numpy.testing.assert_array_equal(kvikio_numpy.fromfile(given, "<i4"), values.T.ravel())
    for count, offset in ((7, 0), (-1, 10), (10**6, 23_990), (3, 30_000)):
        mine = kvikio_numpy.fromfile(path, "<i4", count, offset=offset)
        numpy.testing.assert_array_equal(mine, numpy.fromfile(path, "<i4", count, offset=offset))
    like = kvikio_numpy.LikeWrapper(numpy.empty(()))
    numpy.testing.assert_array_equal(numpy.fromfile(path, dtype="<i4", like=like), values.T.ravel())
    with pytest.raises(NotImplementedError, match="text"):
        kvikio_numpy.fromfile(path, sep=",")


def test_arrays_of_cupy_come_from_files(path: Path, content: bytes) -> None:
    cupy, kvikio_numpy = need_module("cupy"), need_module("bifolio.compat.kvikio.numpy")
    need_gpu()
    array = kvikio_numpy.fromfile(path, "u1", like=cupy.empty(()))
    assert isinstance(array, cupy.ndarray)
    assert array.get().tobytes() == content
    kvikio_numpy.tofile(array[:100], path)
    assert path.read_bytes() == content[:100]


def test_the_systems_page_cache_is_dropped_where_that_is_permitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not the real one: other programs of this machine use it.
    switch, synced = folder / "drop_caches", []
    monkeypatch.setattr(kvikio_cufile, "_DROP_CACHES", str(switch))
    monkeypatch.setattr(os, "sync", lambda: synced.append(True))
    assert kvikio.drop_system_page_cache() is True
    assert (switch.read_text(), len(synced)) == ("3", 1)
    assert kvikio.clear_page_cache(False, False) is True
    assert (switch.read_text(), len(synced)) == ("1", 1)
    monkeypatch.setattr(kvikio_cufile, "_DROP_CACHES", str(folder / "no" / "such"))
    assert kvikio.drop_system_page_cache() is False


def test_settings_are_remembered_and_put_back() -> None:
    defaults = kvikio.defaults
    before = defaults.get("num_threads")
    with defaults.set({"num_threads": 7, "task_size": 1 << 20}):
        assert (defaults.get("num_threads"), defaults.get("task_size")) == (7, 1 << 20)
        assert defaults.get("thread_pool_nthreads") == 7
        with defaults.set("compat_mode", kvikio.CompatMode.ON):
            assert defaults.get("compat_mode") == kvikio.CompatMode.ON
    assert defaults.get("num_threads") == before
    with defaults.set({"remote_io_num_reactors": 4, "remote_io_backend": kvikio.RemoteIOBackend.MULTI_POLL}):
        assert defaults.get("remote_io_num_reactors") == 4
    assert defaults.get("remote_io_backend") == kvikio.RemoteIOBackend.EASY_THREADPOOL
    defaults.set("gds_threshold", 1)
    assert defaults.get("gds_threshold") == defaults.gds_threshold() == 1
    defaults.num_threads_reset(3)
    with defaults.set_num_threads(4):
        assert defaults.num_threads() == 4
    assert defaults.num_threads() == 3
    for wrong in ("threads", "task_bytes"):
        with pytest.raises(KeyError):
            defaults.set(wrong, 1)
        with pytest.raises(KeyError):
            defaults.get(wrong)
        with pytest.raises(AttributeError):
            getattr(defaults, wrong)
    with pytest.raises(ValueError, match="a dict"):
        defaults.set(1)


def test_registrations_and_the_driver_are_accepted(path: Path) -> None:
    buffer = bytearray(10)
    kvikio.memory_register(buffer)
    kvikio.memory_deregister(buffer)
    kvikio.stream_register(0, 15)
    kvikio.stream_deregister(0)
    assert kvikio.bounce_buffer_free() == 0
    driver: Any = kvikio.cufile_driver
    driver.initialize()
    assert driver.libcufile_version() == (0, 0)
    assert driver.get("is_gds_available") is False
    with driver.set("poll_mode", True):
        assert driver.get("poll_mode") is True
    assert driver.get("poll_mode") is False
    assert driver.properties.poll_mode is False
    driver.properties.poll_thresh_size = 5
    assert driver.get("poll_thresh_size") == driver.properties.poll_thresh_size == 5
    for wrong in (("poll_mode",), (), ("poll_mode", True, 1), (True, 1)):
        with pytest.raises(ValueError, match="a dict of properties, or a name and a value"):
            driver.set(*wrong)
    for name in ("is_gds_available", "nothing"):
        with pytest.raises(KeyError, match=name):
            driver.set(name, True)
        with pytest.raises(AttributeError, match=name):
            setattr(driver.properties, name, True)
    with pytest.raises(KeyError, match="unknown property 'nothing'"):
        driver.get("nothing")
    with pytest.raises(AttributeError, match="unknown property 'nothing'"):
        driver.properties.nothing  # noqa: B018
    assert kvikio.is_remote_file_available() is False
    assert kvikio.__version__.split(".")[0].isdecimal()
    with pytest.raises(AttributeError, match="RemoteFile"):
        kvikio.RemoteFile  # type: ignore[attr-defined]  # noqa: B018


def test_the_page_cache_is_told_and_dropped(path: Path, content: bytes) -> None:
    path.read_bytes()
    pages = -(-len(content) // os.sysconf("SC_PAGE_SIZE"))
    assert kvikio.get_page_cache_info(path) == (pages, pages)
    with path.open("rb") as file:
        assert kvikio.get_page_cache_info(file, 0, 10) == (1, 1)
        assert kvikio.get_page_cache_info(file.fileno(), len(content)) == (0, 0)
    kvikio.drop_file_page_cache(path)
    cached, total = kvikio.get_page_cache_info(path)
    # A file system that lives in memory has nothing else to keep its pages in.
    assert total == pages
    assert cached in (0, pages)
