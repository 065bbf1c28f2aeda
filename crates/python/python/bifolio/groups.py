"""Processes of one node that load one checkpoint, a process for each GPU.

    ranks = bifolio.group(rank, size)                       # in each of them; torchrun's variables if left out
    tensors = ranks.load_file("model.safetensors")          # all of it, on this rank's GPU
    tensors = ranks.load_file("model.safetensors", part="share")          # some of the tensors, others of other ranks
    tensors = ranks.load_file("model.safetensors", part=ranks.along(0))   # of each tensor this rank's rows

The file leaves the disk once for all of them, and what several ranks want on their GPUs crosses the link to the host once:
each GPU reads its share, and takes the others' from the GPUs that have them. The daemon does this. Where none runs
(`bifolio daemon`, `python -m bifolio.daemon`), the first rank starts one, which ends half a minute after the last of them.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from . import _native
from .safetensors import (
    SafetensorError,
    StrPath,
    _Checkpoint,
    _framework_of,
    _Index,
    _load_shared,
    load_file,
    safe_open,
)

__all__ = ["Group", "group"]

Cut: TypeAlias = tuple[_Index, ...] | None
Part: TypeAlias = Literal["share"] | Callable[[str, tuple[int, ...]], Cut]

_IDLE_SECONDS = 30
# Opening all GPUs of a node takes seconds.
_START_SECONDS = 120

_started: list[subprocess.Popen[bytes]] = []


def group(rank: int | None = None, size: int | None = None, device: Any = None) -> "Group":
    """This process as one of a group of `size`, with the number `rank`. Left out, they are what LOCAL_RANK and
    LOCAL_WORLD_SIZE say, as torchrun sets them. Its device is the GPU with its number, or host memory where there is none."""
    if (rank is None) != (size is None):
        raise ValueError("rank and size belong together: give both, or none of them")
    if rank is None or size is None:
        rank, size = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is none of a group of {size}: ranks are 0 to {size - 1}")
    return Group(rank, size, device)


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise ValueError(f"{variable} is no number: give rank and size, or start the processes by torchrun")
    return int(text)


class Group:
    """See `group`."""

    def __init__(self, rank: int, size: int, device: Any) -> None:
        self.rank, self.size = rank, size
        devices = _served()
        gpus = [name for name in devices if name.startswith("cuda:")]
        self.device = device if device is not None else gpus[rank % len(gpus)] if gpus else "host:0"

    def __repr__(self) -> str:
        return f"<bifolio.Group: rank {self.rank} of {self.size}, on {self.device}>"

    def load_file(self, path: StrPath, framework: str | None = None, *, part: Part | None = None) -> dict[str, Any]:
        """The tensors of a checkpoint, named as for `bifolio.safetensors.load_file`.

        Without `part`, all of them, in the daemon's cache: they are not to be written to. With "share", those that are
        this rank's: each tensor is one rank's, ranks have as many bytes as that permits. With a function of a tensor's name
        and shape, what it says: an index for a part of the tensor, in memory of this process alone, or None for nothing.
        """
        if part is None:
            return load_file(path, self.device, framework, shared=True)
        if part == "share":
            checkpoint, owner = _Checkpoint(path, None), _framework_of(framework, self.device)
            names = self._share(checkpoint)
            places = checkpoint.places
            return _load_shared(checkpoint, owner, {name: owner.dtype(places[name].entries[name]) for name in names})
        if not callable(part):
            raise ValueError(f'part is {part!r}: use None, "share", or a function of a tensor\'s name and shape')
        tensors = {}
        with safe_open(path, framework, self.device) as opened:
            for name in opened.offset_keys():
                cut = opened.get_slice(name)
                index = part(name, tuple(cut.get_shape()))
                if index is not None:
                    tensors[name] = cut[index]
        return tensors

    def along(self, side: int) -> Callable[[str, tuple[int, ...]], Cut]:
        """For `part`: each tensor is cut along one of its sides, in as many even pieces as there are ranks. A tensor without
        that side is everybody's; one whose side cannot be cut so is an error."""

        def cut(name: str, shape: tuple[int, ...]) -> Cut:
            if not -len(shape) <= side < len(shape):
                return (...,)
            even, rest = divmod(shape[side], self.size)
            if rest:
                raise SafetensorError(f"{name!r} has {shape[side]} along {side}, which {self.size} ranks cannot share")
            whole = [slice(None)] * len(shape)
            whole[side] = slice(self.rank * even, (self.rank + 1) * even)
            return tuple(whole)

        return cut

    def _share(self, checkpoint: _Checkpoint) -> list[str]:
        """Tensors follow each other as they lie in the files; this rank's are those that begin in its part of the bytes."""
        places: Mapping[str, Any] = checkpoint.places
        total = sum(shard.entries[name].end - shard.entries[name].begin for name, shard in places.items())
        at, own = 0, []
        for shard in checkpoint.shards:
            for name, entry in shard.entries.items():
                if places.get(name) is not shard:
                    continue
                if min(at * self.size // max(total, 1), self.size - 1) == self.rank:
                    own.append(name)
                at += entry.end - entry.begin
        return own


def _served() -> list[str]:
    """The devices of the daemon, which is started where none runs. This process stays connected to it."""
    try:
        return _native.daemon_devices()
    except ConnectionError:
        pass
    # Of several that are started at once one serves; the others end.
    command = [sys.executable, "-m", "bifolio.daemon", "--idle-exit", str(_IDLE_SECONDS)]
    said = tempfile.TemporaryFile()
    started = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
    )
    # It outlives this process, if need be.
    _started.append(started)
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            devices = _native.daemon_devices()
            break
        except ConnectionError as error:
            if time.monotonic() > end:
                started.terminate()
                raise ConnectionError(f"no daemon came up within {_START_SECONDS} s: {error}") from error
        if started.poll() is not None and not os.path.exists(_native.daemon_socket()):
            said.seek(0)
            why = said.read().decode(errors="replace").strip()
            raise ConnectionError(f"no daemon could be started: {why}")
        time.sleep(0.02)
    return devices
