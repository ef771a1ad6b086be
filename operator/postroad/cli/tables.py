"""Tables of commands: columns that line up below a header, in colour and in pages where a terminal
is, and JSON lines in their place."""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Self

import click

from postroad.domain.values.instants import format_duration
from postroad.domain.values.text import escaped, json_line

TOGETHER = 500
"""Rows that are measured together, where no terminal is; later ones keep their widths."""

STYLES = {
    **dict.fromkeys(("dead", "failed", "suspended", "False"), "red"),
    **dict.fromkeys(("held", "deferred", "delayed", "backoff", "Unknown"), "yellow"),
    **dict.fromkeys(("delivered", "active", "True"), "green"),
}
"""Colours of cells that have one of these words alone."""

MIN_INTERVAL = timedelta(seconds=1)
"""Of a table that is renewed."""

CLEAR = "\033[H\033[2J"

Cells = Sequence[str]


def is_terminal() -> bool:
    """Return whether a person is at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def lines_of(head: Cells, rows: Sequence[Cells], widths: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table, without a header where `widths` has those of a former one."""
    shown = rows if widths else [head, *rows]
    measured = widths or widths_of(head, rows)
    numbers = [all(each[at].isdigit() for each in rows if each[at]) for at in range(len(head))]
    return [_line(row, measured, numbers, is_head=row is head) for row in shown]


def widths_of(head: Cells, rows: Sequence[Cells]) -> list[int]:
    """Return the widths of columns; 0 for one that has no cell, which is left out."""
    cells = zip(*rows, strict=True) if rows else ([each] for each in head)
    return [
        max(len(name), *map(len, column)) if any(column) else 0
        for name, column in zip(head, cells, strict=True)
    ]


def _line(row: Cells, widths: Sequence[int], numbers: Sequence[bool], *, is_head: bool) -> str:
    cells = [
        (text, text.rjust(width) if is_number else text.ljust(width))
        for text, width, is_number in zip(row, widths, numbers, strict=True)
        if width
    ]
    cells[-1] = (cells[-1][0], cells[-1][1].rstrip())
    return "  ".join(_styled(text, shown, is_head=is_head) for text, shown in cells).rstrip()


def _styled(text: str, shown: str, *, is_head: bool) -> str:
    if is_head:
        return click.style(shown, bold=True)
    return click.style(shown, fg=STYLES[text]) if text in STYLES else shown


class TextTable:
    """Prints rows, or their values as JSON lines. Within `with`: at a terminal, a list that is
    longer than it comes in a pager at the end."""

    def __init__(self, *head: str, as_json: bool) -> None:
        self._head, self._as_json = head, as_json
        self._rows: list[Cells] = []
        self._widths: list[int] = []

    def add(self, value: object, *cells: str) -> None:
        """Take a row."""
        if self._as_json:
            click.echo(json_line(value))
            return
        self._rows.append([escaped(each) for each in cells])
        if len(self._rows) == TOGETHER and not is_terminal():
            self.show()

    def show(self) -> None:
        """Print the rows that were taken and not printed yet."""
        if not self._rows:
            return
        lines = lines_of(self._head, self._rows, self._widths)
        self._widths = self._widths or widths_of(self._head, self._rows)
        self._rows = []
        if is_terminal() and len(lines) >= shutil.get_terminal_size().lines:
            click.echo_via_pager(f"{line}\n" for line in lines)
        else:
            click.echo("\n".join(lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.show()


class Rates:
    """Changes of numbers a second, each between the last two that differ."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def note(self, key: str, number: int) -> str:
        """Return the change since the number was another one; `-` while it stays."""
        now = time.monotonic()
        since, last = self._before.setdefault(key, (now, number))
        if number == last:
            return "-"
        self._before[key] = now, number
        return f"{(number - last) / max(now - since, 1):+.1f}"


def watch(
    head: Cells, rows: Callable[[], Sequence[Cells]], every: timedelta, *, once: bool
) -> None:
    """Print a table again and again, until it is interrupted; once where no terminal is. Raises:
    click.UsageError for too short an interval."""
    if every < MIN_INTERVAL:
        raise click.UsageError("--every is at least 1s")
    while True:
        found = rows()
        if not once and is_terminal():
            click.echo(CLEAR, nl=False, color=True)  # no colour, which NO_COLOR takes away
            click.echo(f"every {format_duration(every)}, {datetime.now(UTC):%H:%M:%S}Z")
        click.echo("\n".join(lines_of(head, found)))
        if once or not is_terminal():
            return
        time.sleep(every.total_seconds())
