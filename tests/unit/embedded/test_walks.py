"""Walks through the index: what they copy, and what they yield while entries change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from postroad.embedded.log.index import Index
from postroad.embedded.log.layout import HELD, NEW, Lane
from postroad.embedded.log.segments import Header, LiveEntry, Segment

IN_ONE = 10


class Copied(dict[int, LiveEntry]):
    """Live entries that count how often they are gone through."""

    times = 0

    def values(self) -> Any:
        self.times += 1
        return super().values()


@dataclass
class Filled:
    """An index over full segments, and one more that new entries go to."""

    segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = Index(lambda: self.segments)
        for sequence in range(5):
            self.segment(NEW, sequence)
            for number in range(IN_ONE):
                self.add(self.segments[-1], sequence * IN_ONE + number)
        self.segment(HELD, 0)

    def segment(self, lane: Lane, sequence: int) -> None:
        made = Segment.planned(Header(lane, sequence, 100, 1 << 20, bytes(16), 0, 0))
        made.live = Copied()
        self.segments.append(made)

    def add(self, segment: Segment, number: int) -> LiveEntry:
        entry = LiveEntry(
            segment=segment,
            offset=0,
            length=0,
            ordinal=segment.next_ordinal,
            enqueue_id=number.to_bytes(16, "big"),
            slot=0,
            accepted_us=0,
            domains="",
            due=0.0,
        )
        segment.next_ordinal += 1
        self.index.add(entry)
        return entry

    def replace(self, number: int, by: int) -> None:
        entry = self.segments[number // IN_ONE].live[number % IN_ONE]
        self.index.remove(entry)
        entry.successor = self.add(self.segments[-1], by)

    @property
    def copied(self) -> list[int]:
        return [each.live.times for each in self.segments if isinstance(each.live, Copied)]


def numbers(walk: Iterator[LiveEntry]) -> list[int]:
    return [int.from_bytes(each.enqueue_id, "big") for each in walk]


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.mark.parametrize(("after", "copied"), [(-1, [1, 0, 0, 0, 0, 0]), (29, [0, 0, 0, 1, 0, 0])])
def test_the_first_entry_of_a_walk_copies_one_segment(after: int, copied: list[int]) -> None:
    filled = Filled()

    found = next(filled.index.walk(after=id_of(after) if after >= 0 else b""))

    assert numbers(iter([found])) == [after + 1]
    assert filled.copied == copied


def test_a_walk_between_two_ids_copies_what_lies_there() -> None:
    filled = Filled()

    assert numbers(filled.index.walk(after=id_of(13), last=id_of(21))) == list(range(14, 22))
    assert filled.copied == [0, 1, 1, 0, 0, 0]


def test_a_walk_follows_entries_that_are_replaced_where_it_was_not_yet() -> None:
    filled = Filled()
    filled.replace(2, by=100)
    walk = filled.index.walk()
    first = numbers(iter([next(walk)]))
    filled.replace(33, by=101)
    filled.index.remove(filled.segments[4].live[4])
    filled.add(filled.segments[-1], 102)

    expected = [each for each in range(50) if each not in (2, 44)]
    expected[expected.index(33)] = 101
    assert first + numbers(walk) == [*expected, 100]


def test_an_index_keeps_nothing_for_a_walk_that_was_left() -> None:
    filled = Filled()
    walk = filled.index.walk()
    next(walk)
    assert filled.index._walks

    del walk

    assert not filled.index._walks
