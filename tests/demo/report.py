"""What the demos print: their steps, and each mail's way, with times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from demo.sample_mails import DemoMail


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step's title and, unless it fails, how long it took."""
    begin = time.monotonic()
    print(f"▸ {title} …", flush=True)
    yield
    print(f"  done in {time.monotonic() - begin:.1f} s", flush=True)


def print_mails(mails: Sequence[DemoMail]) -> None:
    """Print one line a mail: file, size, when it was accepted, when it arrived, how often."""
    rows: list[tuple[str, ...]] = [
        ("MAIL", "BYTES", "ACCEPTED", "ARRIVED", "AFTER", "TIMES", "SUBJECT")
    ]
    rows += [_row(mail) for mail in mails]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _row(mail: DemoMail) -> tuple[str, ...]:
    arrived = min(mail.received_at, default=None)
    after = ""
    if arrived and mail.accepted_at:
        after = f"{(arrived - mail.accepted_at).total_seconds():.1f} s"
    return (
        mail.file.name,
        str(len(mail.content)),
        _clock(mail.accepted_at) or mail.reply[:40],
        _clock(arrived) + ("" if mail.intact else " CHANGED"),
        after,
        str(len(mail.received_at)),
        mail.subject[:48],
    )


def _clock(moment: datetime | None) -> str:
    return moment.strftime("%H:%M:%S.%f")[:-3] if moment else ""
