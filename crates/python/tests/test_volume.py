"""Volumes and encrypted files: what other tools encrypted, in buffers of every kind."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bifolio
import pytest
from bifolio import _native
from bifolio.safetensors import SafetensorError, load_file, safe_open

from conftest import bytes_of_seed, encrypt_folder, gpus, need_module, need_program

numpy = need_module("numpy")
SECRET = "correct horse"
CONTENT = bytes_of_seed(3_000_000, 7)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LUKS2 volume that cryptsetup made of a plain file."""
    cryptsetup = need_program("cryptsetup")
    path = tmp_path_factory.mktemp("luks") / "volume.img"
    path.write_bytes(CONTENT.ljust(48 << 20, b"\0"))
    command = [cryptsetup, "reencrypt", "--encrypt", "--type", "luks2", "--reduce-device-size", "32M", "-q",
               "--force-offline-reencrypt", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", path]  # fmt: skip
    subprocess.run(command, input=SECRET, text=True, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encrypted directory of gocryptfs's with a file, and a checkpoint as a whole and in shards."""
    save_file = need_module("safetensors.numpy").save_file
    root = tmp_path_factory.mktemp("gocryptfs")
    plain = root / "plain"
    (plain / "shards").mkdir(parents=True)
    (plain / "data.bin").write_bytes(CONTENT)
    tensors = {"a": numpy.arange(30_000, dtype="float32").reshape(100, 300), "b": numpy.arange(7, dtype="int64")}
    save_file(tensors, plain / "model.safetensors")
    for name, tensor in tensors.items():
        save_file({name: tensor}, plain / "shards" / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in tensors}}
    (plain / "shards" / "model.safetensors.index.json").write_text(json.dumps(index))
    encrypt_folder(plain, root / "vault", SECRET)
    return root / "vault"


def buffers() -> Iterator[Callable[[int], tuple[Any, Callable[[], bytes]]]]:
    def host(count: int) -> tuple[Any, Callable[[], bytes]]:
        buffer = bytearray(b"\xa5" * count)
        return buffer, lambda: bytes(buffer)

    def cupy(count: int) -> tuple[Any, Callable[[], bytes]]:
        buffer = need_module("cupy").full(count, 0xA5, dtype="uint8")
        return buffer, lambda: bytes(buffer.get())

    def torch(count: int) -> tuple[Any, Callable[[], bytes]]:
        module = need_module("torch")
        buffer = module.full((count,), 0xA5, dtype=module.uint8, device="cuda")
        return buffer, lambda: bytes(buffer.cpu().numpy())

    yield host
    if gpus():
        yield cupy
        yield torch


@pytest.mark.parametrize("make", list(buffers()))
def test_a_volume_of_cryptsetup_is_read(image: Path, make: Any) -> None:
    with bifolio.open_volume(image, key=SECRET) as volume:
        assert volume.size == len(volume) == (48 << 20) - (16 << 20)
        for offset, count in [(0, len(CONTENT)), (1000, 100_000), (4095, 2), (len(CONTENT), 50)]:
            buffer, look = make(count)
            assert volume.read_into(buffer, offset) == count
            assert look() == CONTENT[offset : offset + count].ljust(count, b"\0")
        buffer, look = make(300)
        assert volume.read_batch(buffer, [(0, 100, 200), (5000, 100, 0)]) == 200
        assert look() == CONTENT[5000:5100] + b"\xa5" * 100 + CONTENT[:100]
        assert volume.read_into(buffer, volume.size - 10) == 10
        assert volume.read_into(buffer, volume.size + 10) == 0
        assert "volume.img" in repr(volume) and "volume.img" in volume.name
    assert volume.closed
    with pytest.raises(ValueError, match="closed"):
        volume.read_into(bytearray(1))


def test_keys_come_from_files_and_wrong_ones_are_refused(image: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(SECRET)
    bifolio.open_volume(image, key_file=key_file).close()
    bifolio.open_volume(image, key=SECRET.encode()).close()
    with pytest.raises(PermissionError, match="no keyslot"):
        bifolio.open_volume(image, key="wrong")
    with pytest.raises(PermissionError, match="encrypted"):
        bifolio.open_volume(image)
    with pytest.raises(ValueError, match="key or key_file, not both"):
        bifolio.open_volume(image, key=SECRET, key_file=key_file)
    with pytest.raises(FileNotFoundError):
        bifolio.open_volume(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="nothing"):
        bifolio.open_volume(image, key_file=tmp_path / "nothing")
    with pytest.raises(ValueError, match="no file"):
        bifolio.open_volume()


@pytest.mark.parametrize("make", list(buffers()))
def test_a_file_of_gocryptfs_is_read(vault: Path, make: Any) -> None:
    with bifolio.open(vault / "data.bin", key=SECRET) as file:
        assert isinstance(file, bifolio.Volume)
        assert file.size == len(CONTENT)
        for offset, count in [(0, len(CONTENT)), (4095, 4098), (len(CONTENT) - 3, 3)]:
            buffer, look = make(count)
            assert file.read_into(buffer, offset) == count
            assert look() == CONTENT[offset : offset + count]


def test_what_was_changed_is_an_error(vault: Path, tmp_path: Path) -> None:
    largest = max((path for path in vault.iterdir() if path.is_file()), key=lambda path: path.stat().st_size)
    before = largest.read_bytes()
    try:
        largest.write_bytes(before[:50_000] + bytes([before[50_000] ^ 1]) + before[50_001:])
        with bifolio.open(vault / "data.bin", key=SECRET) as file, pytest.raises(OSError, match="block 12 "):
            file.read_into(bytearray(len(CONTENT)))
    finally:
        largest.write_bytes(before)


def test_wrong_use_of_encrypted_files_is_said(vault: Path, tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        bifolio.open(vault / "data.bin", key="wrong")
    with pytest.raises(FileNotFoundError):
        bifolio.open(vault / "nothing", key=SECRET)
    with pytest.raises(OSError, match="for reading"):
        bifolio.open(vault / "data.bin", "r+", key=SECRET)
    with pytest.raises(bifolio.Error, match="gocryptfs.conf"):
        bifolio.open(tmp_path / "plain", key=SECRET)


def test_an_encrypted_checkpoint_is_loaded(vault: Path) -> None:
    expected = {"a": numpy.arange(30_000, dtype="float32").reshape(100, 300), "b": numpy.arange(7, dtype="int64")}
    for device in ["host", *(["cuda:0"] if gpus() else [])]:
        for place in ["model.safetensors", "shards", "shards/model.safetensors.index.json"]:
            loaded = load_file(vault / place, device, key=SECRET)
            assert loaded.keys() == expected.keys()
            for name, tensor in expected.items():
                found = loaded[name]
                assert device == "host" or found.is_cuda
                numpy.testing.assert_array_equal(found if device == "host" else found.cpu().numpy(), tensor)
    with safe_open(vault / "model.safetensors", device="host", key=SECRET) as file:
        numpy.testing.assert_array_equal(file.get_slice("a")[10:20], expected["a"][10:20])
        numpy.testing.assert_array_equal(file.get_slice("a")[3:90, 100:250], expected["a"][3:90, 100:250])
        numpy.testing.assert_array_equal(file.get_tensor("b"), expected["b"])
    with bifolio.open(vault / "data.bin", key=SECRET) as file, pytest.raises(SafetensorError, match="data.bin"):
        _native.read_header(file)
