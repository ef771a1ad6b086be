"""Dead letters are read across more deletions than the server reads at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from cassandra import ReadFailure

from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.connection import TooManyTombstones, translated
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.view.rows import DeadLetterReader
from postroad.domain.values.identifiers import id_at
from postroad.errors import ViewUnavailable

MONTH = "2026-02"
START = datetime(2026, 2, 3, tzinfo=UTC)
MAX_DELETIONS, PAGE = 10, 3


class RefusingSession(Session):
    """One month, whose requests fail when a page meets more than `MAX_DELETIONS` deletions."""

    def __init__(self, dead_letters: Sequence[UUID], deleted: Sequence[UUID]) -> None:
        self.dead_letters, self.deleted = sorted(dead_letters), sorted(deleted)
        self.refusals = 0

    async def pages(  # type: ignore[override]
        self, statement: Statement, values: Sequence[object] = ()
    ) -> AsyncIterator[list[dict[str, object]]]:
        assert statement == statements.SELECT_DEAD_LETTERS
        _, _, after, through = values
        while page := self._page_of(after, through):
            yield [{"enqueue_id": each} for each in page]
            after = page[-1]

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> list[object]:  # type: ignore[override]
        assert statement == statements.COUNT_DEAD_LETTERS
        _, _, after, through = values
        count = 0
        while page := self._page_of(after, through):
            count, after = count + len(page), page[-1]
        return [{"count": count}]

    def _page_of(self, after: object, through: object) -> list[UUID]:
        assert isinstance(after, UUID)
        assert isinstance(through, UUID)
        page = _between(self.dead_letters, after, through)[:PAGE]
        last = page[-1] if len(page) == PAGE else through
        if len(_between(self.deleted, after, last)) > MAX_DELETIONS:
            self.refusals += 1
            raise TooManyTombstones
        return page


def _between(listed: list[UUID], after: UUID, through: UUID) -> list[UUID]:
    return listed[bisect_right(listed, after) : bisect_right(listed, through)]


def ids(count: int, start: datetime, apart: timedelta) -> list[UUID]:
    return [id_at(start + number * apart, 0, number + 1) for number in range(count)]


async def read(reader: DeadLetterReader) -> list[object]:
    return [row["enqueue_id"] async for row in reader.dead_letters(MONTH)]


@pytest.mark.parametrize(
    ("dead_letters", "deleted"),
    [
        (ids(20, START, timedelta(days=1)), ids(1000, START, timedelta(minutes=7))),
        (ids(20, START, timedelta(minutes=1)), ids(1000, START, timedelta(seconds=1))),
        (ids(5, START + timedelta(days=9), timedelta(0)), ids(1000, START, timedelta(minutes=7))),
        ([], ids(1000, START, timedelta(milliseconds=1))),
        (ids(3, START + timedelta(days=90), timedelta(days=1)), ids(99, START, timedelta(hours=9))),
        (ids(20, START, timedelta(days=1)), []),
    ],
)
async def test_all_dead_letters_are_read_once_and_counted_between_deletions(
    dead_letters: list[UUID], deleted: list[UUID]
) -> None:
    session = RefusingSession(dead_letters, deleted)
    reader = DeadLetterReader(session, "mail.out")

    assert await read(reader) == sorted(dead_letters)
    assert await reader.count(MONTH) == len(dead_letters)


async def test_what_was_refused_once_is_not_asked_for_again() -> None:
    session = RefusingSession([], ids(1000, START, timedelta(minutes=1)))
    reader = DeadLetterReader(session, "mail.out")
    await reader.count(MONTH)
    refusals = session.refusals

    await read(reader)
    await reader.count(MONTH)

    assert refusals
    assert session.refusals == refusals


async def test_range_that_cannot_be_divided_is_an_error() -> None:
    session = RefusingSession([], ids(1000, START, timedelta(0)))

    with pytest.raises(TooManyTombstones):
        await DeadLetterReader(session, "mail.out").count(MONTH)


def test_refusal_is_known_by_the_reason_of_a_replica() -> None:
    """Words of Cassandra 5.0.9 under version 4 of its protocol."""
    words = "received 0 responses and 1 failures: READ_TOO_MANY_TOMBSTONES from /10.0.0.1:7000"

    assert type(translated(ReadFailure(words))) is TooManyTombstones
    assert type(translated(ReadFailure(words.replace("READ_TOO_MANY", "")))) is ViewUnavailable
