"""The daemon's cache: processes that share one model, who may do what, and daemons that end."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import bifolio
import pytest
from bifolio.safetensors import load_file

from conftest import Daemon, need_module, run_program


def checkpoint(folder: Path) -> tuple[Path, dict[str, bytes]]:
    """A file with tensors of several types, and what they are."""
    numpy = need_module("numpy")
    save_file = need_module("safetensors.numpy").save_file
    draw = random.Random()
    tensors = {
        f"layer.{number}": numpy.frombuffer(draw.randbytes(rows * 1024), dtype).reshape(rows, -1)
        for number, (rows, dtype) in enumerate([(700, "float32"), (3, "uint8"), (41, "float16"), (1, "int64")])
    }
    path = folder / "model.safetensors"
    save_file({**tensors, "none": numpy.empty((0, 4), "float32")}, path)
    return path, {name: array.tobytes() for name, array in tensors.items()}


LOADER = """
import hashlib, json, sys
from bifolio.safetensors import load_file
import bifolio

tensors = load_file(sys.argv[1], device="host:0", shared=True)
with bifolio.map(sys.argv[1], device="host:0", shared=True) as mapping:
    report = mapping.acquire()
print(json.dumps({
    "digests": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in tensors.items()},
    "is_writable": any(array.flags.writeable for array in tensors.values() if array.size),
}))
"""


def test_processes_share_one_model(daemon: Daemon, tmp_path: Path) -> None:
    import hashlib

    path, expected = checkpoint(tmp_path)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in expected.items()}
    digests["none"] = hashlib.sha256(b"").hexdigest()
    command = [sys.executable, "-c", LOADER, str(path)]
    loaders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for loader in loaders:
        said, _ = loader.communicate(timeout=120)
        assert loader.returncode == 0
        assert json.loads(said) == {"digests": digests, "is_writable": False}
    # Whoever comes now has nothing to fetch: the file's pages are there since.
    with bifolio.map(path, device="host:0", shared=True) as mapping:
        report = mapping.acquire()
        assert (report.fetched, report.hits) == (0, -(-path.stat().st_size // (64 << 10)))


def test_tensors_sleep_and_wake_where_they_were(daemon: Daemon, tmp_path: Path) -> None:
    path, expected = checkpoint(tmp_path)
    tensors, others = (load_file(path, device="host:0", shared=True) for _ in range(2))
    places = {name: array.ctypes.data for name, array in tensors.items()}
    for _ in range(3):
        tensors.sleep()
        tensors.sleep()
        assert {name: others[name].tobytes() for name in expected} == expected, "who is awake has them"
        with bifolio.map(path, device="host:0", shared=True) as mapping:
            assert mapping.acquire().fetched == 0, "and the device"
        tensors.wake()
        assert {name: tensors[name].tobytes() for name in expected} == expected
        assert {name: array.ctypes.data for name, array in tensors.items()} == places
    tensors.sleep()
    others.sleep()
    with bifolio.map(path, device="host:0", shared=True) as mapping:
        assert mapping.acquire().hits == 0, "when all sleep, nothing is on the device"
    os.kill(daemon.server(), signal.SIGKILL)
    for one in (tensors, others):
        one.wake()
        one.wake()
        assert {name: one[name].tobytes() for name in expected} == expected


def test_a_mapping_that_sleeps_is_used_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a" * 100_000)
    with bifolio.map(path, device="host:0", writable=True) as mapping:
        mapping.acquire(0, 5000)
        mapping.acquire(70_000, 10)
        view = memoryview(mapping.acquired(0, 10).__enter__())
        view[0] = ord("b")
        mapping.sleep()
        assert mapping.sleeps
        for use in (mapping.acquire, lambda: mapping.release(0, 5000), lambda: mapping.acquired(0, 10).__enter__()):
            with pytest.raises(ValueError, match="sleeps"):
                use()
        mapping.wake()
        assert not mapping.sleeps
        assert bytes(view) == b"b" + b"a" * 9
        mapping.release(70_000, 10)
        mapping.sync()
    assert path.read_bytes()[:2] == b"ba"


def test_tensors_outlive_their_server(daemon: Daemon, tmp_path: Path) -> None:
    path, expected = checkpoint(tmp_path)
    tensors = load_file(path, device="host:0", shared=True)
    for _ in range(3):
        os.kill(daemon.server(), signal.SIGKILL)
        assert {name: tensors[name].tobytes() for name in expected} == expected
        again = load_file(path, device="host:0", shared=True)
        assert {name: again[name].tobytes() for name in expected} == expected
    daemon.process.kill()
    daemon.process.wait()
    assert {name: tensors[name].tobytes() for name in expected} == expected
    with pytest.raises(ConnectionError, match="daemon"):
        load_file(path, device="host:0", shared=True)
    assert load_file(path, device="host:0")["layer.1"].tobytes() == expected["layer.1"]


def test_a_daemon_that_was_started_anew_is_found(daemon: Daemon, tmp_path: Path) -> None:
    path, expected = checkpoint(tmp_path)
    old = load_file(path, device="host:0", shared=True)
    assert daemon.end() == 0
    other = Daemon(tmp_path / "run")
    try:
        new = load_file(path, device="host:0", shared=True)
        assert all(old[name].tobytes() == new[name].tobytes() == expected[name] for name in expected)
    finally:
        assert other.end() == 0


def test_what_one_process_releases_another_one_acquires(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(200_000))
    program = """
