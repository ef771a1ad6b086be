"""What processes record while they work: one JSON object a line, written before and after each
call.

So a process that is killed at any moment leaves an exact account of the calls that it had begun.
Instants are seconds of the machine's one true clock (`time.monotonic` without faults), which all
processes of a run share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

SUFFIX = ".history"


class Phase(StrEnum):
    """The phase of a call that an event records. `unknown`: the call may have had its effect."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `by` is one life of a process (`worker-1#2`), `call` joins the phases of a call."""

    at: float
    by: str
    op: str
    phase: Phase = Phase.INFO
    call: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the event as a line of JSON."""
        head = {"at": round(self.at, 6), "by": self.by, "op": self.op, "is": self.phase.value}
        return json.dumps(head | ({"call": self.call} if self.call else {}) | dict(self.data))

    @classmethod
    def parse(cls, line: str) -> Event:
        """Read a line. Raises: ValueError, KeyError for one that was cut short."""
        data = json.loads(line)
        at, by, op, phase = (data.pop(each) for each in ("at", "by", "op", "is"))
        return cls(at, by, op, Phase(phase), data.pop("call", ""), data)


class Recorder(Protocol):
    """The record of one life of a process."""

    @property
    def by(self) -> str: ...

    def now(self) -> float:
        """Return the instant by the true clock."""
        ...

    def note(self, op: str, phase: Phase = Phase.INFO, call: str = "", **data: object) -> None:
        """Record an event that happens now. When it returns, the event outlives the process."""
        ...


class ListRecorder:
    """Records into a list that several processes in memory share."""

    def __init__(self, events: list[Event], by: str, now: Callable[[], float]) -> None:
        self.events, self.by, self.now = events, by, now

    def note(self, op: str, phase: Phase = Phase.INFO, call: str = "", **data: object) -> None:
        self.events.append(Event(self.now(), self.by, op, phase, call, data))


class FileRecorder:
    """Records into a file of its own. Every line is one `write`: the kernel has it when `note`
    returns, and SIGKILL cannot undo it."""

    def __init__(self, directory: Path, by: str, now: Callable[[], float]) -> None:
        self.by, self.now = by, now
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(directory / f"{by}{SUFFIX}", flags, 0o644)

    def note(self, op: str, phase: Phase = Phase.INFO, call: str = "", **data: object) -> None:
        event = Event(self.now(), self.by, op, phase, call, data)
        os.write(self._file, event.line().encode() + b"\n")


def read(directory: Path) -> list[Event]:
    """Return what all processes of a run recorded, in order of time. A last line that a full disk
    cut short is left out."""
    events: list[Event] = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        for line in path.read_text().splitlines():
            try:
                events.append(Event.parse(line))
            except (ValueError, KeyError):
                continue
    return ordered(events)


def write(directory: Path, events: Iterable[Event]) -> None:
    """Write a history that was made in memory to a file, so that it can be checked again."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{each.line()}\n" for each in events)
    (directory / f"all{SUFFIX}").write_text(lines)


def ordered(events: Iterable[Event]) -> list[Event]:
    """Return events in order of time; those of one instant stay in the order in which they were
    recorded."""
    return sorted(events, key=lambda each: each.at)
