"""Results of an example: a table that is printed as it grows, the ratios that were asked for, and files of both.

Within `with Results(...) as results:` an interrupt (SIGINT, SIGTERM) ends the measuring and loses nothing: what has
been measured is written, and says that it is partial.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import bifolio

import common
import plot

# What the ways of the rivals are called in a sentence.
RIVALS = {
    "managed": "managed memory",
    "private, merge": "private buffers and a merge",
    "router": "copies by the router",
    "read, copy": "private buffers and `read`",
}
# The exit status of a program that SIGINT has ended.
INTERRUPTED = 130


@dataclass
class Results:
    """What `run` of an example fills."""

    name: str
    title: str
    says: str
    columns: Sequence[str]
    options: argparse.Namespace
    rows: list[list[Any]] = field(default_factory=list)
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)
    is_partial: bool = False
    # Figures and plots of what was measured: called at the end, and when interrupted. What is missing is left out.
    summary: Callable[[], None] = lambda: None

    def __enter__(self) -> "Results":
        if threading.current_thread() is threading.main_thread():
            self.terminated = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.terminated)
        if kind is not None and not issubclass(kind, KeyboardInterrupt):
            return
        self.is_partial = kind is not None
        self.summary()
        self.write()
        if self.is_partial:
            print(f"interrupted: {len(self.rows)} rows were measured, the results are partial", file=sys.stderr, flush=True)
            raise SystemExit(INTERRUPTED) from None

    def row(self, *values: Any) -> None:
        if not self.rows:
            print(self._line(self.columns), flush=True)
        self.rows.append(list(values))
        print(self._line(values), flush=True)

    def figure(self, name: str, wanted: str, measured: str) -> None:
        """A number that was asked for."""
        self.figures.append((name, wanted, measured))
        print(f"{name}: {measured} (wanted: {wanted})", flush=True)

    def ratio(self, name: str, wanted: str, over: float | None, under: float | None, of: str) -> None:
        """Seconds beside the seconds of a rival; left out where one of them was not measured."""
        if over is not None and under:
            self.figure(name, wanted, f"{over / under:.2f} times {RIVALS.get(of, of)}")

    def lines(self, title: str, x_name: str, unit: str, labels: Sequence[str], series: Any, log: bool = False) -> None:
        """A plot of those series that have a number."""
        series = [(name, points) for name, points in series if any(point is not None for point in points)]
        if series:
            self.plots.append(plot.lines(title, x_name, unit, labels, series, log))

    def bars(self, title: str, unit: str, groups: Any, names: Sequence[str], log: bool = False) -> None:
        """A plot of those groups, and of those names, that have a number."""
        groups = [(label, values) for label, values in groups if any(value is not None for value in values)]
        there = [at for at in range(len(names)) if any(values[at] is not None for _, values in groups)]
        if there:
            groups = [(label, [values[at] for at in there]) for label, values in groups]
            self.plots.append(plot.bars(title, unit, groups, [names[at] for at in there], log))

    def _line(self, values: Sequence[Any]) -> str:
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        return "  ".join(
            cell.ljust(22) if at == 0 else cell.rjust(max(len(column), 10))
            for at, (cell, column) in enumerate(zip(cells, self.columns, strict=True))
        ).rstrip()

    def write(self) -> None:
        """Markdown, JSON and plots, with the date, where a folder was asked for."""
        out = self.options.out
        if out is None:
            return
        out.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        stem = f"{today}-gaia-{self.name}" + (f"-{self.options.tag}" if self.options.tag else "")
        with_options = {name: _plain(value) for name, value in vars(self.options).items() if name not in ("out", "folder")}
        document = {
            "title": self.title,
            "date": today,
            "partial": self.is_partial,
            "machine": machine(self.options),
            "options": with_options,
            "columns": list(self.columns),
            "rows": self.rows,
            "figures": [dict(zip(("figure", "wanted", "measured"), figure, strict=True)) for figure in self.figures],
            "cache": bifolio.cache_stats(),
        }
        (out / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n")
        for number, svg in enumerate(self.plots):
            (out / f"{stem}{'' if number == 0 else f'-{number + 1}'}.svg").write_text(svg)
        (out / f"{stem}.md").write_text(self._markdown(stem, today))

    def _markdown(self, stem: str, today: str) -> str:
        shown, skip = [], False
        for word in sys.argv[1:]:
            # Where the files lay says nothing to others.
            skip, hidden = word in ("--folder", "--out"), skip
            shown += [] if hidden or word.startswith(("--folder=", "--out=")) else [word] + (["..."] if skip else [])
        command = f"examples/gaia/{Path(sys.argv[0]).name} {shlex.join(shown)}".strip()
        parts = [f"# {self.title}, {today}"]
        parts += ["**Partial: it was interrupted.**"] if self.is_partial else []
        parts += [self.says, machine(self.options), f"```\n{command}\n```"]
        for number in range(len(self.plots)):
            parts.append(f"![{self.title}]({stem}{'' if number == 0 else f'-{number + 1}'}.svg)")
        if self.figures:
            lines = [f"| {name} | {wanted} | {measured} |" for name, wanted, measured in self.figures]
            parts.append("\n".join(["## Figures asked for\n", "| figure | wanted | measured |", "|---|---|---|", *lines]))
        table = "\n".join([self._line(self.columns), *map(self._line, self.rows)])
        parts.append(f"## All numbers\n\n```\n{table}\n```")
        return "\n\n".join(parts) + "\n"


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _plain(value: Any) -> str:
    """An option as it is written on a command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def machine(options: argparse.Namespace) -> str:
    """A sentence about where it was measured."""
    names = [getattr(options, name) for name in ("device", "other") if getattr(options, name, None)]
    devices = " and ".join(
        "a CPU process" if name == common.PROCESS else f"{name} ({common.Device(name).title})" for name in names)
    driver = ""
    if any(name.startswith("cuda:") for name in names):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.split()
            driver = f", driver {found[0]}" if found else ""
    processors = len(os.sched_getaffinity(0))
    return (
        f"Bifolio {bifolio.__version__} on {devices}{driver}; {processors} processors, Linux {platform.release()}, "
        f"Python {platform.python_version()}. Medians of {options.repetitions} runs after one that is not timed; "
        f"seed {options.seed}."
    )
