"""Which mail is leased next: new and retried mail alternate, and retry lanes among themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from postroad.embedded.log.layout import NEW, Lane
from postroad.embedded.log.segments import LiveEntry, Segment
from postroad.embedded.store.ready_queues import ReadyQueues


def waiting(*lanes: Lane) -> ReadyQueues:
    """Queues in which an entry of each of these lanes is due."""
    queues = ReadyQueues()
    for number, lane in enumerate(lanes):
        segment = cast("Segment", SimpleNamespace(lane=lane))
        queues.add(LiveEntry(segment, 0, 0, number, b"", 0, 0, "", due=0.0), now=0.0)
    return queues


def taken(queues: ReadyQueues) -> list[Lane]:
    entries = iter(lambda: queues.take(0.0), None)
    return [each.segment.lane for each in entries]


def test_new_mail_starts_alternately_with_retried_mail_however_many_lanes_wait() -> None:
    """Source: LQ-35."""
    lanes = taken(waiting(*[NEW] * 6, *[60] * 2, *[300] * 2, *[900] * 2))

    assert lanes[::2] == [NEW] * 6
    assert lanes[1::2] == [60, 300, 900] * 2


def test_retry_lanes_take_places_that_new_mail_leaves_free() -> None:
    assert taken(waiting(300, 300, 300, 60, NEW)) == [NEW, 300, 60, 300, 300]


def test_new_mail_takes_places_that_retried_mail_leaves_free() -> None:
    assert taken(waiting(NEW, NEW, NEW, 60)) == [NEW, 60, NEW, NEW]
