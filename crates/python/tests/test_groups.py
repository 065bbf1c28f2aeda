"""Groups of ranks: processes that load one checkpoint, all of it, shares of it, or slices of its tensors."""

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import bifolio
import pytest

from conftest import Daemon, need_module

RANK = """
import json, os, sys
import bifolio

ranks = bifolio.group() if sys.argv[1] == "-" else bifolio.group(int(sys.argv[1]), int(sys.argv[2]))
whole = ranks.load_file(sys.argv[3])
share = ranks.load_file(sys.argv[3], part="share")
rows = ranks.load_file(sys.argv[3], part=lambda name, shape: None if name == "odd" else ranks.along(0)(name, shape))
said = {kind: {name: [list(array.shape), array.tobytes().hex()] for name, array in tensors.items()}
        for kind, tensors in (("whole", whole), ("share", share), ("rows", rows))}
print(json.dumps({"device": ranks.device, **said}))
"""


def checkpoint(folder: Path, size: int) -> tuple[Path, dict[str, object]]:
    numpy = need_module("numpy")
    save_file = need_module("safetensors.numpy").save_file
    draw = random.Random()
    tensors = {
        f"layer.{number}": numpy.frombuffer(draw.randbytes(size * side * 12), "float32").reshape(size * side, 3)
        for number, side in enumerate([5, 700, 1, 64, 300])
    }
    tensors["odd"] = numpy.frombuffer(draw.randbytes(7), "uint8")
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path, tensors


def check(said: list[dict], tensors: dict[str, object]) -> None:
    size = len(said)
    expected = {name: [list(array.shape), array.tobytes().hex()] for name, array in tensors.items()}
    shares: dict[str, list] = {}
    for rank, parts in enumerate(said):
        assert parts["whole"] == expected
        assert not shares.keys() & parts["share"].keys(), "a tensor is one rank's"
        shares.update(parts["share"])
        for name, array in tensors.items():
            if name != "odd":
                even = array.shape[0] // size
                part = array[rank * even : (rank + 1) * even]
                assert parts["rows"][name] == [list(part.shape), part.tobytes().hex()]
        assert "odd" not in parts["rows"]
    assert shares == expected


def run_ranks(path: Path, size: int, environment: dict[str, str] | None = None) -> list[dict]:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(size), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    said = []
    for rank in ranks:
        text, _ = rank.communicate(timeout=240)
        assert rank.returncode == 0
        said.append(json.loads(text))
    return said


def test_ranks_load_all_shares_and_slices(daemon: Daemon, tmp_path: Path) -> None:
    path, tensors = checkpoint(tmp_path, 3)
    said = run_ranks(path, 3)
    check(said, tensors)
    assert {parts["device"] for parts in said} == {"host:0"}


def test_ranks_form_a_group_where_no_daemon_runs(tmp_path: Path) -> None:
    path, tensors = checkpoint(tmp_path, 2)
    (tmp_path / "run").mkdir(mode=0o700)
    place = tmp_path / "run" / "cache.sock"
    environment = {**os.environ, "BIFOLIO_SOCKET": str(place), "BIFOLIO_DEVICE": "host"}
    try:
        check(run_ranks(path, 2, environment), tensors)
    finally:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.connect(str(place))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        # Whoever listens is the keeper, who ends by itself half a minute after the last rank.
        os.kill(struct.unpack("3i", credentials)[0], signal.SIGTERM)


def test_ranks_of_torchrun_and_what_makes_no_group(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    ranks = bifolio.group()
    assert (ranks.rank, ranks.size) == (1, 4)
    with pytest.raises(ValueError, match="ranks are 0 to 3"):
        bifolio.group(4, 4)
    with pytest.raises(ValueError, match="belong together"):
        bifolio.group(0)
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(ValueError, match="LOCAL_RANK"):
        bifolio.group()


def test_what_cannot_be_cut_or_named_is_an_error(daemon: Daemon, tmp_path: Path) -> None:
    path, _ = checkpoint(tmp_path, 2)
    ranks = bifolio.group(0, 2)
    with pytest.raises(bifolio.safetensors.SafetensorError, match="'odd' has 7 along 0, which 2 ranks cannot share"):
        ranks.load_file(path, part=ranks.along(0))
    with pytest.raises(ValueError, match="part is 'half'"):
        ranks.load_file(path, part="half")
    with pytest.raises(FileNotFoundError):
        ranks.load_file(tmp_path / "none.safetensors")


def test_a_daemon_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("BIFOLIO_SOCKET", str(tmp_path / "open" / "cache.sock"))
    with pytest.raises(PermissionError, match="others can put another socket there"):
        bifolio.group(0, 1)


RANKS = Path(__file__).resolve().parents[3] / "bench/compare/ranks.py"


def test_ranks_are_measured_and_what_they_loaded_is_compared(folder: Path, tmp_path: Path) -> None:
    need_module("numpy"), need_module("ml_dtypes")
    out = tmp_path / "ranks.json"
    options = ["--devices", "host:0,host:0", "--size", "5MB", "--states", "warm,again", "--repetitions", "warm=2"]
    options += ["--loaders", "bifolio.group,bifolio.group.share,bifolio.load_file"]
    command = [sys.executable, RANKS, "--folder", folder, "--json", out, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(out.read_text())
    tensors = data["tensor_bytes"]
    for row in data["rows"]:
        both = [load for load in row["loads"] if not load["alone"]]
        states = {"warm", "again"} if row["loader"] == "bifolio.group" else {"warm"}
        assert {load["state"] for load in both} == states and len(both) == 2 * len(states)
        copies = 1 if row["loader"].endswith("share") else 2
        assert {load["verified_bytes"] for load in both} == {copies * tensors}


def test_other_bytes_than_the_files_are_found_wherever_they_are(tmp_path: Path) -> None:
    numpy = need_module("numpy")
    path, tensors = checkpoint(tmp_path, 2)
    program = "import sys; sys.path.insert(0, sys.argv[1]); import whole; print(whole.verify({sys.argv[2]: __import__('numpy')"
    program += ".fromfile(sys.argv[3], 'uint8')}, sys.argv[4]))"
    array = tmp_path / "array"
    for at in (None, 0, -1):
        bytes_ = numpy.frombuffer(tensors["layer.1"].tobytes(), "uint8").copy()
        if at is not None:
            bytes_[at] ^= 1
        bytes_.tofile(array)
        command = [sys.executable, "-c", program, RANKS.parent / "beside", "layer.1", array, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if at is None:
            assert done.stdout == f"{len(bytes_)}\n", done.stderr
        else:
            assert done.returncode != 0 and "not those of the file" in done.stderr
