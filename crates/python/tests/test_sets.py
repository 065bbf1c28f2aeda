"""Published sets: what one process has made is what another one attaches to, or nothing."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bifolio
import pytest

from conftest import Daemon, need_module, run_program

KEY = {"model": "m", "revision": 3, "dtype": "int8", "scale": 0.5, "fused": True, "parent": None}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIFOLIO_SETS", str(tmp_path / "sets"))
    return tmp_path / "sets"


def arrays() -> dict[str, Any]:
    numpy = need_module("numpy")
    random = numpy.random.default_rng()
    made = {
        "weights": random.standard_normal((33, 70), "float32"),
        "transposed": random.integers(-9, 9, (5, 40), "int8").T,
        "half": random.standard_normal(7).astype("float16"),
        "one": numpy.array(7, "int64"),
        "none": numpy.empty((0, 3), "float64"),
        "flags": random.integers(0, 2, 11).astype(bool),
    }
    try:
        import ml_dtypes
    except ImportError:
        return made
    return {**made, "brain": random.standard_normal((3, 5)).astype(ml_dtypes.bfloat16)}


def same(found: dict[str, Any], made: dict[str, Any]) -> bool:
    return found.keys() == made.keys() and all(
        (found[name].shape, found[name].dtype, found[name].tobytes()) == (array.shape, array.dtype, array.tobytes())
        for name, array in made.items()
    )


def test_a_set_is_what_was_published(place: Path) -> None:
    made = arrays()
    path = bifolio.publish("engine", KEY, made)
    assert same(bifolio.attach("engine", dict(reversed(KEY.items())), "host", shared=False), made)
    # The format's own library reads it as well.
    loaded = need_module("safetensors.numpy").load_file(path)
    assert all(loaded[name].tobytes() == made[name].tobytes() for name in made)
    assert os.listdir(place) == [os.path.basename(path)]
    assert place.stat().st_mode & 0o777 == 0o700
    assert bifolio.publish("empty", {}, {}) != path
    assert bifolio.attach("empty", {}, "host", shared=False) == {}


def test_another_key_finds_nothing() -> None:
    bifolio.publish("engine", KEY, arrays())
    for name, key in [("other", KEY), ("engine", {**KEY, "revision": 4}), ("engine", {}), ("engine", {**KEY, "x": 1})]:
        with pytest.raises(FileNotFoundError, match=f"no set '{name}' is published") as found:
            bifolio.attach(name, key, "host", shared=False)
        assert found.value.errno == errno.ENOENT
    # What is said of the key counts, and not the name of the file.
    path = Path(bifolio.publish("engine", KEY, arrays()))
    other = Path(bifolio.publish("engine", {**KEY, "revision": 4}, arrays()))
    other.write_bytes(path.read_bytes())
    with pytest.raises(bifolio.safetensors.SafetensorError, match="publish it anew"):
        bifolio.attach("engine", {**KEY, "revision": 4}, "host", shared=False)
    assert bifolio.withdraw("engine", KEY)
    assert not bifolio.withdraw("engine", KEY)


def test_what_cannot_be_published_is_refused_and_leaves_nothing(place: Path) -> None:
    numpy = need_module("numpy")
    with pytest.raises(TypeError, match="complex128"):
        bifolio.publish("engine", KEY, {"odd": numpy.zeros(2, "complex128")})
    with pytest.raises(TypeError, match="the key's 'shape'"):
        bifolio.publish("engine", {"shape": [1]}, {})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="name"):
        bifolio.publish("", KEY, {})
    assert not [name for name in os.listdir(place) if name.endswith(".new")]


ATTACH = """
import hashlib, sys, bifolio
tensors = bifolio.attach("engine", {"rank": 1}, "host")
print(*sorted(f"{name}:{hashlib.sha256(array.tobytes()).hexdigest()}" for name, array in tensors.items()))
"""


def test_a_set_outlives_its_maker_and_the_server(daemon: Daemon) -> None:
    import hashlib

    program = """
import numpy, bifolio
bifolio.publish("engine", {"rank": 1}, {"a": numpy.arange(100_000), "b": numpy.arange(5) * 2.5})
"""
    numpy = need_module("numpy")
    made = {"a": numpy.arange(100_000), "b": numpy.arange(5) * 2.5}
    expected = sorted(f"{name}:{hashlib.sha256(array.tobytes()).hexdigest()}" for name, array in made.items())
    done = run_program(program)
    assert done.returncode == 0, done.stderr
    mine = bifolio.attach("engine", {"rank": 1}, "host")
    for _ in range(2):
        done = run_program(ATTACH)
        assert done.stdout.split() == expected, done.stderr
        os.kill(daemon.server(), signal.SIGKILL)
    # Who has attached keeps what it has when another one is published, or none.
    bifolio.publish("engine", {"rank": 1}, {"c": numpy.ones(3)})
    assert bifolio.attach("engine", {"rank": 1}, "host").keys() == {"c"}
    assert bifolio.withdraw("engine", {"rank": 1})
    assert same(mine, made)


def test_a_maker_that_dies_leaves_what_was_there(place: Path) -> None:
    made = arrays()
    bifolio.publish("engine", KEY, made)
    program = """
import sys, numpy, bifolio
print("begun", flush=True)
while True:
    bifolio.publish("engine", {"rank": 0}, {"large": numpy.ones(1 << 20)})
"""
    for _ in range(4):
        maker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert maker.stdout is not None and maker.stdout.readline() == "begun\n"
        time.sleep(0.05 * int.from_bytes(os.urandom(1), "little") / 255)
        maker.kill()
        maker.wait()
        maker.stdout.close()
        try:
            found = bifolio.attach("engine", {"rank": 0}, "host", shared=False)
        except FileNotFoundError:
            continue
        assert found["large"].min() == found["large"].max() == 1
    bifolio.publish("engine", KEY, made)
    assert all(not name.endswith(".new") or (place / name).stat().st_size == 0 for name in os.listdir(place))
    assert same(bifolio.attach("engine", KEY, "host", shared=False), made)
