"""Published sets of tensors: what a program has made of a checkpoint (cast, quantised, fused, cut for its rank), for the next
process that would make the same.

    key = {"model": "m-7b", "revision": 3, "dtype": "int8", "rank": 0, "of": 8}
    try:
        tensors = bifolio.attach("engine", key)
    except FileNotFoundError:
        tensors = quantised(load_file("model.safetensors"))
        bifolio.publish("engine", key, tensors)

A set outlives its maker, and is found by its name and all of its key. It is a file in the safetensors format, in the folder
that BIFOLIO_SETS names, else in bifolio/sets of the user's cache folder. It is there when it is whole: a maker that dies in
between leaves what was there before. Who has attached to a set keeps it when another one is published in its place.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from . import _native
from .safetensors import _ALIGNMENT, _BITS, SafetensorError, _Numpy, _Torch, load_file

__all__ = ["attach", "publish", "withdraw"]

Key: TypeAlias = Mapping[str, str | int | float | bool | None]

_NAME = "bifolio.name"
_KEY = "bifolio.key"
_NEW = ".new"


def publish(name: str, key: Key, tensors: Mapping[str, Any]) -> str:
    """Publishes arrays of NumPy, CuPy or PyTorch, wherever they lie, under a name and a key; another set that was
    published so is replaced. Returns where it is. All of it is on the disk then."""
    path = _path(name, key)
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    arrays = {title: _Array(title, tensor) for title, tensor in tensors.items()}
    # Those with large elements first: each begins where its type wants it.
    ordered = sorted(arrays.items(), key=lambda item: (-_BITS[item[1].dtype], item[0]))
    header: dict[str, Any] = {"__metadata__": {_NAME: name, _KEY: _canonical(key)}}
    end = 0
    for title, array in ordered:
        begin, end = end, end + array.nbytes
        header[title] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with _new_file(path) as new, _native.open(new, "w") as file:
        file.write_from(struct.pack("<Q", len(text)) + text)
        for title, array in ordered:
            if array.nbytes:
                file.write_from(array.memory, 8 + len(text) + header[title]["data_offsets"][0])
        file.sync()
    return path


def attach(
    name: str, key: Key, device: Any = None, framework: str | None = None, *, shared: bool = True
) -> dict[str, Any]:
    """The tensors that were published under a name and a key, as `load_file(..., shared=True)` has them: in the cache of the
    daemon, where all who attach to them have the same memory. With `shared=False` they are loaded for this process alone.

    FileNotFoundError if nothing is published so.
    """
    path = _path(name, key)
    try:
        metadata = _native.read_header(path)[0] or {}
        if (metadata.get(_NAME), metadata.get(_KEY)) != (name, _canonical(key)):
            raise SafetensorError(f"{path}: it is no set with the name {name!r} and this key: publish it anew")
        return load_file(path, device, framework, shared=shared)
    except FileNotFoundError:
        detail = f"no set {name!r} is published with the key {_canonical(key)}: publish it first"
        raise FileNotFoundError(errno.ENOENT, detail, path) from None


def withdraw(name: str, key: Key) -> bool:
    """Has a set be found no more; whether there was one. Who has attached to it keeps it."""
    try:
        os.unlink(_path(name, key))
    except FileNotFoundError:
        return False
    return True


def _canonical(key: Key) -> str:
    for part, value in key.items():
        if not isinstance(part, str) or not (value is None or isinstance(value, str | int | float | bool)):
            raise TypeError(f"the key's {part!r} is {value!r}: use text for names, and text, numbers, booleans or None")
    return json.dumps(key if isinstance(key, dict) else dict(key), sort_keys=True, separators=(",", ":"))


def _path(name: str, key: Key) -> str:
    if not name:
        raise ValueError("a set has a name of at least one character")
    digest = hashlib.sha256(json.dumps([name, _canonical(key)]).encode()).hexdigest()
    return os.path.join(_folder(), f"{digest}.safetensors")


def _folder() -> str:
    if folder := os.environ.get("BIFOLIO_SETS"):
        return folder
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "bifolio", "sets")


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[str]:
    """A file that takes its place when it is whole. Its maker holds a lock on it: one without is of a maker that has died."""
    folder = os.path.dirname(path)
    for name in os.listdir(folder):
        if name.endswith(_NEW):
            _remove_left(os.path.join(folder, name))
    descriptor, new = tempfile.mkstemp(suffix=_NEW, dir=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield new
        os.replace(new, path)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    finally:
        os.close(descriptor)


def _remove_left(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may be so young that its maker has not locked it yet; who has, and wrote to it, has died.
        if os.fstat(descriptor).st_size > 0:
            os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        os.close(descriptor)


class _Array:
    """What is written of a tensor: its bytes in order, its shape, and its type as the format names it."""

    def __init__(self, title: str, tensor: Any) -> None:
        self.shape = [int(side) for side in tensor.shape]
        if type(tensor).__module__.partition(".")[0] == "torch":
            names = {name: kind for kind, name in _Torch._dtypes.items()}
            self.dtype = names.get(str(tensor.dtype).removeprefix("torch."), "")
            if self.dtype == "F4" and self.shape:
                # An element is two of the format's.
                self.shape[-1] *= 2
            self.memory = tensor.detach().contiguous()
            count = tensor.numel() * tensor.element_size()
        else:
            names = {name: kind for kind, name in {**_Numpy._dtypes, **_Numpy._ml_dtypes}.items()}
            self.dtype = names.get(str(tensor.dtype), "")
            # Of types that are not NumPy's own nothing else is lent.
            self.memory = tensor.ravel().view("uint8") if tensor.size else tensor
            count = tensor.size * tensor.dtype.itemsize
        if not self.dtype:
            raise TypeError(f"tensor {title!r} has dtype {tensor.dtype}, which the safetensors format does not have")
        self.nbytes = int(count)
