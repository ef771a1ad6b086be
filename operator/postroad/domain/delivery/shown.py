"""The last outcomes of a worker, as it publishes them for consoles: lines of the attempt log, in a
row of numbers that goes on while the worker runs. Pure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from postroad.domain.delivery.attempts import LoggedAttempt, to_document
from postroad.errors import InvalidInput

MAX_LINES = 200
"""Lines of an entry, which is written each second while outcomes come: the last ones."""

MAX_LINE = 4096
"""Characters of a line; of a longer one, the reply is left out."""


class OutcomeWindow:
    """Lines of a worker, the last ones. `number`: of the last line that it noted."""

    def __init__(self) -> None:
        self.number = 0
        self._noted = deque[Iterator[LoggedAttempt]](maxlen=MAX_LINES)
        self._lines = deque[Mapping[str, Any]](maxlen=MAX_LINES)

    def note(self, count: int, lines: Iterator[LoggedAttempt]) -> None:
        """Note the lines of an attempt, one or more. They are made for `text` alone, because a
        worker delivers more between two of them than are shown."""
        self.number += count
        self._noted.append(lines)

    def clear(self) -> None:
        self._noted.clear()
        self._lines.clear()

    def text(self) -> str:
        """Return the form in which it is published."""
        new: list[LoggedAttempt] = []
        while self._noted and len(new) < MAX_LINES:  # from the last back: no more are shown
            new[:0] = self._noted.pop()
        self._noted.clear()
        self._lines.extend(map(_document, new[-MAX_LINES:]))
        return json.dumps({"last": self.number, "lines": list(self._lines)})


def _document(line: LoggedAttempt) -> Mapping[str, Any]:
    document = to_document(line)
    return document if len(json.dumps(document)) <= MAX_LINE else {**document, "reply": ""}


def read_window(text: str) -> tuple[int, Sequence[Mapping[str, Any]]]:
    """Return the number of the last line, and the lines. Raises: InvalidInput."""
    try:
        found = json.loads(text)
        last, lines = int(found["last"]), [dict(each) for each in found["lines"]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidInput("the outcomes of a worker cannot be read") from error
    return last, lines


class SeenOutcomes:
    """Outcomes of workers that a reader has seen. The first reading shows where they are."""

    MAX_WORKERS = 1000

    def __init__(self) -> None:
        self._seen: dict[str, int] | None = None
        self._texts: Mapping[str, str] = {}

    def take(self, entries: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], int]:
        """Return the lines that are new in entries of workers, in the order of their times, and how
        many more there were between two readings."""
        known = self._seen
        seen = self._seen = {} if known is None else known
        fresh, missed = list[Mapping[str, Any]](), 0
        for worker, text in entries.items():
            if self._texts.get(worker) == text:
                continue
            try:
                last, lines = read_window(text)
            except InvalidInput:
                continue
            before = seen.pop(worker, 0)
            seen[worker] = last
            if known is None or last <= before:
                continue
            new = min(last - before, len(lines))
            missed += last - before - new if before else 0
            fresh += lines[len(lines) - new :]
        self._texts = dict(entries)
        while len(seen) > self.MAX_WORKERS:
            del seen[next(iter(seen))]
        return sorted(fresh, key=lambda line: str(line.get("at"))), missed
