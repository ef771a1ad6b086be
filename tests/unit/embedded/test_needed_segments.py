"""Which segments of a lane a checkpoint needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.segments import position
from postroad.embedded.store.maintenance import _first_needed


@dataclass
class FakeSegment:
    """A segment of 100 octets."""

    sequence: int
    live: set[int] = field(default_factory=set)

    @property
    def end_position(self) -> int:
        return position(self.sequence, 100)


class FakeLane:
    """Segments 1 to 3; the next has the number 4."""

    next_sequence = 4

    def __init__(self, live: int = 0, durable: int = position(3, 100), appends: int = 0) -> None:
        self.segments = [FakeSegment(each, {7} if each == live else set()) for each in (1, 2, 3)]
        self.durable, self._appends = durable, appends

    def appends_to(self, segment: FakeSegment) -> bool:
        return segment.sequence == self._appends


@pytest.mark.parametrize(
    ("lane", "scan_from", "first"),
    [
        (FakeLane(), None, 4),
        (FakeLane(live=2), None, 2),
        (FakeLane(), position(2, 50), 2),
        (FakeLane(), position(4, 0), 4),
        (FakeLane(), 0, 1),
        (FakeLane(durable=position(2, 99)), None, 2),
        (FakeLane(durable=position(2, 100)), None, 3),
        (FakeLane(appends=3), None, 3),
        (FakeLane(live=3), position(2, 99), 2),
        (FakeLane(live=3), position(2, 100), 3),
    ],
    ids=["none", "a live entry", "read from there", "read behind it", "read whole",
         "not durable", "durable to its end", "appended to", "the first of several",
         "nothing left to read"],
)  # fmt: skip
def test_the_first_segment_that_is_needed(
    lane: FakeLane, scan_from: int | None, first: int
) -> None:
    assert _first_needed(cast("LaneLog", lane), scan_from) == first