import sys, bifolio
with bifolio.map(sys.argv[1], writable=True, device="host:1", shared=True) as mapping:
    with mapping.acquired(65_536, 1000) as part:
        memoryview(part)[:3] = b"new"
"""
    with bifolio.map(path, device="host:0", shared=True) as mapping:
        mapping.acquire()
        before = memoryview(mapping).tobytes()
        assert before == bytes(200_000)
        done = run_program(program, path)
        assert done.returncode == 0, done.stderr
        mapping.release()
        mapping.acquire()
        expected = bytes(65_536) + b"new" + bytes(200_000 - 65_539)
        assert memoryview(mapping).tobytes() == expected
    with bifolio.map(path, writable=True, device="host:0", shared=True) as mapping:
        mapping.sync()
    assert path.read_bytes() == expected


def test_without_a_device_it_is_one_of_the_daemons(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = checkpoint(tmp_path)
    monkeypatch.setenv("BIFOLIO_DEVICE", "host:3")
    with bifolio.map(path, shared=True) as mapping:
        assert mapping.device == "host:0"
    monkeypatch.setenv("BIFOLIO_DEVICE", "host:1")
    with bifolio.map(path, shared=True) as mapping:
        assert mapping.device == "host:1"
    with pytest.raises(ValueError, match="host:3 is no device of the daemon's"):
        bifolio.map(path, device="host:3", shared=True)


def test_what_cannot_be_shared_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    path, _ = checkpoint(tmp_path)
    with pytest.raises(ValueError, match="encrypted is not shared"):
        load_file(path, key="secret", shared=True)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        bifolio.map(tmp_path / "nowhere", device="host:0", shared=True)
    with pytest.raises(ValueError, match="the file has 200"):
        (tmp_path / "short").write_bytes(bytes(200))
        bifolio.map(tmp_path / "short", 100, 101, device="host:0", shared=True)
    with bifolio.map(path, writable=True, device="host:0", shared=True) as mapping:
        with pytest.raises(OSError, match="as it is acquired"):
            mapping.read_into(bytearray(10))
        with pytest.raises(OSError, match="as it is acquired"):
            mapping.write_from(b"x")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--memory", "lots"], "'lots' is no size"),
        (["--device", "moon:1"], "moon"),
        (["--socket", "/dev/null/s"], "/dev/null"),
        (["--server"], "not by hand"),
    ],
)
def test_a_daemon_says_what_is_wrong(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bifolio.daemon", "--socket", str(tmp_path / "s"), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BIFOLIO_KEEPER")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
