"""The examples of the README run as they are."""

import re
import shutil
from pathlib import Path

import bifolio
import pytest

from conftest import encrypt_folder, gpus, need_module

README = Path(__file__).resolve().parents[3] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = need_module("numpy")
    save_file = need_module("safetensors.numpy").save_file
    if gpus() and "load_file" in block:
        need_module("torch")
    shutil.copy(README, tmp_path)
    save_file({"weight": numpy.ones((16, 4), "float32")}, tmp_path / "model.safetensors")
    if "vault" in block:
        plain = tmp_path / "plain"
        plain.mkdir()
        shutil.copy(tmp_path / "model.safetensors", plain)
        encrypt_folder(plain, tmp_path / "vault", "correct horse")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    if "vault" in block:
        assert names["tensors"]["weight"].shape == (16, 4)
    elif "part" in names:
        assert getattr(names["part"], "shape") == (8, 4)  # noqa: B009
    elif "mapping" in names:
        content = README.read_bytes()
        assert names["seen"] == b"%" + content[1:2]
        assert (tmp_path / "copy.md").read_bytes() == b"%" + content[1:]
    else:
        content, memory = README.read_bytes(), names["memory"]
        assert names["read"] == len(content)
        assert isinstance(memory, bifolio.Memory)
        # What the batch left, over what the request that runs by itself had left, over the whole file.
        expected = bytearray(content)
        expected[: len(content) - 4096] = content[4096:]
        expected[:512], expected[512:1024] = content[:512], content[4096:4608]
        assert memory.to_bytes()[: len(content)] == expected
