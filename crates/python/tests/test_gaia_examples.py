"""The examples of `examples/gaia`, on hosts and tiny: each checks its own numbers against an oracle."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from conftest import Daemon, need_module, run_program

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/gaia"

# Arguments, and how many lines each has: ways, sizes, states.
RUNS = {
    "streaming": (["--small", "2M", "--large", "6M", "--budget", "4M", "--windows", "1M,2M"], 23 + 18),
    "graph": (["--vertices", "500", "--edges", "40000", "--check-edges", "4000", "--cpu"], 4 * 7 + 1),
    "stitching": (["--width", "1024", "--height", "129", "--stripe", "64", "--runs", "1,3"], 2 * 3),
    "stitching hosts": (["--width", "512", "--height", "65", "--stripe", "64", "--runs", "2", "--other", "host:1"], 3),
    "false_sharing": (["--sizes", "64K,260K", "--times", "1,3"], 2 * 2 * 3),
    "false_sharing hosts": (["--sizes", "68K", "--times", "2", "--other", "host:1"], 3),
    "false_sharing write": (["--sizes", "68K", "--times", "2", "--store", "write"], 3),
    "kmeans": (["--points", "9001", "--dimensions", "2", "--groups", "5", "--rounds", "2", "--share", "3"], 3 + 4),
    "peer_read": (["--size", "4M", "--requests", "64K,256K"], 2 * 2 * 2 * 5 + 4 * 2 * 2 + 2 * 4 * 2),
    "collage": (["--size", "16M", "--budget", "8M", "--blocks", "40"], 2 * 5),
}
TINY = {name: words for name, (words, _) in RUNS.items() if " " not in name}


def run(name: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    words = command(name, words, folder)
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment(), check=False)


def command(name: str, words: list[str], folder: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py"), "--folder", str(folder), *words]


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("BIFOLIO_CACHE")}


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_and_its_numbers_are_right(name: str, folder: Path, tmp_path: Path) -> None:
    need_module("numpy")
    words, rows = RUNS[name]
    name = name.partition(" ")[0]
    seed = random.SystemRandom().randrange(1 << 31)
    print("seed", seed)
    done = run(name, [*words, "--repetitions", "1", "--seed", str(seed), "--out", str(tmp_path), "--tag", "test"], folder)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("gaia-*")), "it leaves its files behind"
    (written,) = tmp_path.glob("*.json")
    found = json.loads(written.read_text())
    assert len(found["rows"]) == rows and found["figures"] and found["options"]["seed"] == str(seed)
    assert all(len(row) == len(found["columns"]) for row in found["rows"]) and not found["partial"]
    markdown = written.with_suffix(".md").read_text()
    assert f"examples/gaia/{name}.py" in markdown and str(folder) not in markdown and "## All numbers" in markdown
    assert "artial" not in markdown
    plots = sorted(tmp_path.glob("*.svg"))
    assert plots and all(plot.name in markdown for plot in plots)
    for plot in plots:
        numbers = [element for element in xml.etree.ElementTree.parse(plot).iter() if element.tag.endswith(("circle", "rect"))]
        assert len(numbers) > 2


def test_the_cpu_process_works_on_a_mount(daemon: Daemon, folder: Path, tmp_path: Path) -> None:
    need_module("numpy")
    bifolio = os.environ.get("BIFOLIO_COMMAND") or shutil.which("bifolio")
    if bifolio is None or os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a mount takes root, FUSE, and the command bifolio (BIFOLIO_COMMAND)")
    assert daemon.process.poll() is None
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run([bifolio, "mount", str(folder), str(mount)], check=True, timeout=60)
    try:
        for store in ["mmap", "write"]:
            out = tmp_path / store
            words = ["--sizes", "64K,260K", "--times", "1,3", "--mount", str(mount), "--store", store]
            done = run("false_sharing", [*words, "--repetitions", "1", "--out", str(out)], folder)
            assert done.returncode == 0, done.stderr
            (written,) = out.glob("*.json")
            assert sum(row[0] == "bifolio mount" for row in json.loads(written.read_text())["rows"]) == 4
    finally:
        subprocess.run([bifolio, "unmount", str(mount)], check=True, timeout=60)


# Options that make no sense, and what is said of them.
REFUSED = {
    "false_sharing --sizes 5000": "a size is a number of pages of 4 KiB, and not 5000",
    "false_sharing --times 1,502": "after 502 turns the bytes are what they were",
    "false_sharing --times 0": "'0' is not a number from 1 on",
    "false_sharing --other host:0": "two processors are needed, and not twice host:0",
    "false_sharing --other host:1 --mount .": "a mount is for a CPU process: choose --other process",
    "false_sharing --device gpu": "'gpu' is not a device such as host:0 or cuda:1",
    "false_sharing --device process": "'process' is not a device",
    "stitching --width 100": "the width is a multiple of two stripes, 512, and not 100",
    "stitching --height x": "'x' is not a number from 1 on",
    "kmeans --groups 400": "groups x (dimensions + 1) is at most 1024, and not 1600",
    "kmeans --points 9": "there are 9 points for 16 groups",
    "kmeans --share 16": "the CPU's share is 1 to 15 of 16 stripes, and not 16",
    "peer_read --size 3M": "the size is a multiple of 2M and of the largest request, 1M, and not 3M",
    "peer_read --requests 12K,64K": "requests are parts of the largest, 64K",
    "streaming --windows 1000": "files and windows are multiples of 128K",
    "streaming --budget 1M": "the budget lies between the sizes of the two files",
    "streaming --windows 128M": "the budget (64M) has room for the widest window",
    "streaming --small 1.5M": "'1.5M' is not a number of bytes such as 4096, 64K or 2G",
    "collage --budget 64M": "the data set (32M) is larger than the budget (64M)",
    "collage --size 3M": "the data set has 8 buckets of 1M at least, and whole ones: not 3M",
    "graph --vertices 1": "a graph has two vertices at least",
    "graph --repetitions 0": "'0' is not a number from 1 on",
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_that_make_no_sense_are_refused_with_a_sentence(words: str, tmp_path: Path) -> None:
    need_module("numpy")
    name, *options = words.split()
    done = run(name, options, tmp_path / "new")
    assert done.returncode == 2 and REFUSED[words] in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not done.stdout and not (tmp_path / "new").exists(), "nothing was begun"


WITHOUT_CUPY = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["cupy"] = None
import stitching
stitching.main(["--device", "cuda:0", "--folder", sys.argv[2]])
"""


