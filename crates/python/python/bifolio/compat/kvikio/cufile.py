"""KvikIO's `CuFile` over `bifolio.File`."""

import fcntl
import io
import os
from typing import Any

import bifolio

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DROP_CACHES = "/proc/sys/vm/drop_caches"


class IOFuture:
    """A request under way. It keeps its buffer, so that the future may be dropped."""

    __slots__ = ("_future",)

    def __init__(self, future: bifolio.Future) -> None:
        self._future = future

    def get(self) -> int:
        """Waits: how many bytes were read or written."""
        return self._future.result()

    def done(self) -> bool:
        """Whether it is over."""
        return self._future.done()


class IOFutureStream:
    """A request in the order of a stream."""

    __slots__ = ("_future",)

    def __init__(self, future: bifolio.Future) -> None:
        self._future = future

    def check_bytes_done(self) -> int:
        """Waits until the stream has done it: how many bytes were read or written."""
        return self._future.result()


class CuFile:
    """An open file. `flags` are "r", "r+" and "w", which empties the file or creates it. As with KvikIO, what
    follows the first letter and its "+" is not looked at: "rb" is "r"."""

    def __init__(self, file: str | os.PathLike[str], flags: str = "r") -> None:
        if flags[:1] not in {"r", "w"}:
            raise ValueError(f"{os.fspath(file)}: invalid flags {flags!r}: they begin with 'r', 'r+' or 'w'")
        # There is no opening for writing alone here: what is written may be read.
        self._file = bifolio.open(file, "w" if flags[0] == "w" else flags[:2] if flags[1:2] == "+" else "r")

    def close(self) -> None:
        """Closes the file; requests under way go on."""
        self._file.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._file.closed

    def fileno(self) -> int:
        """The descriptor for transfers through the page cache."""
        return self._file.fileno()

    def open_flags(self) -> int:
        """The flags of that descriptor (open(2))."""
        return fcntl.fcntl(self.fileno(), fcntl.F_GETFL)

    def __enter__(self) -> "CuFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def pread(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts reading to the start of a buffer. `task_size` has no effect: the router divides requests."""
        return IOFuture(self._file.pread(buf, file_offset, size))

    def pwrite(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts writing a buffer. `task_size` has no effect."""
        return IOFuture(self._file.pwrite(buf, file_offset, size))

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None) -> int:
        """Reads to the start of a buffer: how many bytes. `task_size` has no effect."""
        return self._file.read_into(buf, file_offset, size)

    def write(self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None) -> int:
        """Writes a buffer: how many bytes. `task_size` has no effect."""
        return self._file.write_from(buf, file_offset, size)

    def raw_read_async(
        self, buf: Any, raw_stream: int, size: int | None = None, file_offset: int = 0, dev_offset: int = 0
    ) -> IOFutureStream:
        """Starts reading in the order of a stream, to `dev_offset` of a buffer."""
        return IOFutureStream(self._file.pread(buf, file_offset, size, raw_stream, buffer_offset=dev_offset))

    def raw_write_async(
        self, buf: Any, raw_stream: int, size: int | None = None, file_offset: int = 0, dev_offset: int = 0
    ) -> IOFutureStream:
        """Starts writing from `dev_offset` of a buffer. Waits first for what is enqueued on the stream."""
        pending = self._file.pwrite(buf, file_offset, size, stream=raw_stream, buffer_offset=dev_offset)
        return IOFutureStream(pending)

    def raw_read(self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Reads to `dev_offset` of a buffer: how many bytes."""
        return self._file.read_into(buf, file_offset, size, buffer_offset=dev_offset)

    def raw_write(self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Writes from `dev_offset` of a buffer: how many bytes."""
        return self._file.write_from(buf, file_offset, size, buffer_offset=dev_offset)

    def is_direct_io_supported(self) -> bool:
        """Whether the file can be read past the page cache."""
        try:
            self._file.explain(0, None, "host", "direct")
        except bifolio.Error:
            return False
        return True


def get_page_cache_info(
    file: str | os.PathLike[str] | int | io.IOBase, offset: int = 0, length: int = 0
) -> tuple[int, int]:
    """Pages of a range that are cached, and all of its pages; without a length, to the end of the file."""
    path = _path_of(file)
    size = os.stat(path).st_size
    start = offset - offset % _PAGE_BYTES
    end = min(size, offset + length if length else size)
    if offset >= size or start >= end:
        return (0, 0)
    residency = bifolio.explain(path, start, end - start, "host")["residency"]
    pages = -(-(end - start) // _PAGE_BYTES)
    return (min(pages, -(-residency["cached_bytes"] // _PAGE_BYTES)), pages)


def drop_file_page_cache(
    file: str | os.PathLike[str] | int | io.IOBase, offset: int = 0, length: int = 0, sync_first: bool = True
) -> None:
    """Drops a range from the page cache, after writing back what is dirty."""
    descriptor = os.open(_path_of(file), os.O_RDONLY)
    try:
        if sync_first:
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def drop_system_page_cache(reclaim_dentries_and_inodes: bool = True, sync_first: bool = True) -> bool:
    """Drops the page cache of the whole system, which slows down every program: whether that was permitted, as it
    is to the superuser. Nothing is run by sudo."""
    if sync_first:
        os.sync()
    try:
        with open(_DROP_CACHES, "w") as file:
            file.write("3" if reclaim_dentries_and_inodes else "1")
    except OSError:
        return False
    return True


def clear_page_cache(reclaim_dentries_and_inodes: bool = True, clear_dirty_pages: bool = True) -> bool:
    """The former name of `drop_system_page_cache`."""
    return drop_system_page_cache(reclaim_dentries_and_inodes, clear_dirty_pages)


def _path_of(file: str | os.PathLike[str] | int | io.IOBase) -> str:
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file)
    descriptor = file if isinstance(file, int) else file.fileno()
    return f"/proc/self/fd/{descriptor}"
