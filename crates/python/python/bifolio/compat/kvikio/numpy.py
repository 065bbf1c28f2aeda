"""Arrays from files and into files, as KvikIO has them beside NumPy's own."""

import os
from typing import Any

import numpy

from .cufile import CuFile


class LikeWrapper:
    """For `numpy.fromfile(..., like=LikeWrapper(array))`: reads into an array of that kind."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return fromfile(*args, **kwargs, like=self._like) if func is numpy.fromfile else func(*args, **kwargs)


def fromfile(
    file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, *, like: Any = None
) -> Any:
    """An array of a file's bytes from `offset` on, of the kind of `like` (NumPy's without one): `count` elements, or
    as many as the file has. Files of text are not read."""
    if sep != "":
        raise NotImplementedError("text files (sep) are not supported: use numpy.fromfile()")
    path = _path_of(file)
    there = max(0, os.stat(path).st_size - offset) // numpy.dtype(dtype).itemsize
    shape = (there if count == -1 else min(count, there),)
    array = numpy.empty(shape, dtype) if like is None else numpy.empty_like(like, shape=shape, dtype=dtype)
    with CuFile(path, "r") as opened:
        got = opened.read(array, file_offset=offset)
    if got != array.nbytes:
        read = f"{got} of {array.nbytes} bytes"
        raise OSError(f"{path}, offset {offset}: the file was truncated while it was read: got {read}")
    return array


def tofile(ary: Any, file: Any) -> None:
    """Writes an array's bytes, in C order, to a file, which is created or emptied."""
    with CuFile(_path_of(file), "w") as opened:
        opened.write(numpy.ascontiguousarray(ary, like=ary))


def _path_of(file: Any) -> str:
    """A file's name: its own, where it is an open file."""
    return os.fspath(file.name if hasattr(file, "fileno") and hasattr(file, "name") else file)