def test_a_gpu_without_cupy_is_refused_with_a_sentence(tmp_path: Path) -> None:
    need_module("numpy")
    done = run_program(WITHOUT_CUPY, EXAMPLES, tmp_path / "new")
    assert done.returncode == 2 and "cuda:0 needs CuPy, which computes on GPUs" in done.stderr, done.stderr
    assert not (tmp_path / "new").exists()


# What makes the results of an example wrong, and the sentence that says so.
SPOILED = {
    "false_sharing": ("Side.flip = lambda side, words, after, times: None", "bifolio.map: host:0 has "),
    "stitching": ("Side.sharpen = lambda side, source, target, times: None", "bifolio.map, 1 runs: "),
    "peer_read": ("honest = Reads.by_cache\n"
                  "Reads.by_cache = lambda reads, offsets, request: honest(reads, offsets[:-1], request)",
                  "released, requests of 64K: "),
    "kmeans": ("Way.by_device = lambda way, structure: None", "bifolio.map: the centroids"),
    "collage": ("honest = Search.look\nSearch.look = lambda search, numbers, buckets: honest(search, numbers, buckets[::-1])",
                "bifolio.map, cold: "),
    "streaming": ("AddUp.feed = lambda kernel, floats: None", "bifolio.map, read only: 0, not "),
    "graph": ("ShortestPaths._on_host = lambda paths, *parts: None", "acquire at 0 %: "),
}
SPOIL = """
import sys
sys.path.insert(0, sys.argv[1])
import {name}
from {name} import *
{spoil}
main([*sys.argv[3:], "--repetitions", "1", "--folder", sys.argv[2]])
"""


