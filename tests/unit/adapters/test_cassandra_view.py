"""What the view asks of Cassandra, and what it makes of the answers."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.statements import DEAD_LETTER_COLUMNS, ROW_COLUMNS
from postroad.adapters.cassandra.view import rows
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.queues.entries import Entry, EntryKey, Partition, UndecodableRow
from postroad.domain.queues.ownership import Identity
from postroad.domain.values.identifiers import FIRST, LAST, id_at
from postroad.domain.values.instants import Readings
from postroad.errors import Undecodable
from postroad.ports.marks import Counts
from postroad.ports.view import ClosedSlice, DeadLetter, Limits, Record
from support.scripted_session import ScriptedSession
from support.stored_rows import stored

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = NOW.replace(tzinfo=None)
US = int(NOW.timestamp()) * 1_000_000
SECOND = timedelta(seconds=1)
PARTITION = Partition(NOW, 2)
PLACE = ("mail.out", NOW, 2)
OWNER, OTHER = UUID(int=7), UUID(int=8)


def entry(number: int = 1, recipients: int = 1, attribute: int = 0) -> Entry:
    key = EntryKey(NOW, 2, id_at(NOW, number, 0))
    envelope = Envelope(
        "a@example.org",
        tuple(f"r{each}@example.net" for each in range(recipients)),
        attributes={"x": "y" * (attribute - 1)} if attribute else {},
    )
    return Entry(key, UUID(int=number), envelope, "blob", 10, NOW, NOW)


def row_of(one: Entry) -> dict[str, Any]:
    return dict(stored(ROW_COLUMNS, rows.entry_values(one)))


@pytest.fixture
async def session() -> ScriptedSession:
    return ScriptedSession()


@pytest.fixture
async def view(session: ScriptedSession) -> CassandraView:
    return CassandraView(session, "mail.out")


@pytest.mark.parametrize(
    ("one", "is_small"),
    [
        (entry(), True),
        (entry(recipients=20), True),
        (entry(recipients=21), False),
        (entry(attribute=4096), True),
        (entry(attribute=4097), False),
    ],
)
async def test_only_small_rows_wait_to_share_a_request(
    session: ScriptedSession, view: CassandraView, one: Entry, is_small: bool
) -> None:
    assert rows.is_small(one) == is_small

    await view.insert(one)

    assert session.sent == [(statements.INSERT_ROW, ("mail.out", *rows.entry_values(one)))]


async def test_a_row_is_found_or_not(session: ScriptedSession, view: CassandraView) -> None:
    session.answer(statements.SELECT_ROW, [row_of(entry())], [])

    assert await view.row(entry().key) == entry()
    assert await view.row(entry().key) is None
    assert session.sent[0][1] == (*PLACE, entry().enqueue_id)


async def test_rows_are_read_after_an_id(session: ScriptedSession, view: CassandraView) -> None:
    three = [entry(number) for number in range(3)]
    session.answer(statements.SELECT_ROWS, [row_of(each) for each in three])

    assert [each async for each in view.rows(PARTITION)] == three
    assert [each async for each in view.rows(PARTITION, OWNER)] == three
    assert [values for _, values in session.sent] == [(*PLACE, FIRST), (*PLACE, OWNER)]


async def test_a_row_is_renewed_as_it_is_stored(
    session: ScriptedSession, view: CassandraView
) -> None:
    columns = {"queue": "mail.out", "new": 0, "missing": None}
    session.answer(statements.SELECT_AS_STORED, [{"[json]": json.dumps(columns)}])

    await view.renew_row(entry().key)

    [(written,)] = session.values_of(statements.RENEW_ROW)
    assert json.loads(written) == {"queue": "mail.out", "new": 0}


async def test_rows_are_counted_with_those_that_are_delayed_and_held(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(statements.COUNT_ROWS, [{"total": 9, "held": 2}])
    session.answer(statements.COUNT_LATER_ROWS, [{"total": 5, "held": 1}])

    assert await view.count_rows(PARTITION, NOW) == Counts(total=9, delayed=4, held=2)
    assert await view.count_rows(PARTITION, None, OWNER) == Counts(total=9, delayed=0, held=2)
    assert session.values_of(statements.COUNT_LATER_ROWS) == [(*PLACE, FIRST, NOW)]
    assert session.values_of(statements.COUNT_ROWS) == [(*PLACE, FIRST), (*PLACE, OWNER)]


async def test_occupied_partitions_are_looked_for_in_all_buckets(
    session: ScriptedSession, view: CassandraView
) -> None:
    found = [{"slice_start": NAIVE, "bucket_id": 1}]
    session.answer(statements.SELECT_OCCUPIED, found)

    assert await view.occupied([NOW, NOW + SECOND], 3) == {Partition(NOW, 1)}
    assert session.sent[0][1] == ("mail.out", [NOW, NOW + SECOND], [0, 1, 2])


async def test_keys_of_bytes_are_read_up_to_an_id(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(
        statements.SELECT_BLOB_KEYS,
        [{"enqueue_id": OWNER, "blob_key": "k"}, {"enqueue_id": OTHER, "blob_key": None}],
    )

    found = [each async for each in view.blob_keys(PARTITION, LAST)]

    assert found == [(OWNER, "k"), (OTHER, None)]
    assert session.sent[0][1] == (*PLACE, FIRST, LAST)


@pytest.mark.parametrize(
    ("lifetime", "seconds"),
    [(timedelta(0), 1), (timedelta(seconds=1.4), 1), (timedelta(seconds=1.6), 2)],
)
async def test_a_claim_lives_for_whole_seconds(
    session: ScriptedSession, view: CassandraView, lifetime: timedelta, seconds: int
) -> None:
    session.answer(statements.CLAIM, [{"[applied]": True}])

    assert await view.claim(OWNER, OTHER, lifetime) is True
    assert session.sent == [(statements.CLAIM, (seconds, OTHER, "mail.out", OWNER))]


async def test_a_claim_of_another_owner_stands_and_ones_own_is_renewed(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(statements.CLAIM, [{"[applied]": False, "owner": OTHER}])
    session.answer(
        statements.RENEW_CLAIM, [{"[applied]": True}], [{"[applied]": False, "owner": None}]
    )

    assert await view.claim(UUID(int=1), OWNER, 9 * SECOND) is False
    assert session.values_of(statements.RENEW_CLAIM) == []
    assert await view.claim(UUID(int=1), OTHER, 9 * SECOND) is True
    assert await view.claim(UUID(int=1), OTHER, 9 * SECOND) is False
    renewed = (9, OTHER, "mail.out", UUID(int=1), OTHER)
    assert session.values_of(statements.RENEW_CLAIM) == [renewed, renewed]

    session.answer(statements.RELEASE_CLAIM, [{"[applied]": True}])
    await view.release_claim(UUID(int=1), OWNER)
    assert session.sent[-1] == (statements.RELEASE_CLAIM, ("mail.out", UUID(int=1), OWNER))


LIMITS = {
    "browse_start": NAIVE,
    "content_start": None,
    "archived_through": None,
    "incarnation": OWNER,
}


async def test_each_limit_is_raised_by_its_own_timestamp_under_the_incarnation(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(statements.SELECT_LIMITS, [LIMITS])
    assert await view.limits() == Limits(NOW, None, None)

    await view.advance(browse_start=NOW, archived_through=NOW + SECOND)
    await view.advance(content_start=NOW)

    written = session.sent[1:]
    assert written == [
        (statements.ADVANCE_BROWSE_START, (US, NOW, "mail.out", OWNER)),
        (
            statements.ADVANCE_ARCHIVED_THROUGH,
            (US + 1_000_000, NOW + SECOND, "mail.out", OWNER),
        ),
        (statements.ADVANCE_CONTENT_START, (US, NOW, "mail.out", OWNER)),
    ]
    assert session.batches == [2], "limits that are raised together are one request"


async def test_a_new_queue_gets_one_incarnation(
    session: ScriptedSession, view: CassandraView
) -> None:
    await view.advance(browse_start=NOW)
    await view.advance(browse_start=NOW)

    made = {values[-1] for values in session.values_of(statements.ADVANCE_BROWSE_START)}
    assert len(made) == 1
    assert len(session.values_of(statements.SELECT_LIMITS)) == 1
    assert isinstance(made.pop(), UUID)


READINGS = Readings((), 0)


async def test_an_erased_queue_is_a_new_one(
    session: ScriptedSession, view: CassandraView, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.answer(statements.SELECT_LIMITS, [LIMITS])
    await view.limits()
    read: list[str] = []

    async def server_times() -> Readings:
        read.append("times")
        return READINGS

    monkeypatch.setattr(session, "server_times", server_times)
    assert await view.server_times() is READINGS

    await view.erase()

    assert read == ["times", "times"]
    session.answer(statements.SELECT_LIMITS, [])
    await view.advance(browse_start=NOW)
    assert session.sent[-1][1][-1] != OWNER


async def test_the_identity_is_of_all_incarnations(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(statements.SELECT_LIMITS, [LIMITS, LIMITS | {"incarnation": OTHER}])
    raised: list[dict[str, Any]] = [
        {"incarnation": OTHER, "as_of": NAIVE},
        {"incarnation": UUID(int=9), "as_of": NAIVE + SECOND},
        {"incarnation": OWNER, "as_of": None},
    ]
    session.answer(statements.SELECT_OWNERSHIP, raised)

    assert await view.identity() == Identity({OWNER, OTHER}, NOW)
    await view.raise_as_of(OWNER, NOW)
    assert session.sent[-1] == (statements.RAISE_AS_OF, (US, NOW, "mail.out", OWNER))


async def test_the_first_close_of_a_slice_holds(
    session: ScriptedSession, view: CassandraView
) -> None:
    closed = ClosedSlice(NOW, timedelta(minutes=5), {0: 3}, drained=False)
    standing = {
        "slice_start": NAIVE,
        "window_seconds": 600,
        "rows_by_bucket": {1: 4},
        "drained": True,
    }
    session.answer(statements.CLOSE_SLICE, [{"[applied]": True}], [{"[applied]": False} | standing])

    assert await view.close_slice(closed) == closed
    other = ClosedSlice(NOW, timedelta(minutes=10), {1: 4}, drained=True)
    assert await view.close_slice(closed) == other
    assert session.sent[0][1] == ("mail.out", NOW, 300, {0: 3})

    session.answer(statements.SELECT_SLICES, [standing])
    assert [each async for each in view.closed_slices(NOW)] == [other]
    session.answer(statements.MARK_DRAINED, [{"[applied]": True}])
    session.answer(statements.FORGET_SLICE, [{"[applied]": True}])
    await view.mark_drained(NOW)
    await view.forget_slice(NOW)
    assert [statement for statement, _ in session.sent[-2:]] == [
        statements.MARK_DRAINED,
        statements.FORGET_SLICE,
    ]
    assert {values for _, values in session.sent[-2:]} == {("mail.out", NOW)}


async def test_rows_are_deleted_that_were_written_before(
    session: ScriptedSession, view: CassandraView
) -> None:
    await view.delete_rows(PARTITION, NOW)

    assert session.sent == [(statements.DELETE_ROWS, (US, *PLACE))]


DEAD_LETTER = DeadLetter(entry().enqueue_id, "2026-01", NOW, "no", entry(), None)


def dead_letter_row(dead_letter: DeadLetter, **more: object) -> dict[str, Any]:
    return {**stored(DEAD_LETTER_COLUMNS, rows.dead_letter_values("mail.out", dead_letter)), **more}


async def test_the_month_of_a_dead_letter_is_noted_before_the_dead_letter(
    session: ScriptedSession, view: CassandraView
) -> None:
    await view.write_dead_letter(DEAD_LETTER)

    assert session.sent == [
        (statements.NOTE_MONTH, ("mail.out", "2026-01")),
        (statements.WRITE_DEAD_LETTER, rows.dead_letter_values("mail.out", DEAD_LETTER)),
    ]


async def test_a_dead_letter_is_rewritten_just_after_it_was_written(
    session: ScriptedSession, view: CassandraView
) -> None:
    with pytest.raises(ValueError, match="as `dead_letter` returned it"):
        await view.rewrite_dead_letter(DEAD_LETTER)
    assert session.sent == []

    await view.rewrite_dead_letter(replace(DEAD_LETTER, written=41))

    assert session.sent[0][1] == (*rows.dead_letter_values("mail.out", DEAD_LETTER), 42)


async def test_a_dead_letter_whose_deletion_was_noted_is_gone(
    session: ScriptedSession, view: CassandraView
) -> None:
    there, gone = dead_letter_row(DEAD_LETTER, written=41), {"month": "2026-01 gone"}
    session.answer(statements.SELECT_DEAD_LETTER, [there], [there, gone], [gone], [])

    assert await view.dead_letter("2026-01", DEAD_LETTER.enqueue_id) == replace(
        DEAD_LETTER, written=41
    )
    assert [await view.dead_letter("2026-01", DEAD_LETTER.enqueue_id) for _ in range(3)] == [
        None
    ] * 3
    asked = ("mail.out", ["2026-01", "2026-01 gone"], DEAD_LETTER.enqueue_id)
    assert session.sent[0][1] == asked


async def test_dead_letters_of_all_months_are_read_and_counted(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(statements.SELECT_MONTHS, [{"month": f"2026-0{n}"} for n in (1, 2, 3)])
    session.answer(
        statements.SELECT_DEAD_LETTERS,
        [dead_letter_row(DEAD_LETTER)],
        [],
        [dead_letter_row(DEAD_LETTER)],
    )
    session.answer(statements.COUNT_DEAD_LETTERS, [{"count": 2}], [{"count": 0}], [{"count": 5}])

    assert [each async for each in view.dead_letters()] == [DEAD_LETTER, DEAD_LETTER]
    assert await view.count_dead_letters() == 7


async def test_a_dead_letter_of_an_entry_is_noted_as_gone_and_deleted_after_its_write(
    session: ScriptedSession, view: CassandraView
) -> None:
    session.answer(statements.SELECT_WRITTEN_AT, [{"written": 41}])
    place = ("mail.out", "2026-01", DEAD_LETTER.enqueue_id)

    await view.delete_dead_letter(DEAD_LETTER)

    assert session.sent == [
        (statements.NOTE_GONE, ("mail.out", "2026-01 gone", DEAD_LETTER.enqueue_id)),
        (statements.SELECT_WRITTEN_AT, place),
        (statements.DELETE_DEAD_LETTER, (42, *place)),
    ]
    session.sent.clear()
    await view.delete_dead_letter(replace(DEAD_LETTER, entry=None))
    assert [statement for statement, _ in session.sent] == [
        statements.SELECT_WRITTEN_AT,
        statements.DELETE_DEAD_LETTER,
    ]


@pytest.mark.parametrize(("count", "batches"), [(1, []), (2, [2]), (100, [100]), (101, [100, 1])])
async def test_delivery_records_go_together_a_hundred_at_most(
    session: ScriptedSession, view: CassandraView, count: int, batches: list[int]
) -> None:
    records = tuple(
        Record(f"r{number}@example.net", Outcome.failed("550 no"), NOW) for number in range(count)
    )

    await view.record(UUID(int=1), records)

    assert session.batches == batches
    assert session.values_of(statements.RECORD) == [
        ("mail.out", UUID(int=1), each.recipient, "failed", "550 no", NOW) for each in records
    ]


async def test_delivery_records_are_read_by_recipient(
    session: ScriptedSession, view: CassandraView
) -> None:
    row = {"recipient": "a@x", "outcome": "deferred", "reply": None, "recorded_at": NAIVE}
    session.answer(statements.SELECT_RECORDS, [row], [row | {"outcome": "of a later release"}])

    assert await view.records(UUID(int=1)) == {"a@x": Record("a@x", Outcome.deferred(""), NOW)}
    with pytest.raises(Undecodable, match="unknown to this release"):
        await view.records(UUID(int=1))


async def test_a_row_that_cannot_be_decoded_keeps_no_other_from_being_read(
    session: ScriptedSession, view: CassandraView
) -> None:
    good, bad = entry(1), entry(2)
    broken = row_of(bad) | {"blob_key": None, "remaining_seconds": 60}
    session.answer(statements.SELECT_ROWS, [broken, row_of(good)])

    found = [each async for each in view.rows(PARTITION)]

    assert found == [UndecodableRow(bad.key, "Undecodable", bad.mail_id, None), good]
    assert found[0].remaining == 60 * SECOND
