"""Tables in markdown, and the few numbers that they are made of."""

import datetime
import json
import statistics
from pathlib import Path


def median(values: list[float]) -> float:
    return statistics.median(values)


def rate(length: int, seconds: float) -> float:
    """GB/s, with GB of 1e9 bytes."""
    return length / seconds / 1e9


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many digits that mean something; a dash where there is none."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole) if abs(value) >= 1 else digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def title(text: str) -> str:
    return f"# {text}, {datetime.date.today().isoformat()}"


def absent(missing: dict[str, str], failed: dict[str, str]) -> list[str]:
    """What the tables do not show, and why."""
    lines = []
    if missing:
        lines += ["Not measured:", "", *(f"- `{name}`: {reason}" for name, reason in missing.items()), ""]
    if failed:
        lines += ["Failed:", "", *(f"- `{name}`: {reason}" for name, reason in failed.items()), ""]
    return lines


def write(text: str, data: object, out: Path | None, json_out: Path | None) -> None:
    """Prints the report, and keeps it where that was asked for."""
    print(text)
    if out:
        out.write_text(text + "\n")
    if json_out:
        json_out.write_text(json.dumps(data, indent=1) + "\n")