@pytest.mark.parametrize("name", SPOILED)
def test_wrong_results_fail_an_example_before_anything_is_timed(name: str, folder: Path) -> None:
    need_module("numpy")
    spoil, sentence = SPOILED[name]
    done = run_program(SPOIL.format(name=name, spoil=spoil), EXAMPLES, folder, *TINY[name])
    assert done.returncode == 1 and done.stderr.startswith("wrong result: ") and sentence in done.stderr, done.stderr
    assert not done.stdout and not list(folder.glob("gaia-*"))


INTERRUPT = """
import sys
sys.path.insert(0, sys.argv[1])
import common
left, honest = int(sys.argv[4]), common.measure
def measure(*arguments, **more):
    global left
    left -= 1
    if left < 0:
        raise KeyboardInterrupt
    return honest(*arguments, **more)
common.measure = measure
import {name}
{name}.main([*sys.argv[5:], "--repetitions", "1", "--folder", sys.argv[2], "--out", sys.argv[3]])
"""


DEMAND = """#!/bin/sh
while [ "$1" != --json ]; do echo "$1"; shift; done >>{said}
{end}
echo '{{"demand": {{"seconds": 0.25}}}}' >"$2"
"""


def test_a_collage_has_demand_mode_where_the_program_is_given(folder: Path, tmp_path: Path) -> None:
    need_module("numpy")
    program, said = tmp_path / "collage", tmp_path / "said"
    program.write_text(DEMAND.format(said=said, end=""))
    program.chmod(0o755)
    words = [*TINY["collage"], "--repetitions", "1", "--out", str(tmp_path), "--demand", str(program)]
    done = run("collage", words, folder)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("*.json")
    rows = [row for row in json.loads(written.read_text())["rows"] if row[0] == "demand mode"]
    assert [row[:3] for row in rows] == [["demand mode", "cold", 0.25], ["demand mode", "warm", 0.25]]
    assert said.read_text().split()[:5] == ["host:0", str(folder), "0.015625", "--budget", "0.0078125"]
    program.write_text(DEMAND.format(said=said, end="echo no such device >&2; exit 3"))
    done = run("collage", words, folder)
    assert done.returncode == 1 and "no such device" in done.stderr, done.stderr


@pytest.mark.parametrize("measured", [0, 2])
@pytest.mark.parametrize("name", TINY)
def test_an_interrupted_example_writes_what_it_has(name: str, measured: int, folder: Path, tmp_path: Path) -> None:
    need_module("numpy")
    done = run_program(INTERRUPT.format(name=name), EXAMPLES, folder, tmp_path, measured, *TINY[name])
    sentence = f"interrupted: {measured} rows were measured, the results are partial"
    assert done.returncode == 130 and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(folder.glob("gaia-*"))
    (written,) = tmp_path.glob("*.json")
    found = json.loads(written.read_text())
    assert found["partial"] and len(found["rows"]) == measured
    assert "**Partial: it was interrupted.**" in written.with_suffix(".md").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_interrupt_an_example(number: signal.Signals, folder: Path, tmp_path: Path) -> None:
    need_module("numpy")
    # So many counts that it is in the midst of them.
    words = ["--sizes", "64K", "--times", ",".join(["1"] * 20_000), "--repetitions", "1", "--out", str(tmp_path)]
    with subprocess.Popen(command("false_sharing", words, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment()) as running:
        try:
            assert running.stdout and running.stdout.readline().startswith("way") and running.stdout.readline()
            running.send_signal(number)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 130 and "the results are partial" in said, said
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text())["partial"] and not list(folder.glob("gaia-*"))


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    need_module("numpy")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import graph

    return graph


@pytest.fixture
def cpu(graph: Any) -> Any:
    import cpu

    return cpu


def test_of_two_turns_every_byte_differs(cpu: Any) -> None:
    bytes_of = {turn: cpu.mark(turn).to_bytes(4, "little") for turn in range(600)}
    for after in range(0, 600, 7):
        for turn in range(after):
            differ = [one != other for one, other in zip(bytes_of[after], bytes_of[turn], strict=True)]
            assert all(differ) if (after - turn) % 251 else not any(differ), (after, turn)


