"""The examples of the README and of the Python guide run as they are."""

import re
import shutil
from pathlib import Path

import bifolio
import pytest

from conftest import encrypt_folder, gpus, need_module

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGES = [README, ROOT / "docs/guide/python.md"]
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [block for page in PAGES for block in FENCE.findall(page.read_text())]


def test_there_are_examples() -> None:
    assert all(len(FENCE.findall(page.read_text())) >= 2 for page in PAGES)


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
    try:
        exec(compile(block, "README.md", "exec"), names)
    except PermissionError as error:
        if "userfaultfd" not in str(error):
            raise
        pytest.skip(str(error))
    if "region" in names:
        assert getattr(names["region"], "closed")  # noqa: B009
    elif "vault" in block:
        assert names["tensors"]["weight"].shape == (16, 4)
    elif "part" in names:
        assert getattr(names["part"], "shape") == (8, 4)  # noqa: B009
    elif "mapping" in names:
        content = README.read_bytes()
        assert names.get("seen", b"%" + content[1:2]) == b"%" + content[1:2]
        assert (tmp_path / "copy.md").read_bytes() == b"%" + content[1:]
    elif "tensors" in names:
        content, memory = README.read_bytes(), names["memory"]
        assert names["tensors"]["weight"].shape == (16, 4)
        assert isinstance(memory, bifolio.Memory)
        assert memory.to_bytes()[: len(content)] == content[4096:] + content[len(content) - 4096 :]
    else:
        content, memory = README.read_bytes(), names["memory"]
        assert names["read"] == len(content)
        assert isinstance(memory, bifolio.Memory)
        # What the batch left, over what the request that runs by itself had left, over the whole file.
        expected = bytearray(content)
        expected[: len(content) - 4096] = content[4096:]
        expected[:512], expected[512:1024] = content[:512], content[4096:4608]
        assert memory.to_bytes()[: len(content)] == expected
