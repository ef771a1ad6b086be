"""What is asked of Cassandra about marks, and what its answers mean."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from postroad.adapters.cassandra import mark_statements
from postroad.adapters.cassandra.mark_statements import MARK_COLUMNS, TRAIT_COLUMNS
from postroad.adapters.cassandra.session import UNSET
from postroad.adapters.cassandra.statements import SELECT_PRESENT
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.adapters.cassandra.view.marks import CassandraMarks
from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    EntryKey,
    Mark,
    Partition,
    PurgeWatermark,
    Traits,
)
from postroad.domain.values.identifiers import FIRST
from postroad.ports.marks import Counts, PartitionVersion
from support.scripted_session import ScriptedSession
from support.stored_rows import stored

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = NOW.replace(tzinfo=None)
PARTITION = Partition(NOW, 2)
PLACE = ("mail.out", NOW, 2)
APPLIED = [{"[applied]": True}]
REMOVED = Ending(EndingKind.REMOVED, NOW)
TRAITS = Traits(("example.net",), NOW, held=True)


def key(number: int) -> EntryKey:
    return EntryKey(NOW, 2, UUID(int=number))


CHANGE = Change(("b@example.net",), NOW, held=True, attempt=3, last_error="451", previous=(key(8),))
REPLACED = Ending(EndingKind.REPLACED, NOW, key(9), CHANGE)


def mark_row(number: int, mark: Mark, through: UUID | None = None, **more: Any) -> dict[str, Any]:
    """The row of a mark, as the driver gives it back."""
    nothing = dict.fromkeys(MARK_COLUMNS)
    ending = mark.ending
    written = mark_rows.ending_values(ending) if ending else (None,) * 12
    stands = stored(MARK_COLUMNS, (mark.delivered_at, *written))
    watermark = {"purged_through": through, "purged_at": NAIVE if through else None}
    published = {"published": True} if mark.published else {}
    return {"enqueue_id": UUID(int=number)} | nothing | stands | published | watermark | more


@pytest.fixture
async def session() -> ScriptedSession:
    return ScriptedSession()


@pytest.fixture
async def marks(session: ScriptedSession) -> CassandraMarks:
    return CassandraMarks(session, "mail.out")


@pytest.mark.parametrize(
    "mark",
    [
        Mark(delivered_at=NOW),
        Mark(ending=REMOVED),
        Mark(ending=REPLACED),
        Mark(ending=REPLACED, published=True),
        Mark(NOW, REPLACED),
    ],
)
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert mark_rows.mark_of(mark_row(1, mark)) == mark


def test_what_a_replacement_does_not_change_is_not_written() -> None:
    """A null would be a tombstone."""
    change = Change(("b@example.net",), None, held=False, attempt=0, last_error=None)

    values = mark_rows.ending_values(Ending(EndingKind.REPLACED, NOW, key(9), change))

    by_name = dict(zip(MARK_COLUMNS[1:], values, strict=True))
    unset = {name for name, value in by_name.items() if value is UNSET}
    assert unset == {"new_due_at", "new_held", "new_last_error", "new_previous"}
    assert by_name["published"] is False
    assert set(mark_rows.ending_values(REMOVED)[2:]) == {UNSET}
    assert mark_rows.trait_values(Traits(())) == ((), UNSET, UNSET)


@pytest.mark.parametrize("broken", [{"ending": "new"}, {"replaced_by_slice": None}])
def test_an_ending_that_cannot_be_decoded_is_unknown_and_stands(broken: dict[str, Any]) -> None:
    found = mark_rows.mark_of(mark_row(1, Mark(ending=REPLACED), **broken))

    assert found.ending == Ending(EndingKind.UNKNOWN, NOW)


@pytest.mark.parametrize(
    ("remaining", "domains", "is_small"),
    [(20, 20, True), (21, 1, False), (1, 21, False)],
)
def test_only_small_endings_share_a_request(remaining: int, domains: int, is_small: bool) -> None:
    change = Change(("b@example.net",) * remaining, None, False, 0, None)
    ending = Ending(EndingKind.REPLACED, NOW, key(9), change)

    assert mark_rows.is_small_ending(ending, Traits(("example.net",) * domains)) == is_small
    assert mark_rows.is_small_ending(REMOVED, Traits(("example.net",) * domains)) == (domains < 21)


async def test_one_mark_is_read_with_the_watermark(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    session.answer(
        mark_statements.SELECT_MARK,
        [],
        [mark_row(1, Mark(ending=REMOVED))],
        [mark_row(255, Mark(), through=UUID(int=5))],
        [mark_row(1, Mark(ending=REMOVED), through=UUID(int=5))],
    )
    purged = PurgeWatermark(UUID(int=5), NOW)

    assert await marks.mark(key(1)) is None
    assert await marks.mark(key(1)) == Mark(ending=REMOVED)
    assert await marks.mark(key(1)) == purged.mark_of(UUID(int=1))
    assert await marks.mark(key(1)) == Mark(ending=REMOVED), "its own mark goes before"
    assert session.sent[0] == (mark_statements.SELECT_MARK, (*PLACE, UUID(int=1)))


async def test_several_marks_are_one_request(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    session.answer(
        mark_statements.SELECT_MARKED,
        [mark_row(2, Mark(NOW), through=UUID(int=2)), mark_row(255, Mark(), through=UUID(int=2))],
    )

    found = await marks._found(PARTITION, [UUID(int=each) for each in (1, 2, 3)])

    purged = PurgeWatermark(UUID(int=2), NOW).mark_of(UUID(int=1))
    assert {each.int: mark for each, mark in found.items()} == {
        1: purged,
        2: Mark(NOW),
        255: Mark(),
    }
    wanted = {UUID(int=1), UUID(int=2), UUID(int=3), mark_statements.WATERMARK_ID}
    assert session.sent == [(mark_statements.SELECT_MARKED, (*PLACE, wanted))]


async def test_marks_of_a_partition_are_read_after_an_id(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    session.answer(mark_statements.SELECT_MARKS, [mark_row(n, Mark(NOW)) for n in (1, 2, 3)])

    assert [each async for each in marks.marks(PARTITION)] == [
        (UUID(int=each), Mark(NOW)) for each in (1, 2, 3)
    ]
    assert [each async for each in marks.marks(PARTITION, UUID(int=7))]
    assert [values[-1] for _, values in session.sent] == [FIRST, UUID(int=7)]


async def test_marked_entries_are_read_with_those_being_replaced(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    published = [None, False, True]
    session.answer(
        mark_statements.SELECT_MARKED_IDS,
        [{"enqueue_id": UUID(int=n), "published": each} for n, each in enumerate(published)],
    )

    found = [each async for each in marks.marked(PARTITION, UUID(int=9))]

    assert found == [(UUID(int=0), False), (UUID(int=1), True), (UUID(int=2), False)]
    assert session.sent[0][1] == (*PLACE, FIRST, UUID(int=9))


async def test_marks_are_counted(session: ScriptedSession, marks: CassandraMarks) -> None:
    session.answer(mark_statements.COUNT_MARKS, [{"total": 9, "held": 2, "attempted": 7}])
    session.answer(mark_statements.COUNT_LATER_MARKS, [{"total": 5, "held": 1}])

    assert await marks.count_marks(PARTITION, NOW) == Counts(9, delayed=4, held=2, attempted=7)
    assert [values for _, values in session.sent] == [(*PLACE, FIRST), (*PLACE, FIRST, NOW)]


def trait_row(number: int) -> dict[str, Any]:
    traits = stored(TRAIT_COLUMNS, mark_rows.trait_values(TRAITS))
    return {"enqueue_id": UUID(int=number), **traits}


async def test_withdrawn_entries_without_rows_have_traits(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    session.answer(mark_statements.SELECT_WITHDRAWN, [trait_row(1), trait_row(2), trait_row(3)], [])
    session.answer(SELECT_PRESENT, [{"enqueue_id": UUID(int=1)}], [])

    assert [each async for each in marks.withdrawn_without_rows(PARTITION)] == [TRAITS, TRAITS]
    asked = session.values_of(SELECT_PRESENT)
    assert asked == [(*PLACE, [UUID(int=1), UUID(int=2)]), (*PLACE, [UUID(int=3)])]
    assert [each async for each in marks.withdrawn_without_rows(PARTITION)] == []
    assert len(session.values_of(SELECT_PRESENT)) == 2, "nothing to ask about"


async def test_unfinished_replacements_have_marks_and_traits(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    session.answer(
        mark_statements.SELECT_UNFINISHED, [mark_row(1, Mark(ending=REPLACED)) | trait_row(1)]
    )

    assert [each async for each in marks.unfinished(PARTITION)] == [(Mark(ending=REPLACED), TRAITS)]


async def test_a_version_has_the_watermark_and_the_last_writes(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    microseconds = int(NOW.timestamp()) * 1_000_000
    row = {"purged_through": UUID(int=5), "purged_at": NAIVE, "swept_through": UUID(int=4)}
    written = {"delivered": microseconds, "ended": None}
    session.answer(mark_statements.SELECT_VERSION, [], [row | written])

    assert await marks.version(PARTITION) == PartitionVersion()
    purged = PurgeWatermark(UUID(int=5), NOW)
    assert await marks.version(PARTITION) == PartitionVersion(purged, UUID(int=4), NOW, None)


@pytest.mark.parametrize("domains", [20, 21])
async def test_a_delivery_is_marked_with_its_traits(
    session: ScriptedSession, marks: CassandraMarks, domains: int
) -> None:
    traits = Traits(tuple(f"{each}.example" for each in range(domains)))

    await marks.mark_delivered(key(1), NOW, traits)

    wanted = (*PLACE, UUID(int=1), traits.domains, UNSET, UNSET, NOW)
    assert session.sent == [(mark_statements.MARK_DELIVERED, wanted)]


async def test_an_ending_is_written_or_the_standing_one_returned(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    refused = [{"[applied]": False, "purged_through": None}]
    session.answer(mark_statements.END, APPLIED, refused, APPLIED, refused)
    session.answer(mark_statements.SELECT_MARK, [mark_row(1, Mark(NOW))])
    large = Traits(tuple(f"{each}.example" for each in range(21)))

    for traits in (TRAITS, large):
        assert await marks.end(key(1), REMOVED, traits) is None
        assert await marks.end(key(1), REMOVED, traits) == Mark(NOW)

    bound = session.values_of(mark_statements.END)[0]
    key_values = rows.key_values("mail.out", key(1))
    wanted = (*mark_rows.trait_values(TRAITS), *mark_rows.ending_values(REMOVED), *key_values, None)
    assert bound == wanted


ENDED = [(key(each), REMOVED, TRAITS) for each in (6, 7)]


@pytest.mark.parametrize(
    ("through", "answer", "ends", "sent"),
    [(None, True, True, 2), (None, False, False, 2), (5, True, True, 2), (6, True, False, 0)],
)
async def test_endings_go_together_unless_a_purge_ended_one(
    session: ScriptedSession,
    marks: CassandraMarks,
    through: int | None,
    answer: bool,
    ends: bool,
    sent: int,
) -> None:
    line = None if through is None else UUID(int=through)
    version = {"purged_through": line, "purged_at": NAIVE, "swept_through": None}
    session.answer(mark_statements.SELECT_VERSION, [version | {"delivered": None, "ended": None}])
    session.answer(mark_statements.END, [{"[applied]": answer}])

    assert await marks.end_together(ENDED) is ends
    assert [values[-1] for values in session.values_of(mark_statements.END)] == [line] * sent


def versioned(through: int | None) -> list[dict[str, Any]]:
    if through is None:
        return []
    row = {"purged_through": UUID(int=through), "purged_at": NAIVE, "swept_through": None}
    return [row | {"delivered": None, "ended": None}]


async def test_a_watermark_only_rises(session: ScriptedSession, marks: CassandraMarks) -> None:
    watermark = PurgeWatermark(UUID(int=5), NOW)
    session.answer(mark_statements.SET_WATERMARK, APPLIED)
    session.answer(
        mark_statements.SELECT_VERSION, versioned(None), versioned(4), versioned(5), versioned(6)
    )

    found = [await marks.set_watermark(PARTITION, watermark) for _ in range(4)]

    assert found == [None, *(PurgeWatermark(UUID(int=each), NOW) for each in (4, 5, 6))]
    assert session.values_of(mark_statements.SET_WATERMARK) == [
        (UUID(int=5), NOW, NOW, *PLACE, None),
        (UUID(int=5), NOW, NOW, *PLACE, UUID(int=4)),
    ]


async def test_a_watermark_that_another_process_raised_first_is_compared_again(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    session.answer(mark_statements.SET_WATERMARK, [{"[applied]": False}], APPLIED)
    session.answer(mark_statements.SELECT_VERSION, versioned(1), versioned(2))

    found = await marks.set_watermark(PARTITION, PurgeWatermark(UUID(int=5), NOW))

    assert found == PurgeWatermark(UUID(int=2), NOW)
    assert len(session.values_of(mark_statements.SET_WATERMARK)) == 2


async def test_a_replacement_is_published_once_and_by_its_successor(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    refused = [{"[applied]": False}]
    session.answer(mark_statements.MARK_PUBLISHED, APPLIED, refused)
    session.answer(mark_statements.SELECT_MARK, [mark_row(1, Mark(ending=REMOVED))])

    assert await marks.mark_published(key(1), UUID(int=9)) is True
    assert await marks.mark_published(key(1), UUID(int=9)) is False
    assert session.sent[0][1] == (*PLACE, UUID(int=1), UUID(int=9))


@pytest.mark.parametrize(
    ("standing", "tries"),
    [
        (Mark(ending=REMOVED), 1),
        (Mark(ending=REPLACED, published=True), 1),
        (Mark(ending=REPLACED), 2),
    ],
)
async def test_a_successor_changes_while_its_replacement_is_under_way(
    session: ScriptedSession, marks: CassandraMarks, standing: Mark, tries: int
) -> None:
    session.answer(mark_statements.CHANGE_SUCCESSOR, [{"[applied]": False}], APPLIED)
    session.answer(mark_statements.SELECT_MARK, [mark_row(1, standing)])

    found = await marks.change_successor(key(1), UUID(int=9), key(10), (key(8),))

    assert found is (tries == 2)
    asked = session.values_of(mark_statements.CHANGE_SUCCESSOR)
    chain = [(NOW, 2, UUID(int=8))]
    wanted = (UUID(int=10), NOW, 2, chain, *PLACE, UUID(int=1), UUID(int=9))
    assert asked == [wanted] * tries


async def test_deleted_bytes_and_marks_are_of_their_partition(
    session: ScriptedSession, marks: CassandraMarks
) -> None:
    await marks.mark_blobs_deleted(PARTITION, UUID(int=5))
    await marks.delete_marks(PARTITION)

    assert session.sent == [
        (mark_statements.MARK_BLOBS_DELETED, (UUID(int=5), *PLACE)),
        (mark_statements.DELETE_MARKS, PLACE),
    ]
