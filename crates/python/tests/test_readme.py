"""The examples of the README and of the Python guide run as they are."""

import hashlib
import re
import shutil
from pathlib import Path

import bifolio
import pytest

from conftest import Daemon, encrypt_folder, gpus, need_module, run_program

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGES = [README, ROOT / "docs/guide/python.md"]
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [block for page in PAGES for block in FENCE.findall(page.read_text())]


def test_two_processes_share_what_an_example_loads(daemon: Daemon, tmp_path: Path) -> None:
    [block] = [block for block in BLOCKS if "shared=True" in block]
    numpy = need_module("numpy")
    weight = numpy.random.default_rng().standard_normal((256, 300), "float32")
    need_module("safetensors.numpy").save_file({"weight": weight}, tmp_path / "model.safetensors")
    shown = "\nimport hashlib; print(hashlib.sha256(tensors['weight'].tobytes()).hexdigest())\n"
    shown += "print(bifolio.map('model.safetensors', shared=True).acquire().fetched)"
    program = f"import os, bifolio; os.chdir({str(tmp_path)!r})\n{block}{shown}"
    for _ in range(2):
        done = run_program(program)
        assert done.returncode == 0, done.stderr
        # The tensors have brought every page of it.
        assert done.stdout.split() == [hashlib.sha256(weight.tobytes()).hexdigest(), "0"]


def test_there_are_examples() -> None:
    assert all(len(FENCE.findall(page.read_text())) >= 2 for page in PAGES)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    numpy = need_module("numpy")
    save_file = need_module("safetensors.numpy").save_file
    if "shared=True" in block:
        pytest.skip("it needs a daemon, with which the test above runs it")
    if gpus() and "load_file" in block:
        need_module("torch")
    if "bifolio.group(" in block:
        # The group would start one, which would stay for a while.
        request.getfixturevalue("daemon")
    shutil.copy(README, tmp_path)
    save_file({"weight": numpy.ones((16, 4), "float32")}, tmp_path / "model.safetensors")
    if "vault" in block:
        plain = tmp_path / "plain"
        plain.mkdir()
        shutil.copy(tmp_path / "model.safetensors", plain)
        encrypt_folder(plain, tmp_path / "vault", "correct horse")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIFOLIO_SETS", str(tmp_path / "sets"))
    names: dict[str, object] = {}
    try:
        exec(compile(block, "README.md", "exec"), names)
    except PermissionError as error:
        if "userfaultfd" not in str(error):
            raise
        pytest.skip(str(error))
    if "region" in names:
        assert getattr(names["region"], "closed")  # noqa: B009
    elif "ranks" in names:
        tensors = names["tensors"]
        assert isinstance(tensors, dict)
        assert tensors["weight"].shape == (8, 4)
    elif "vault" in block or "publish" in block:
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
