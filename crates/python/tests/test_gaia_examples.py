"""The examples of `examples/gaia`, on hosts and tiny: each checks its own numbers against an oracle."""

import json
import os
import random
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from conftest import need_module, run_program

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/gaia"

# Arguments, and how many lines each has: ways, sizes, states.
RUNS = {
    "streaming": (["--small", "2M", "--large", "6M", "--budget", "4M", "--window", "2M"], 2 * 3 * 4 + 3),
    "graph": (["--vertices", "500", "--edges", "40000", "--cpu"], 4 * 7 + 1),
    "stitching": (["--width", "1024", "--height", "129", "--stripe", "64", "--runs", "1,3"], 2 * 2),
    "false_sharing": (["--size", "260K", "--times", "1,3"], 2 * 2),
    "peer_read": (["--size", "4M", "--request", "256K"], 2 * 5 * 2 + 2),
}


def run(name: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLES / f"{name}.py", "--folder", folder, *words]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BIFOLIO_CACHE")}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_and_its_numbers_are_right(name: str, folder: Path, tmp_path: Path) -> None:
    need_module("numpy")
    words, rows = RUNS[name]
    seed = random.SystemRandom().randrange(1 << 31)
    print("seed", seed)
    done = run(name, [*words, "--repetitions", "1", "--seed", str(seed), "--out", str(tmp_path), "--tag", "test"], folder)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("gaia-*")), "it leaves its files behind"
    (written,) = tmp_path.glob("*.json")
    found = json.loads(written.read_text())
    assert len(found["rows"]) == rows and found["figures"] and found["options"]["seed"] == str(seed)
    assert all(len(row) == len(found["columns"]) for row in found["rows"])
    markdown = written.with_suffix(".md").read_text()
    assert f"examples/gaia/{name}.py" in markdown and str(folder) not in markdown and "## All numbers" in markdown
    plots = sorted(tmp_path.glob("*.svg"))
    assert plots and all(plot.name in markdown for plot in plots)
    for plot in plots:
        numbers = [element for element in xml.etree.ElementTree.parse(plot).iter() if element.tag.endswith(("circle", "rect"))]
        assert len(numbers) > 2


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    need_module("numpy")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import graph

    return graph


WRONG = """
import sys
sys.path.insert(0, sys.argv[1])
import graph
honest = graph.ShortestPaths.result
def dishonest(paths):
    distances = honest(paths).copy()
    distances[paths.graph.source] += 1
    return distances
graph.ShortestPaths.result = dishonest
graph.main(["--vertices", "50", "--edges", "400", "--repetitions", "1", "--folder", sys.argv[2]])
"""


def test_wrong_distances_fail_the_example(folder: Path) -> None:
    need_module("numpy")
    done = run_program(WRONG, EXAMPLES, folder)
    assert done.returncode == 1 and "wrong result: acquire at 0 %" in done.stderr, done.stderr


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
