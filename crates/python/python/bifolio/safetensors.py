"""Loads safetensors checkpoints: the data of a file by one request, into one allocation of the framework's.

    from bifolio.safetensors import load_file, safe_open
    tensors = load_file("model.safetensors")                  # the first GPU with PyTorch or CuPy, else NumPy
    tensors = load_file("checkpoint/", device="cuda:1")       # a folder with model.safetensors.index.json
    tensors = load_file("vault/model.safetensors", key="...") # in a directory encrypted by gocryptfs, or by bifolio

Tensors are views of the allocation, which is freed with the last of them. One that the file does not align to
its type, as other writers than the reference may leave them, is copied to a place of its own.
"""

import array
import itertools
import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

from . import _native
from ._native import SafetensorError

__all__ = ["SafetensorError", "SharedTensors", "load_file", "safe_open"]

_INDEX = "model.safetensors.index.json"
# Where the data of a file may begin in an allocation: every type of the format divides it.
_ALIGNMENT = 64
# Files that are read at once: the second starts while the first ends.
_READS_AT_ONCE = 2
# Shorter runs of a slice are read with what lies between them.
_RUN_BYTES_MIN = 512

_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}

_Index: TypeAlias = int | slice | EllipsisType
StrPath: TypeAlias = str | os.PathLike[str]
Key: TypeAlias = str | bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def alignment(self) -> int:
        return max(1, _BITS[self.dtype] // 8)


class _Shard:
    """One file: its header, and its tensors in the order of their data."""

    def __init__(self, path: str, key: Key | None) -> None:
        self.path = path
        self._key = key
        if key is None:
            self.metadata, self.data_start, entries = _native.read_header(path)
        else:
            with _native.open(path, key=key) as volume:
                self.metadata, self.data_start, entries = _native.read_header(volume)
        self.entries = {entry[0]: _Entry(*entry) for entry in entries}
        self.data_bytes = entries[-1][4] if entries else 0

    def open(self) -> _native.File | _native.Volume:
        """The file; one of an encrypted directory as a volume."""
        return _native.open(self.path) if self._key is None else _native.open(self.path, key=self._key)

    def shift(self) -> int:
        """How far from an aligned address the data begin best: most bytes are then aligned to their type."""
        shifts: dict[int, int] = dict.fromkeys(range(8), 0)
        for entry in self.entries.values():
            for shift in shifts:
                if (entry.begin + shift) % entry.alignment:
                    shifts[shift] += entry.end - entry.begin
        return min(shifts, key=lambda shift: (shifts[shift], shift))


class _Checkpoint:
    """A file, or the shards that an index names."""

    def __init__(self, path: StrPath, key: Key | None) -> None:
        name = os.fspath(path)
        # The names of an encrypted directory say nothing to the system.
        if os.path.isdir(name) if key is None else not name.endswith((".json", ".safetensors")):
            name = os.path.join(name, _INDEX)
        if name.endswith(".json"):
            self.shards, self.places = _shards_of(name, key)
        else:
            self.shards = [_Shard(name, key)]
            self.places = {tensor: self.shards[0] for tensor in self.shards[0].entries}
        self.name = name

    def entry(self, name: str) -> tuple[_Shard, _Entry]:
        try:
            shard = self.places[name]
        except KeyError:
            raise SafetensorError(f"{self.name}: no tensor {name!r}") from None
        return shard, shard.entries[name]


def _bytes_of(path: str, key: Key | None) -> bytes | bytearray:
    if key is None:
        with open(path, "rb") as file:
            return file.read()
    with _native.open(path, key=key) as volume:
        content = bytearray(volume.size)
        volume.read_into(content)
        return content


def _shards_of(index: str, key: Key | None) -> tuple[list[_Shard], dict[str, _Shard]]:
    """The shards of an index, each tensor with the one that has it."""
    content = _bytes_of(index, key)
    try:
        weight_map = json.loads(content.decode("utf-8"))["weight_map"]
        names = {str(tensor): str(shard) for tensor, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"{index}: not a checkpoint index: no valid weight_map") from error
    folder = os.path.dirname(index)
    shards: dict[str, _Shard] = {}
    for name in sorted(set(names.values())):
        # An index comes with the checkpoint, from anywhere; it names its neighbours and nothing else.
        if name != os.path.basename(name) or name in {"", ".", ".."}:
            raise SafetensorError(f"{index}: shard {name!r} is not in the folder of the index")
        if not _is_file_name(name):
            raise SafetensorError(f"{index}: shard {name!r} is not a valid file name")
        shards[name] = _Shard(os.path.join(folder, name), key)
    for tensor, name in names.items():
        if tensor not in shards[name].entries:
            raise SafetensorError(f"{index}: tensor {tensor!r} is missing from {name}")
    return list(shards.values()), {tensor: shards[name] for tensor, name in names.items()}


def _is_file_name(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


class _Numpy:
    """Arrays of NumPy, in host memory."""

    name = "NumPy"
    place = "host:0"
    _dtypes = {
        "BOOL": "bool",
        "U8": "uint8",
        "I8": "int8",
        "I16": "int16",
        "U16": "uint16",
        "F16": "float16",
        "I32": "int32",
        "U32": "uint32",
        "F32": "float32",
        "C64": "complex64",
        "F64": "float64",
        "I64": "int64",
        "U64": "uint64",
    }
    # NumPy has no such types of its own.
    _ml_dtypes = {
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
    }

    def __init__(self) -> None:
        import numpy

        self.module: Any = numpy

    def dtype(self, entry: _Entry) -> Any:
        """The framework's type for a tensor; an error where it has none."""
        if entry.dtype in self._dtypes:
            return self.module.dtype(self._dtypes[entry.dtype])
        if entry.dtype not in self._ml_dtypes:
            raise _no_type(entry, self.name, 'load it with framework="pt"')
        try:
            import ml_dtypes
        except ImportError:
            raise _no_type(entry, self.name, 'install ml_dtypes, or use framework="pt"') from None
        try:
            return self.module.dtype(getattr(ml_dtypes, self._ml_dtypes[entry.dtype]))
        except (AttributeError, TypeError) as error:
            raise _no_type(entry, self.name, f'{error}; use framework="pt"') from error

    def shape(self, entry: _Entry, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def allocate(self, count: int) -> Any:
        """Bytes at an aligned address."""
        memory = self.module.empty(count + _ALIGNMENT, dtype="uint8")
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + count]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.module.empty(shape, dtype=dtype)

    def copied(self, memory: Any) -> Any:
        return memory.copy()

    def shown(self, mapping: _native.Mapping) -> Any:
        """Bytes that are acquired, where they are."""
        return self.module.asarray(mapping)


class _Cupy(_Numpy):
    """Arrays of CuPy, on one GPU."""

    name = "CuPy"

    def __init__(self, device: int) -> None:
        import cupy

        self.module = cupy
        self.device = device
        self.place = f"cuda:{device}"

    def allocate(self, count: int) -> Any:
        with self.module.cuda.Device(self.device):
            # CuPy's memory begins at multiples of 512.
            return self.module.empty(count, dtype="uint8")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        with self.module.cuda.Device(self.device):
            return self.module.empty(shape, dtype=dtype)

    def copied(self, memory: Any) -> Any:
        with self.module.cuda.Device(self.device):
            return memory.copy()

    def shown(self, mapping: _native.Mapping) -> Any:
        with self.module.cuda.Device(self.device):
            return self.module.asarray(_Shown(mapping))


class _Shown:
    """Memory of a GPU for frameworks that have no arrays which are only read: what lies there is everybody's, and is not
    to be written to. It keeps the memory in place."""

    def __init__(self, mapping: _native.Mapping) -> None:
        self._mapping = mapping
        interface = dict(mapping.__cuda_array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__cuda_array_interface__ = interface


class _Torch:
    """Tensors of PyTorch, on one GPU or in host memory; its allocator owns them."""

    name = "PyTorch"
    _dtypes = {
        "BOOL": "bool",
        "F4": "float4_e2m1fn_x2",
        "U8": "uint8",
        "I8": "int8",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "I16": "int16",
        "U16": "uint16",
        "F16": "float16",
        "BF16": "bfloat16",
        "I32": "int32",
        "U32": "uint32",
        "F32": "float32",
        "C64": "complex64",
        "F64": "float64",
        "I64": "int64",
        "U64": "uint64",
    }

    def __init__(self, device: str) -> None:
        import torch

        self.module: Any = torch
        self.device = device
        self.place = "host:0" if device == "cpu" else device

    def dtype(self, entry: _Entry) -> Any:
        dtype = getattr(self.module, self._dtypes.get(entry.dtype, ""), None)
        if dtype is None:
            raise _no_type(entry, self.name, "a newer release may have it")
        return dtype

    def shape(self, entry: _Entry, shape: tuple[int, ...]) -> tuple[int, ...]:
        # An element of float4_e2m1fn_x2 is two of the file's.
        if entry.dtype != "F4":
            return shape
        if not shape or shape[-1] % 2:
            raise _no_type(entry, self.name, "its last dimension is odd, and PyTorch packs two values into one element")
        return (*shape[:-1], shape[-1] // 2)

    def allocate(self, count: int) -> Any:
        return self.module.empty(count, dtype=self.module.uint8, device=self.device)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.module.empty(shape, dtype=dtype, device=self.device)

    def copied(self, memory: Any) -> Any:
        return memory.clone()

    def shown(self, mapping: _native.Mapping) -> Any:
        if self.device != "cpu":
            return self.module.as_tensor(_Shown(mapping), device=self.device)
        with warnings.catch_warnings():
            # Of tensors that could be written to, which PyTorch has no others of.
            warnings.simplefilter("ignore", UserWarning)
            return self.module.frombuffer(mapping, dtype=self.module.uint8)


_Framework: TypeAlias = _Numpy | _Cupy | _Torch


def _no_type(entry: _Entry, framework: str, advice: str) -> SafetensorError:
    return SafetensorError(f"tensor {entry.name!r} has dtype {entry.dtype}, which {framework} does not support: {advice}")


_NAMES = {
    **dict.fromkeys(("pt", "torch", "pytorch"), "pt"),
    **dict.fromkeys(("np", "numpy"), "np"),
    **dict.fromkeys(("cupy", "cp"), "cupy"),
}


def _framework_of(framework: str | None, device: Any) -> _Framework:
    """The framework and the device of it that were meant, perhaps by leaving them out."""
    name = None if framework is None else _NAMES.get(framework)
    if framework is not None and name is None:
        raise ValueError(f'unknown framework {framework!r}: use "pt" (PyTorch), "cupy" or "np" (NumPy)')
    gpu = _gpu_of(device, name)
    if gpu is None:
        if name == "cupy":
            raise ValueError('CuPy has no arrays in host memory: use a GPU such as "cuda:0", or framework="np"')
        return _Torch("cpu") if name == "pt" else _Numpy()
    if name == "np":
        raise ValueError(f'NumPy has no arrays on cuda:{gpu}: omit device, or use framework="pt" or "cupy"')
    if name != "cupy":
        try:
            return _Torch(f"cuda:{gpu}")
        except ImportError:
            if name == "pt":
                raise
    try:
        return _Cupy(gpu)
    except ImportError:
        if name == "cupy":
            raise
    raise ImportError(
        f'tensors on cuda:{gpu} need PyTorch or CuPy, and neither can be imported; device="host" loads NumPy arrays'
    )


def _gpu_of(device: Any, framework: str | None) -> int | None:
    """The number of a GPU; none for host memory."""
    if device is None:
        if framework == "np":
            return None
        default = _native.default_device()
        return int(default[5:]) if default.startswith("cuda:") else None
    # PyTorch and the reference take bare numbers; devices of PyTorch print as their names.
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    if text in {"host", "host:0", "cpu"}:
        return None
    kind, _, number = text.partition(":")
    if kind == "cuda" and (number.isdecimal() or text == "cuda"):
        return int(number or 0)
    raise ValueError(f'unknown device {text!r}: use "host" (or "cpu") or "cuda:N"')


def load_file(
    path: StrPath,
    device: Any = None,
    framework: str | None = None,
    *,
    key: Key | None = None,
    shared: bool = False,
) -> dict[str, Any]:
    """All tensors of a file, of an index (`*.index.json`), or of the folder that has one.

    `framework` is "pt", "cupy" or "np". Without one it is NumPy for host memory, and PyTorch or CuPy,
    whichever can be imported, for a GPU. Without a device it is that of the variable BIFOLIO_DEVICE, else the
    first GPU, else host memory.

    With a key, the passphrase of an encrypted directory in gocryptfs's format, the path leads through that directory. A
    folder is then one whose name ends neither in .json nor in .safetensors.

    With `shared` the tensors lie in the cache of the daemon (`python -m bifolio.daemon`, or `bifolio daemon`): the first
    process that wants them has them loaded, and all others have the same memory at once. They are not to be written to;
    NumPy refuses it, PyTorch and CuPy cannot. They stay as they are when the file is changed or another one is put in its
    place; who loads it later gets what it has then. What is returned has `sleep()` and `wake()`, which give the device's
    memory back and bring the tensors to the same addresses again (`SharedTensors`). A file that this process may only read is copied within the device's memory. There has to be a daemon:
    ConnectionError.
    """
    if shared and key is not None:
        raise ValueError("what is encrypted is not shared: omit key, or shared")
    checkpoint = _Checkpoint(path, key)
    owner = _framework_of(framework, device)
    # Before anything is read: what cannot be shown needs no bytes.
    dtypes = {name: owner.dtype(shard.entries[name]) for name, shard in checkpoint.places.items()}
    if shared:
        return _load_shared(checkpoint, owner, dtypes)
    starts, total = {}, 0
    for shard in checkpoint.shards:
        starts[shard.path] = total + shard.shift()
        total += -(-(shard.data_bytes + 8) // _ALIGNMENT) * _ALIGNMENT
    memory = owner.allocate(total)
    _read_all(checkpoint.shards, starts, memory)
    tensors = {}
    for name, shard in checkpoint.places.items():
        entry = shard.entries[name]
        tensors[name] = _tensor(owner, memory, starts[shard.path] + entry.begin, entry, dtypes[name], entry.shape)
    return tensors


class SharedTensors(dict[str, Any]):
    """Tensors in the cache of the daemon, by their names."""

    def __init__(self, tensors: dict[str, Any], mappings: list[_native.Mapping]) -> None:
        super().__init__(tensors)
        self._mappings = mappings

    @property
    def recalled(self) -> float | None:
        """How many seconds there are to let them sleep, as other programs need the device's memory; None if nobody does. Who keeps
        them longer is disconnected from the daemon."""
        seconds = [recall.seconds for mapping in self._mappings for recall in mapping.recalls()]
        return min(seconds, default=None)

    def sleep(self) -> None:
        """Gives the device's memory back to whoever needs it. The tensors stay where they are, and are not to be used until
        `wake` has brought their bytes back to the same addresses: there is no memory behind them meanwhile. A device's memory
        is free when all processes that have the tensors let them sleep."""
        for mapping in self._mappings:
            mapping.sleep()

    def wake(self) -> None:
        """Brings them back, from the daemon's cache or the page cache; nothing if they are awake."""
        for mapping in self._mappings:
            mapping.wake()


def _load_shared(checkpoint: _Checkpoint, owner: _Framework, dtypes: dict[str, Any]) -> SharedTensors:
    """Those tensors that have a type here, where the daemon's cache has them."""
    memories: dict[str, tuple[int, Any]] = {}
    mappings = []
    for shard in checkpoint.shards:
        entries = [shard.entries[name] for name in dtypes if checkpoint.places[name] is shard]
        entries = [entry for entry in entries if entry.begin < entry.end]
        if not entries:
            # Nothing is there to be looked at.
            memories[shard.path] = (0, None)
            continue
        begin = min(entry.begin for entry in entries) + shard.data_start
        end = max(entry.end for entry in entries) + shard.data_start
        # With the header, where the data begin behind it: memory is given back by whole frames.
        begin = 0 if begin == shard.data_start else begin - begin % _ALIGNMENT
        mapping = _native.map(shard.path, begin, end - begin, device=owner.place, shared=True)
        if mapping.nbytes < end - begin:
            size = begin + mapping.nbytes
            raise SafetensorError(f"{shard.path}: the file was truncated: it has {size} of {end} bytes")
        # All of it stays acquired as long as there is a tensor of it.
        mapping.acquire()
        mappings.append(mapping)
        memories[shard.path] = (begin, owner.shown(mapping))
    tensors = {}
    for name, dtype in dtypes.items():
        shard = checkpoint.places[name]
        entry, (begin, memory) = shard.entries[name], memories[shard.path]
        start = shard.data_start + entry.begin - begin
        tensors[name] = _tensor(owner, memory, start, entry, dtype, entry.shape)
    return SharedTensors(tensors, mappings)


def _read_all(shards: list[_Shard], starts: dict[str, int], memory: Any) -> None:
    """The data of every shard, by one request each."""
    if len(shards) == 1:
        _read(shards[0], memory, starts[shards[0].path])
        return
    running: list[tuple[_Shard, _native.Future]] = []
    try:
        for shard in shards:
            if len(running) == _READS_AT_ONCE:
                _finish(*running.pop(0))
            with shard.open() as file:
                start = starts[shard.path]
                if isinstance(file, _native.Volume):
                    # Its parts are on their way at once already.
                    _check_length(shard, _read_from(file, shard, memory, start), shard.data_bytes)
                    continue
                pending = file.pread(memory, shard.data_start, shard.data_bytes, buffer_offset=start)
            running.append((shard, pending))
        while running:
            _finish(*running.pop(0))
    finally:
        for _, pending in running:
            pending.cancel()


def _finish(shard: _Shard, pending: _native.Future) -> None:
    _check_length(shard, pending.result(), shard.data_bytes)


def _read(shard: _Shard, memory: Any, start: int) -> None:
    with shard.open() as file:
        got = _read_from(file, shard, memory, start)
    _check_length(shard, got, shard.data_bytes)


def _read_from(file: _native.File | _native.Volume, shard: _Shard, memory: Any, start: int) -> int:
    return file.read_into(memory, shard.data_start, shard.data_bytes, buffer_offset=start)


def _check_length(shard: _Shard, got: int, wanted: int) -> None:
    if got != wanted:
        raise SafetensorError(f"{shard.path}: the file was truncated while it was read: got {got} of {wanted} bytes")


def _tensor(owner: _Framework, memory: Any, start: int, entry: _Entry, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A view of bytes of an allocation, or a copy where they are not aligned to their type."""
    count = math.prod(shape) * _BITS[entry.dtype] // 8
    if count == 0:
        return _empty(owner, entry, dtype, shape)
    part = memory[start : start + count]
    if start % entry.alignment:
        part = owner.copied(part)
    return _in_shape(owner, entry, shape, part.view(dtype).reshape)


def _empty(owner: _Framework, entry: _Entry, dtype: Any, shape: tuple[int, ...]) -> Any:
    return _in_shape(owner, entry, shape, lambda sides: owner.empty(sides, dtype))


def _in_shape(owner: _Framework, entry: _Entry, shape: tuple[int, ...], make: Callable[[tuple[int, ...]], Any]) -> Any:
    """What is made in the shape that the framework has for it, whose refusal is told as what it is: the format
    has no limits for the number of sides, nor for sides of a tensor without elements."""
    shape = owner.shape(entry, shape)
    try:
        return make(shape)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        sides = f"{len(shape)} dimensions" if len(shape) > 8 else f"the shape {list(shape)}"
        raise SafetensorError(
            f"tensor {entry.name!r} has {sides}, which {owner.name} does not support: {error}"
        ) from error


class safe_open:
    """One file or checkpoint, tensor by tensor. `framework`, `device` and `key` are those of `load_file`."""

    def __init__(
        self, path: StrPath, framework: str | None = None, device: Any = None, *, key: Key | None = None
    ) -> None:
        self._checkpoint = _Checkpoint(path, key)
        self._owner = _framework_of(framework, device)
        self._files: dict[str, _native.File | _native.Volume] | None = {}

    def __enter__(self) -> "safe_open":
        self._open_files()
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (self._files or {}).values():
            file.close()
        self._files = None

    def keys(self) -> list[str]:
        """The tensors' names, sorted."""
        return sorted(self._checkpoint.places)

    def offset_keys(self) -> list[str]:
        """The tensors' names in the order of their data."""
        places = self._checkpoint.places
        return [name for shard in self._checkpoint.shards for name in shard.entries if places.get(name) is shard]

    def metadata(self) -> dict[str, str] | None:
        """What the file says of itself; of a checkpoint in shards, what all of them say."""
        found = [shard.metadata for shard in self._checkpoint.shards if shard.metadata is not None]
        return dict(itertools.chain.from_iterable(texts.items() for texts in found)) if found else None

    def get_tensor(self, name: str) -> Any:
        """One tensor, in memory of its own."""
        return self.get_slice(name)[...]

    def get_slice(self, name: str) -> "_Slice":
        """A tensor to be cut: only what is asked of it is read."""
        shard, entry = self._checkpoint.entry(name)
        return _Slice(self, shard, entry)

    def _open_files(self) -> dict[str, _native.File | _native.Volume]:
        if self._files is None:
            raise ValueError(f"{self._checkpoint.name}: the file is closed")
        return self._files

    def _file(self, shard: _Shard) -> _native.File | _native.Volume:
        files = self._open_files()
        if shard.path not in files:
            files[shard.path] = shard.open()
        return files[shard.path]


class _Slice:
    """A tensor that was not read yet."""

    def __init__(self, opened: safe_open, shard: _Shard, entry: _Entry) -> None:
        self._opened, self._shard, self._entry = opened, shard, entry

    def get_shape(self) -> list[int]:
        """Its shape in the file."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Its type, as the file names it."""
        return self._entry.dtype

    def __getitem__(self, index: _Index | tuple[_Index, ...]) -> Any:
        entry, owner = self._entry, self._opened._owner
        dtype = owner.dtype(entry)
        ranges, is_kept = _ranges_of(index, entry)
        sides = tuple(end - start for start, end in ranges)
        shape = tuple(side for side, kept in zip(sides, is_kept, strict=True) if kept)
        bits = _BITS[entry.dtype]
        if bits % 8 and sides != entry.shape:
            raise SafetensorError(f"{self._shard.path}: {entry.name!r} has dtype {entry.dtype}, which cannot be sliced")
        count = math.prod(sides) * bits // 8
        if count == 0:
            return _empty(owner, entry, dtype, shape)
        file, start = self._opened._file(self._shard), self._shard.data_start + entry.begin
        runs = _Runs(ranges, entry.shape, bits)
        # Decided before the runs are listed: there may be millions of them.
        if runs.count > 1 and runs.bytes < _RUN_BYTES_MIN:
            return self._cut_in_memory(file, ranges, is_kept, dtype)
        memory = owner.allocate(count)
        if runs.count == 1:
            _check_length(self._shard, file.read_into(memory, start + runs.first, count), count)
        else:
            _check_length(self._shard, file.read_batch(memory, runs.extents(start)), count)
        return _tensor(owner, memory, 0, entry, dtype, shape)

    def _cut_in_memory(
        self, file: _native.File | _native.Volume, ranges: list[tuple[int, int]], is_kept: list[bool], dtype: Any
    ) -> Any:
        """Many short runs: the rows that have them are read whole, and cut by the framework."""
        entry, owner = self._entry, self._opened._owner
        first, end = ranges[0]
        row = math.prod(entry.shape[1:]) * _BITS[entry.dtype] // 8
        memory = owner.allocate((end - first) * row)
        got = file.read_into(memory, self._shard.data_start + entry.begin + first * row)
        _check_length(self._shard, got, (end - first) * row)
        rows = _tensor(owner, memory, 0, entry, dtype, (end - first, *entry.shape[1:]))
        cuts = [slice(0, end - first), *(slice(*part) for part in ranges[1:])]
        places = tuple(cut if kept else cut.start for cut, kept in zip(cuts, is_kept, strict=True))
        return owner.copied(rows[places])


def _ranges_of(index: _Index | tuple[_Index, ...], entry: _Entry) -> tuple[list[tuple[int, int]], list[bool]]:
    """The range of every side that an index means, and whether the side stays."""
    parts = index if isinstance(index, tuple) else (index,)
    dots = [number for number, part in enumerate(parts) if part is Ellipsis]
    missing = len(entry.shape) - (len(parts) - len(dots))
    if missing < 0 or len(dots) > 1:
        raise IndexError(f"too many indices for tensor {entry.name!r} with {len(entry.shape)} dimensions: {parts}")
    at = dots[0] if dots else len(parts)
    whole = [slice(None)] * missing
    ranges, is_kept = [], []
    for part, side in zip([*parts[:at], *whole, *parts[at + len(dots) :]], entry.shape, strict=True):
        if isinstance(part, slice):
            start, end, step = part.indices(side)
            if step != 1:
                raise ValueError(f"slices of {entry.name!r} must have step 1: slice the loaded tensor instead")
            ranges.append((start, max(start, end)))
            is_kept.append(True)
        elif isinstance(part, int) and not isinstance(part, bool):
            if not -side <= part < side:
                raise IndexError(f"index {part} is out of range for a dimension of {side} of tensor {entry.name!r}")
            ranges.append((part % side, part % side + 1))
            is_kept.append(False)
        else:
            raise TypeError(f"invalid index {part!r}: use integers, slices and ...")
    return ranges, is_kept


class _Runs:
    """The bytes of a cut that is not empty: runs of one length in the file, their places one after the other."""

    def __init__(self, ranges: list[tuple[int, int]], shape: tuple[int, ...], bits: int) -> None:
        self._strides = [bits * math.prod(shape[number + 1 :]) // 8 for number in range(len(shape))]
        # What follows the last side that is cut lies side by side.
        cut = max((number for number, part in enumerate(ranges) if part != (0, shape[number])), default=None)
        self._outer = [] if cut is None else [range(*part) for part in ranges[:cut]]
        self.count = math.prod(len(part) for part in self._outer)
        if cut is None:
            self._start, self.bytes = 0, bits * math.prod(shape) // 8
        else:
            start, end = ranges[cut]
            self._start, self.bytes = start * self._strides[cut], (end - start) * self._strides[cut]

    @property
    def first(self) -> int:
        """Where the first run begins."""
        return self._start + sum(part[0] * stride for part, stride in zip(self._outer, self._strides, strict=False))

    def extents(self, start: int) -> memoryview:
        """Offset, length and place of every run, for data that begin at `start`: numbers, without an object for
        each."""
        offsets = (
            start + self._start + sum(at * stride for at, stride in zip(place, self._strides, strict=False))
            for place in itertools.product(*self._outer)
        )
        runs = ((offset, self.bytes, number * self.bytes) for number, offset in enumerate(offsets))
        numbers = array.array("q", itertools.chain.from_iterable(runs))
        return memoryview(numbers).cast("B").cast("q", (self.count, 3))
