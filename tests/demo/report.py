"""The demo's table: each mail's way, with times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from demo.letters import Letter


def print_letters(letters: Sequence[Letter]) -> None:
    """Print one line a mail: file, size, when it was accepted, when it arrived, how often."""
    rows: list[tuple[str, ...]] = [
        ("MAIL", "BYTES", "ACCEPTED", "ARRIVED", "AFTER", "TIMES", "SUBJECT")
    ]
    rows += [_row(letter) for letter in letters]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _row(letter: Letter) -> tuple[str, ...]:
    arrived = min(letter.arrivals, default=None)
    after = ""
    if arrived and letter.accepted_at:
        after = f"{(arrived - letter.accepted_at).total_seconds():.1f} s"
    return (
        letter.file.name,
        str(len(letter.content)),
        _clock(letter.accepted_at) or letter.reply[:40],
        _clock(arrived) + ("" if letter.intact else " CHANGED"),
        after,
        str(len(letter.arrivals)),
        letter.subject[:48],
    )


def _clock(moment: datetime | None) -> str:
    return moment.strftime("%H:%M:%S.%f")[:-3] if moment else ""
