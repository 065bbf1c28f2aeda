"""Bifolio moves files into GPU memory, and back, by the best path for their cache state.

    import bifolio, torch
    tensor = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    with bifolio.open("model.safetensors") as file:
        file.read_into(tensor)

Buffers are PyTorch tensors, CuPy and NumPy arrays, and everything else with the CUDA array interface, DLPack or
the buffer protocol; host memory is the device "host:0". `bifolio.safetensors` loads checkpoints, and
`bifolio.compat.kvikio` stands in for KvikIO.

Files are mapped, too: `bifolio.map` gives a range of a file addresses on a device, through a page cache that the
process's devices share, and that CPU processes' writes to the file are seen by.

    with bifolio.map("weights.bin", writable=True, device="cuda:0") as mapping:
        with mapping.acquired() as part:
            cupy.asarray(part)[:] += 1
        mapping.sync()

What is encrypted or redundant on storage is read, too: `bifolio.open_volume` opens LUKS volumes and RAID-6 arrays, and
`bifolio.open(path, key=...)` a file of a directory in gocryptfs's format. On a GPU plaintext exists in the tensor only.

    with bifolio.open_volume("weights.img", key_file="key") as volume:
        volume.read_into(tensor)

An array may be larger than the memory that it gets: `bifolio.paged` allocates host memory of which no more than a
budget is in memory, and the rest on a device.

    region = bifolio.paged(64 << 30, budget=8 << 30, device="cuda:0")
    numpy.frombuffer(region, "float32")[:] = 1

A request keeps the memory of its buffer until it is over. A tensor may be given other memory meanwhile, but
`storage.resize_()` of PyTorch frees bytes whoever keeps them: call it when the request is over.

Errors are `OSError` where the operating system refused, `ValueError` and `TypeError` for bad arguments, and
`bifolio.Error` for the rest; `path`, `offset` and `errno` are attributes of them where they are known. A process
that has used the package cannot be forked and go on: start further ones by "spawn". When the interpreter ends, writes under way are carried out and reads are cancelled.
"""

from . import safetensors
from ._native import (
    Acquired,
    CancelledError,
    Error,
    File,
    Future,
    Mapping,
    Memory,
    Recall,
    Region,
    Report,
    Volume,
    __version__,
    backends,
    cache_stats,
    calibrate,
    default_device,
    devices,
    empty,
    explain,
    map,
    open,
    open_volume,
    paged,
)
from .groups import Group, group
from .sets import attach, publish, withdraw

__all__ = [
    "Acquired",
    "CancelledError",
    "Error",
    "File",
    "Future",
    "Group",
    "Mapping",
    "Memory",
    "Recall",
    "Region",
    "Report",
    "Volume",
    "__version__",
    "attach",
    "backends",
    "cache_stats",
    "calibrate",
    "default_device",
    "devices",
    "empty",
    "explain",
    "group",
    "map",
    "open",
    "open_volume",
    "paged",
    "publish",
    "safetensors",
    "withdraw",
]
