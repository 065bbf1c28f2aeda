"""Compares every byte of what was loaded with the file, on the device: hashing would take longer than loading."""

import os
from concurrent.futures import ThreadPoolExecutor

import model

PIECE = 64 << 20
PART = 8 << 20
THREADS = 8


def verify(tensors: dict[str, object], path: str) -> int:
    """Compares the tensors that are there, by their names; returns how many bytes they are."""
    places, checked = {tensor.name: tensor for tensor in model.tensors(path)}, 0
    if unknown := tensors.keys() - places.keys():
        raise ValueError(f"{min(unknown)} is no tensor of the file")
    stage = _Stage(path)
    try:
        for name, tensor in tensors.items():
            place, flat = places[name], _flat(tensor)
            if len(flat) != place.length:
                raise ValueError(f"{name} has {len(flat)} bytes where the file has {place.length}")
            for at in range(0, place.length, PIECE):
                count = min(PIECE, place.length - at)
                if not stage.has(flat[at:at + count], place.start + at):
                    raise ValueError(f"the bytes of {name} on the device are not those of the file, from {at} on")
            checked += place.length
    finally:
        stage.close()
    return checked


def _flat(tensor: object) -> object:
    """Its bytes, where they are."""
    if hasattr(tensor, "detach"):
        import torch
        return tensor.detach().contiguous().view(-1).view(torch.uint8)
    return tensor.reshape(-1).view("uint8")


class _Stage:
    """Host memory through which a file's bytes come to the device."""

    def __init__(self, path: str) -> None:
        self.file, self.threads, self.memory = os.open(path, os.O_RDONLY), ThreadPoolExecutor(THREADS), None

    def close(self) -> None:
        self.threads.shutdown()
        os.close(self.file)

    def has(self, flat: object, start: int) -> bool:
        """Whether bytes are those of the file from a place on."""
        count, is_torch = len(flat), hasattr(flat, "detach")
        if self.memory is None:
            self.memory = self._torch_memory(flat) if is_torch else self._numpy_memory()
        array = self.memory.numpy() if is_torch else self.memory
        list(self.threads.map(lambda at: self._read(array, at, min(PART, count - at), start), range(0, count, PART)))
        if is_torch:
            import torch
            return torch.equal(flat, self.memory[:count].to(flat.device))
        return bool((flat == self.memory[:count]).all())

    def _read(self, array: object, at: int, count: int, start: int) -> None:
        view = memoryview(array)[at:at + count]
        while view:
            got = os.preadv(self.file, [view], start + at)
            if got == 0:
                raise EOFError("the file was cut while it was compared")
            view, at = view[got:], at + got

    @staticmethod
    def _torch_memory(flat: object) -> object:
        import torch
        return torch.empty(PIECE, dtype=torch.uint8, pin_memory=flat.is_cuda)

    @staticmethod
    def _numpy_memory() -> object:
        import numpy
        return numpy.empty(PIECE, dtype="uint8")
