"""Plots of lines and bars as SVG, without a dependency."""

import html
import math
from collections.abc import Sequence

FONT = "system-ui, sans-serif"
INK, FAINT = "#333A44", "#E3E7EC"
# Apart for the colour-blind; the first stands out.
COLOURS = ("#D63C4A", "#3D6FA5", "#F2B15C", "#9A8FBF", "#5B9E8F", "#8A8F98", "#8A5A33")
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 720, 400, 76, 20, 62


def _text(x: float, y: float, words: str, anchor: str = "middle", size: float = 11, more: str = "") -> str:
    escaped = html.escape(words)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}" {more}>{escaped}</text>'


def _ticks(top: float) -> list[float]:
    """About five round numbers from 0 on, the last of them not below `top`."""
    rough = (top or 1) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)
    return [step * index for index in range(math.ceil(top / step - 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


class _Frame:
    """Title, legend and the vertical axis."""

    def __init__(
        self, title: str, unit: str, names: Sequence[str], values: Sequence[float], log: bool, width: int = WIDTH
    ) -> None:
        self.right, self.width = width - RIGHT, width
        self.log = log and all(value > 0 for value in values)
        self.ticks = _decades(min(values), max(values)) if self.log else _ticks(max(values))
        # A legend that does not fit beside itself goes on in the next line.
        self.parts, x, line = [], LEFT, 46
        for number, name in enumerate(names):
            wide = 26 + 6.6 * len(name)
            if x + wide > self.right and x > LEFT:
                x, line = LEFT, line + 18
            colour = COLOURS[number % len(COLOURS)]
            self.parts.append(f'<rect x="{x:.0f}" y="{line - 9}" width="11" height="11" rx="2" fill="{colour}"/>')
            self.parts.append(_text(x + 16, line, name, "start"))
            x += wide
        self.top = line + 20
        self.parts.append(_text(LEFT, 24, title, "start", 15, 'font-weight="600"'))
        for tick in self.ticks:
            y = self.y(tick)
            self.parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{self.right}" y2="{y:.1f}" stroke="{FAINT}"/>')
            self.parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", "end"))
        middle = (self.top + HEIGHT - BOTTOM) / 2
        self.parts.append(_text(18, middle, unit, more=f'transform="rotate(-90 18 {middle:.0f})"'))

    def y(self, value: float) -> float:
        place = math.log10 if self.log else float
        low, high = place(self.ticks[0]), place(self.ticks[-1])
        return HEIGHT - BOTTOM - (place(value) - low) / (high - low) * (HEIGHT - BOTTOM - self.top)

    def done(self, x_name: str) -> str:
        self.parts.append(_text((LEFT + self.right) / 2, HEIGHT - 10, x_name, size=12))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {HEIGHT}" role="img" '
        head += f'font-family="{FONT}">'
        return "\n".join([head, f'<rect width="{self.width}" height="{HEIGHT}" fill="#fff"/>', *self.parts, "</svg>\n"])


def lines(
    title: str,
    x_name: str,
    unit: str,
    labels: Sequence[str],
    series: Sequence[tuple[str, Sequence[float | None]]],
    log: bool = False,
) -> str:
    """Lines over labels that stand at equal distances; None leaves a gap."""
    values = [value for _, points in series for value in points if value is not None]
    frame = _Frame(title, unit, [name for name, _ in series], values, log)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    places = [LEFT + step * (index + 0.5) for index in range(len(labels))]
    for x, label in zip(places, labels, strict=True):
        frame.parts.append(_text(x, HEIGHT - BOTTOM + 18, label))
    # The first is drawn last, on top.
    for number, (_, points) in reversed(list(enumerate(series))):
        colour = COLOURS[number % len(COLOURS)]
        there = [(x, frame.y(value)) for x, value in zip(places, points, strict=True) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in there)
        wide = 3 if number == 0 else 2
        frame.parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{wide}" points="{path}"/>')
        frame.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in there]
    return frame.done(x_name)


def bars(
    title: str, unit: str, groups: Sequence[tuple[str, Sequence[float | None]]], names: Sequence[str], log: bool = False
) -> str:
    """Bars beside each other, by group, with their values above them; None leaves a gap."""
    values = [value for _, group in groups for value in group if value is not None]
    # Room for the values above the bars, and for the groups' names below them.
    needed = max(38 * (len(names) + 1), *(7 * len(label) + 12 for label, _ in groups))
    frame = _Frame(title, unit, names, values, log, max(WIDTH, LEFT + RIGHT + needed * len(groups)))
    room = (frame.right - LEFT) / len(groups)
    wide = min(room / (len(names) + 1), 60)
    for index, (label, group) in enumerate(groups):
        middle = LEFT + room * (index + 0.5)
        frame.parts.append(_text(middle, HEIGHT - BOTTOM + 18, label))
        for number, value in enumerate(group):
            if value is None:
                continue
            x, y = middle + wide * (number - len(names) / 2), frame.y(value)
            colour = COLOURS[number % len(COLOURS)]
            frame.parts.append(
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" fill="{colour}"/>'
            )
            frame.parts.append(_text(x + wide / 2, y - 4, f"{value:.3g}", size=9.5))
    return frame.done("")
