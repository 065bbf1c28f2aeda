"""The stand-in for KvikIO: its names and arguments, and the same outcomes."""

import fcntl
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from bifolio.compat import kvikio

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


def test_flags_that_do_not_exist_are_refused(path: Path) -> None:
    for flags in ("a", "x", "", "rw"):
        with pytest.raises(ValueError, match="flags"):
            kvikio.CuFile(path, flags)
    kvikio.CuFile(path, "+").close()
    kvikio.CuFile(path, "r+").close()


def test_settings_are_remembered_and_put_back() -> None:
    defaults = kvikio.defaults
    before = defaults.get("num_threads")
    with defaults.set({"num_threads": 7, "task_size": 1 << 20}):
        assert (defaults.get("num_threads"), defaults.get("task_size")) == (7, 1 << 20)
        assert defaults.get("thread_pool_nthreads") == 7
        with defaults.set("compat_mode", kvikio.CompatMode.ON):
            assert defaults.get("compat_mode") == kvikio.CompatMode.ON
    assert defaults.get("num_threads") == before
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
    with pytest.raises(ValueError, match="a dictionary"):
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
    with pytest.raises(KeyError):
        driver.set("is_gds_available", True)
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