def test_a_flip_changes_every_byte_of_its_half_and_no_other(cpu: Any) -> None:
    numpy = need_module("numpy")
    before = numpy.random.default_rng(3).integers(0, 256, 5 * 4096, "uint8")
    for half in range(2):
        words = before.copy().view("uint32")
        cpu.flip(words, half, 4, 256)
        changed = (words.view("uint8") != before).reshape(-1, 2, 2048)
        assert changed[:, half].all() and not changed[:, 1 - half].any()


def test_points_are_dealt_out_once_and_assigned_to_the_nearest_centroid(cpu: Any) -> None:
    numpy = need_module("numpy")
    random = numpy.random.default_rng(4)
    points, centroids = random.integers(0, 100, (20_000, 3), "int32"), random.integers(0, 100, (7, 3)).astype("int64")
    assignments, sums = numpy.full(len(points), 99, "uint32"), 0
    sides = [cpu.dealt(len(points), 5, side) for side in range(2)]
    assert sorted(numpy.concatenate(sides).tolist()) == list(range(len(points))) and 0.25 < len(sides[1]) / len(points) < 0.4
    for mine in sides:
        sums = sums + cpu.assign(points, mine, centroids, assignments)
    for number in random.integers(0, len(points), 200):
        distances = [sum((int(a) - int(b)) ** 2 for a, b in zip(points[number], centroid, strict=True)) for centroid in centroids]
        assert assignments[number] == distances.index(min(distances))
    for group in range(7):
        mine = points[assignments == group]
        assert sums[group].tolist() == [*mine.sum(axis=0), len(mine)]
        assert cpu.moved(sums, centroids)[group].tolist() == (mine.sum(axis=0) // len(mine)).tolist()
    assert (cpu.moved(sums * 0, centroids) == centroids).all(), "a centroid without a point stays"


def test_a_cpu_process_has_not_the_package(cpu: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    with cpu.Process() as process:
        process.do("open", name="a", path=str(file), store="mmap")
        mapped = Path(f"/proc/{process.process.pid}/maps").read_text()
        assert str(file) in mapped and "_multiarray" in mapped and "bifolio/_native" not in mapped
        process.do("flip", name="a", half=1, after=0, times=1)
    assert not any(file.read_bytes()[:2048]) and all(file.read_bytes()[2048:])


def test_a_cpu_process_says_what_went_wrong(cpu: Any, tmp_path: Path) -> None:
    with cpu.Process() as process:
        with pytest.raises(RuntimeError, match="the CPU process failed: FileNotFoundError"):
            process.do("open", name="a", path=str(tmp_path / "missing"), store="mmap")
        process.process.kill()
        process.process.wait()
        with pytest.raises(RuntimeError, match="the CPU process has ended"):
            process.do("look", name="a")


def test_updates_touch_the_share_of_pages_that_was_asked_for(graph: Any) -> None:
    length = 40 * graph.PAGE + 8
    for share, pages in ((0, 0), (1, 0), (10, 4), (50, 20), (100, 41)):
        made = list(graph.updates(4096, length, share, 5))
        assert len(made) == pages and made == list(graph.updates(4096, length, share, 5))
        assert all(4096 <= at and at + len(content) <= 4096 + length for at, content in made)
    assert made[-1][0] == 4096 + 40 * graph.PAGE and len(made[-1][1]) == 8


def test_plots_have_their_points_where_their_values_are(graph: Any) -> None:
    import plot

    root = xml.etree.ElementTree.fromstring(plot.lines("a < b", "x", "y", ["1", "2"], [("one", [0, 10]), ("two", [None, 5])]))
    points = [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in root.iter() if e.tag.endswith("circle")]
    (second,), first = points[:1], points[1:]
    assert first[0][0] < first[1][0] == second[0]
    assert second[1] == pytest.approx((first[0][1] + first[1][1]) / 2, abs=0.11)
    assert any(element.text == "a < b" for element in root.iter())
    root = xml.etree.ElementTree.fromstring(plot.bars("t", "y", [("g", [4.0, 2.0, None])], ["p", "q", "r"]))
    heights = [float(e.get("height", "0")) for e in root.iter() if e.tag.endswith("rect") and e.get("height") not in ("11", "400")]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.11) and len(heights) == 2
