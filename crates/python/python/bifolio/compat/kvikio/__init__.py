"""Stands in for KvikIO: `import bifolio.compat.kvikio as kvikio`.

Files, futures and defaults have KvikIO's names and arguments, and requests take Bifolio's paths. What has no
counterpart here is accepted without an effect, and says so where it is described: registrations of memory
and streams (no path needs them), the numbers of `defaults` (the router chooses), `task_size`. Remote files,
`Mmap` and the statistics are not there.
"""

from . import cufile_driver, defaults
from .cufile import (
    CuFile,
    IOFuture,
    IOFutureStream,
    drop_file_page_cache,
    get_page_cache_info,
)
from .defaults import CompatMode
from .registration import (
    bounce_buffer_free,
    memory_deregister,
    memory_register,
    stream_deregister,
    stream_register,
)

__all__ = [
    "CompatMode",
    "CuFile",
    "IOFuture",
    "IOFutureStream",
    "bounce_buffer_free",
    "cufile_driver",
    "defaults",
    "drop_file_page_cache",
    "get_page_cache_info",
    "memory_deregister",
    "memory_register",
    "stream_deregister",
    "stream_register",
]


def __getattr__(name: str) -> object:
    if name in {"Mmap", "RemoteFile", "RemoteEndpointType", "Summary", "SummaryMonitor"}:
        raise AttributeError(f"bifolio.compat.kvikio has no {name}: only files are read and written here")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
