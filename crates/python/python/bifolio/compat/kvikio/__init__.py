"""Stands in for KvikIO: `import bifolio.compat.kvikio as kvikio`.

Files, futures and defaults have KvikIO's names and arguments, and requests take Bifolio's paths. What has no
counterpart here is accepted without an effect, and says so where it is described: registrations of memory
and streams (no path needs them), the numbers of `defaults` (the router chooses), `task_size`. Remote files,
`Mmap` and the statistics are not there.
"""

from . import cufile_driver, defaults
from .buffer import bounce_buffer_free, memory_deregister, memory_register
from .cufile import (
    CuFile,
    IOFuture,
    IOFutureStream,
    clear_page_cache,
    drop_file_page_cache,
    drop_system_page_cache,
    get_page_cache_info,
)
from .defaults import CompatMode, RemoteIOBackend, RemoteReactorDispatch
from .stream import stream_deregister, stream_register

__all__ = [
    "CompatMode",
    "CuFile",
    "IOFuture",
    "IOFutureStream",
    "RemoteIOBackend",
    "RemoteReactorDispatch",
    "__git_commit__",
    "__version__",
    "bounce_buffer_free",
    "clear_page_cache",
    "cufile_driver",
    "defaults",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "get_page_cache_info",
    "is_remote_file_available",
    "memory_deregister",
    "memory_register",
    "stream_deregister",
    "stream_register",
]

# The release of KvikIO whose names and arguments these are, for programs that compare.
__version__ = "26.10.00"
__git_commit__ = ""


def is_remote_file_available() -> bool:
    """Whether files of other machines can be read: never."""
    return False


def __getattr__(name: str) -> object:
    if name in {"Mmap", "RemoteFile", "RemoteEndpointType", "Summary", "SummaryMonitor"}:
        raise AttributeError(f"bifolio.compat.kvikio does not support {name}: it reads and writes files only")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
