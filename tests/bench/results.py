"""What a room measured, as a table for people and JSON for machines."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "bench"


@dataclass(frozen=True, slots=True)
class Result:
    """One measure in one case. `ratio` is ours to theirs, larger is better."""

    measure: str
    case: str
    unit: str
    ours: float
    peer: str
    theirs: float
    ratio: float


def compared(
    measure: str,
    case: str,
    unit: str,
    ours: Sequence[float],
    peer: str,
    theirs: Sequence[float],
    *,
    less_is_better: bool = False,
) -> Result:
    """Return the medians of rounds that ran alternately."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    ratio = _ratio(other, mine) if less_is_better else _ratio(mine, other)
    return Result(measure, case, unit, round(mine, 3), peer, round(other, 3), round(ratio, 3))


def _ratio(above: float, below: float) -> float:
    """Nothing is as good as nothing; against nothing, a count is its own ratio."""
    if below:
        return above / below
    return max(above, 1.0)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def show(results: Iterable[Result]) -> str:
    """Return a table."""
    rows = [("measure", "case", "ours", "theirs", "unit", "ratio", "peer")]
    rows += [
        (r.measure, r.case, f"{r.ours:g}", f"{r.theirs:g}", r.unit, f"{r.ratio:.2f}", r.peer)
        for r in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def progress(results: Iterable[Result]) -> None:
    """Show what is known already, beside what the room prints at its end."""
    print(show(results), file=sys.stderr, flush=True)


def write(room: str, results: Sequence[Result], folder: Path = FOLDER) -> Path:
    """Write `<folder>/<room>.json`; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{room}.json"
    path.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n")
    return path
