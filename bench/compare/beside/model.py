"""The sample: one safetensors file with the tensors of a transformer, in bf16, of seeded random bytes.

The data never repeat at a distance that a compressing disk would notice, and are never zeros: a sparse
or compressed file would be read at a rate that no checkpoint has.
"""

import hashlib
import json
import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path

BLOCK = 64 << 20
BF16 = 2


@dataclass(frozen=True)
class Tensor:
    """One tensor: its bytes are `start..start + length` of the file."""

    name: str
    shape: tuple[int, ...]
    start: int
    length: int


def shapes(size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a model of about `size` bytes, in the order of the file."""
    hidden = next(h for h, least in ((4096, 4 << 30), (2048, 1 << 30), (1024, 128 << 20), (256, 16 << 20), (64, 0))
                  if size >= least)
    inner, key = hidden * 7 // 2, hidden // 4
    block = {
        "input_layernorm.weight": (hidden,),
        "mlp.down_proj.weight": (hidden, inner),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.v_proj.weight": (key, hidden),
    }
    layer_bytes = BF16 * sum(_count(shape) for shape in block.values())
    # A twentieth of the file, or one row of each, is left for the two tables of the vocabulary at least.
    layers = max(1, int(size * 0.95) // layer_bytes)
    words = max(64, (size - layers * layer_bytes) // (2 * BF16 * hidden))
    names = [("lm_head.weight", (words, hidden)), ("model.embed_tokens.weight", (words, hidden))]
    for layer in range(layers):
        names += [(f"model.layers.{layer}.{part}", shape) for part, shape in block.items()]
    return [*names, ("model.norm.weight", (hidden,))]


def make(path: Path, size: int, seed: int) -> list[Tensor]:
    """Writes the sample, or keeps it where it is there already, and returns its tensors."""
    header, at = {"__metadata__": {"format": "pt", "seed": str(seed)}}, 0
    for name, shape in shapes(size):
        end = at + BF16 * _count(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # Padded so that the data begin on a page: tensors then have the alignment that the format's own
    # writers give them, and more.
    text += b" " * (-(len(text) + 8) % 4096)
    head = struct.pack("<Q", len(text)) + text
    if not _is_there(path, head, len(head) + at):
        _write(path, head, at, seed)
    return tensors(path)


def tensors(path: Path) -> list[Tensor]:
    """The tensors of a safetensors file, in the order of the file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > 100 << 20:
            raise ValueError(f"{path}: a header of {length} bytes; this is no safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found = [
        Tensor(name, tuple(entry["shape"]), 8 + length + entry["data_offsets"][0],
               entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
    ]
    return sorted(found, key=lambda tensor: tensor.start)


def samples(all_tensors: list[Tensor], limit: int = 64 << 20) -> list[Tensor]:
    """A few tensors to compare after each load: the ends of the file, the middle, and small ones.

    Tensors of more than `limit` bytes take longer to hash than to load, so the nearest others stand in.
    """
    small = [tensor for tensor in all_tensors if 0 < tensor.length <= limit] or all_tensors
    picks = [small[0], small[len(small) // 3], small[len(small) // 2], small[-1]]
    return sorted(set(picks), key=lambda tensor: tensor.start)


def digest(path: Path, start: int, length: int) -> str:
    """The SHA-256 of a range of a file, read by plain system calls."""
    hash_, file = hashlib.sha256(), os.open(path, os.O_RDONLY)
    try:
        while length:
            part = os.pread(file, min(length, 16 << 20), start)
            if not part:
                raise EOFError(f"{path} ends at {start}, before the range that was asked for")
            hash_.update(part)
            start, length = start + len(part), length - len(part)
    finally:
        os.close(file)
    return hash_.hexdigest()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _is_there(path: Path, head: bytes, size: int) -> bool:
    if not path.exists() or path.stat().st_size != size:
        return False
    with open(path, "rb") as file:
        return file.read(len(head)) == head


def _write(path: Path, head: bytes, length: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    block = random.Random(seed).randbytes(min(BLOCK, max(length, 1)))
    # Under another name first: an interrupted run must not leave a file that looks complete.
    part = path.with_name(path.name + ".part")
    with open(part, "wb", buffering=0) as file:
        _write_all(file, head)
        for number, at in enumerate(range(0, length, len(block))):
            # Each piece is the block turned by a number of bytes that is no multiple of a page, so that no
            # two pages of the file are equal.
            turn = number * 4099 % len(block)
            piece = memoryview(block)[turn:], memoryview(block)[:turn]
            left = min(len(block), length - at)
            for half in piece:
                _write_all(file, half[:left])
                left -= min(left, len(half))
        os.fdatasync(file.fileno())
    part.rename(path)


def _write_all(file, data) -> None:
    data = memoryview(data)
    while data:
        data = data[file.write(data):]
