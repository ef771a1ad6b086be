"""The history of a queue, the home of a keyspace, and erasing a queue: what is asked, in which
order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad.adapters.cassandra import history, mark_statements, statements
from postroad.adapters.cassandra.history import CassandraHistory, Home
from postroad.adapters.cassandra.session import Statement
from postroad.adapters.cassandra.view.shared_state import ERASE_SHARDS, ERASE_SHARED_STATE, SHARDS
from postroad.adapters.cassandra.view.view import (
    APART_US,
    AT_ONCE,
    DEAD_LETTERS,
    MAILS,
    erase_dead_letters,
    erase_rest,
    erase_slices,
)
from postroad.configuration import REFRESHES_PER_LEASE
from postroad.domain.configuration.documents import to_document
from postroad.domain.configuration.history import READ_LEASE, Rollout
from postroad.domain.values.instants import AGREEING
from postroad.errors import ConfigurationConflict, ViewRefused
from postroad.ports.delivery import Topic
from support.histories import transitions
from support.scripted_session import ScriptedSession

QUEUE = "mail.out"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENTS = transitions(2)
APPLIED: list[dict[str, Any]] = [{"[applied]": True}]


@pytest.fixture
async def session() -> ScriptedSession:
    made = ScriptedSession()
    made.answer(statements.SELECT_KEYSPACE_EVENTS, [home_row("dc1")])
    return made


def home_row(datacenter: str, sequence: int = 1) -> dict[str, Any]:
    return {"sequence": sequence, "document": json.dumps({"data_center": datacenter})}


def event_row(number: int, writing: int | None = None, oldest: int | None = None) -> dict[str, Any]:
    event = EVENTS[number]
    document = json.dumps(to_document(event))
    rollout = {"writing": writing, "oldest": oldest}
    return {"sequence": event.sequence, "document": document} | rollout


async def test_a_history_is_its_events_and_the_rollout(session: ScriptedSession) -> None:
    one = CassandraHistory(session, QUEUE)
    only_rollout = {"sequence": None, "document": None, "writing": 2, "oldest": 1}
    session.answer(
        history.SELECT,
        [],
        [event_row(0), event_row(1)],
        [event_row(0, 2, 1), event_row(1, 2, 1)],
        [only_rollout],
    )

    found = [await one.load() for _ in range(4)]

    assert [each.events for each in found] == [(), EVENTS, EVENTS, ()]
    rollout = Rollout(writing=2, oldest=1)
    assert [each.rollout for each in found] == [None, None, rollout, rollout]
    assert len(session.values_of(statements.SELECT_KEYSPACE_EVENTS)) == 1, (
        "every process stays at home"
    )


async def test_the_queues_of_a_session_ask_for_its_home_once_in_some_seconds(
    session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Home(session)

    async def load_all() -> None:
        for queue in ("mail.a", "mail.b", "mail.c"):
            await CassandraHistory(session, queue, shared).load()

    await load_all()
    assert len(session.values_of(statements.SELECT_KEYSPACE_EVENTS)) == 1
    monkeypatch.setattr(history, "CHECKED", timedelta(0))
    await load_all()

    assert len(session.values_of(statements.SELECT_KEYSPACE_EVENTS)) == 1 + 3


def test_the_home_is_asked_for_between_two_readings_of_a_configuration() -> None:
    assert history.CHECKED < READ_LEASE / REFRESHES_PER_LEASE


async def test_an_event_that_cannot_be_read_is_named(session: ScriptedSession) -> None:
    session.answer(history.SELECT, [event_row(0) | {"document": "{"}])

    with pytest.raises(ViewRefused, match="event 1 of the configuration history of mail"):
        await CassandraHistory(session, QUEUE).load()


async def test_an_event_may_be_appended_again_and_no_other_in_its_place(
    session: ScriptedSession,
) -> None:
    one = CassandraHistory(session, QUEUE)
    refused = {"[applied]": False} | event_row(0)
    session.answer(history.APPEND, APPLIED, [refused], [refused | event_row(1)])

    await one.append(EVENTS[0])
    await one.append(EVENTS[0])
    with pytest.raises(ConfigurationConflict, match="another event 1 already"):
        await one.append(EVENTS[0])

    document = to_document(EVENTS[0])
    wanted = (QUEUE, 1, 1, document["type"], EVENTS[0].at, json.dumps(document))
    assert session.values_of(history.APPEND) == [wanted] * 3


async def test_a_rollout_moves_from_where_it_was(session: ScriptedSession) -> None:
    one = CassandraHistory(session, QUEUE)
    session.answer(history.ADVANCE, APPLIED, [{"[applied]": False}])
    before, after = Rollout(1, 1), Rollout(2, 1)

    assert await one.advance(None, before) is True
    assert await one.advance(before, after) is False
    assert session.values_of(history.ADVANCE) == [
        (1, 1, QUEUE, None, None),
        (2, 1, QUEUE, 1, 1),
    ]


async def test_a_history_is_erased_from_its_end_after_the_rollout(
    session: ScriptedSession,
) -> None:
    session.answer(history.SELECT, [event_row(0, 2, 1), event_row(1, 2, 1)], [event_row(0)])
    session.answer(history.ADVANCE, APPLIED)

    await CassandraHistory(session, QUEUE).erase()

    assert session.sent[1:] == [
        (history.ADVANCE, (None, None, QUEUE, 2, 1)),
        (history.DELETE, (QUEUE, 2)),
        (history.DELETE, (QUEUE, 1)),
    ]
    session.sent.clear()
    await CassandraHistory(session, QUEUE).erase()
    assert [statement for statement, _ in session.sent] == [history.SELECT, history.DELETE]


async def test_the_first_process_makes_its_data_center_the_home(session: ScriptedSession) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [])
    session.answer(statements.APPEND_KEYSPACE_EVENT, APPLIED)

    await Home(session).check()

    [(key, sequence, kind, _, document)] = session.values_of(statements.APPEND_KEYSPACE_EVENT)
    assert (key, sequence, kind) == ("@home", 1, "HomeChosen")
    assert json.loads(document) == {"data_center": "dc1"}


async def test_a_process_that_lost_the_race_goes_by_the_home_that_stands(
    session: ScriptedSession,
) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [])
    lost = {"[applied]": False}
    session.answer(
        statements.APPEND_KEYSPACE_EVENT, [lost | home_row("dc1")], [lost | home_row("dc2")]
    )

    await Home(session).check()
    with pytest.raises(ViewRefused, match="used in the data center 'dc2'") as refused:
        await Home(session).check()
    assert "set the local data center to dc2" in str(refused.value.hint)


REPLICATED: list[dict[str, Any]] = [{"replication": {"class": "N", "dc1": "3", "dc2": "3"}}]


async def test_another_home_refuses_while_it_has_copies(session: ScriptedSession) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [home_row("dc1"), home_row("dc2", 4)])
    session.answer(statements.APPEND_KEYSPACE_EVENT, APPLIED)
    session.schema["keyspaces"] = REPLICATED

    with pytest.raises(ViewRefused):
        await Home(session).check()
    assert session.values_of(statements.APPEND_KEYSPACE_EVENT) == []

    session.schema["keyspaces"] = [{"replication": {"class": "N", "dc1": "3"}}]
    await Home(session).check()
    assert session.values_of(statements.APPEND_KEYSPACE_EVENT)[0][1] == 5


async def test_a_home_that_was_refused_is_asked_for_again(session: ScriptedSession) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [home_row("dc2")], [home_row("dc1")])
    session.schema["keyspaces"] = REPLICATED
    shared = Home(session)

    with pytest.raises(ViewRefused, match="dc2"):
        await CassandraHistory(session, QUEUE, shared).load()
    await CassandraHistory(session, QUEUE, shared).load()


@pytest.mark.parametrize("document", ["{", "{}", "[]", None])
async def test_a_home_that_cannot_be_read_is_refused(
    session: ScriptedSession, document: str | None
) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [{"sequence": 1, "document": document}])

    with pytest.raises(ViewRefused, match="home of the keyspace cannot be read"):
        await Home(session).check()


PLACE = {"queue": QUEUE, "slice_start": NOW, "bucket_id": 0}
US = 1_000_000_000
IDS = [UUID(int=each) for each in range(AT_ONCE + 1)]
INCARNATION = UUID(int=77)


async def test_a_queue_is_erased_rows_before_marks_and_what_is_left_one_by_one(
    session: ScriptedSession,
) -> None:
    for each in (statements.SELECT_OCCUPIED, mark_statements.SELECT_OCCUPIED_MARKS):
        session.answer(each, [PLACE])
    session.answer(statements.SELECT_MAILS, [{"enqueue_id": IDS[0], "mail_id": IDS[1]}])
    session.answer(statements.SELECT_RECORDED, [{"mail_id": IDS[1]}])
    session.answer(statements.SELECT_MONTHS, [{"month": "2026-01"}])
    session.answer(statements.SELECT_ROW_IDS, [{"enqueue_id": each} for each in IDS])
    session.answer(mark_statements.SELECT_MARK_IDS, [{"enqueue_id": IDS[2]}])
    for each in (statements.SELECT_LIMITS, statements.SELECT_OWNERSHIP):
        session.answer(each, [{"incarnation": INCARNATION}])

    assert [each async for each in erase_slices(session, QUEUE, [NOW], 1)] == [1, 0]
    assert [each async for each in erase_dead_letters(session, QUEUE)] == [0]
    await erase_rest(session, QUEUE)

    key = (QUEUE, NOW, 0)
    shards = [some for _, some in session.values_of(ERASE_SHARDS)]
    assert sorted(each for some in shards for each in some) == list(range(SHARDS))
    assert deleted(session) == [
        (statements.DELETE_RECORDS, (QUEUE, IDS[1])),
        (statements.DELETE_ROWS_THROUGH, (US - APART_US, *key, IDS[0])),
        (statements.DELETE_ROWS, (US - APART_US, *key)),
        *((statements.DELETE_ROW, (US + APART_US, *key, each)) for each in IDS),
        (mark_statements.ERASE_MARKS, (US - APART_US, *key)),
        (mark_statements.DELETE_MARK, (US + APART_US, *key, IDS[2])),
        (mark_statements.DELETE_VERSION, key),
        (statements.DELETE_DEAD_LETTERS, (US - APART_US, QUEUE, "2026-01")),
        (statements.DELETE_DEAD_LETTERS, (US - APART_US, QUEUE, "2026-01 gone")),
        (statements.DELETE_SLICES, (QUEUE,)),
        (statements.DELETE_MONTHS, (US - APART_US, QUEUE)),
        (statements.FORGET_LIMITS, (QUEUE, INCARNATION)),
        *((ERASE_SHARED_STATE, (QUEUE, topic.value)) for topic in Topic),
        *((ERASE_SHARDS, (QUEUE, some)) for some in shards),
        (statements.FORGET_OWNERSHIP, (QUEUE, INCARNATION)),
    ]
    assert 2 * AGREEING / timedelta(microseconds=1) == APART_US


async def test_many_dead_letters_are_erased_in_steps_with_the_records_of_their_mails(
    session: ScriptedSession,
) -> None:
    """An erasure that stops goes on behind the last step. One dead letter is of no mail."""
    many = [UUID(int=number) for number in range(DEAD_LETTERS + 1)]
    mails = [None, *(UUID(int=10_000 + number) for number in range(DEAD_LETTERS))]
    dead_letters = [
        {"enqueue_id": each, "mail_id": mail} for each, mail in zip(many, mails, strict=True)
    ]
    session.answer(statements.SELECT_MONTHS, [{"month": "2026-01"}])
    session.answer(statements.SELECT_DEAD_LETTERS, dead_letters)
    session.answer(statements.SELECT_RECORDED, [{"mail_id": mails[1]}], [])

    assert [each async for each in erase_dead_letters(session, QUEUE)] == [DEAD_LETTERS, 1]

    asked = [values[1] for values in session.values_of(statements.SELECT_RECORDED)]
    assert [len(each) for each in asked] == [MAILS] * 9 + [MAILS - 1, 1]
    assert [mail for each in asked for mail in each] == mails[1:]
    assert deleted(session)[:2] == [
        (statements.DELETE_RECORDS, (QUEUE, mails[1])),
        (
            statements.DELETE_DEAD_LETTERS_THROUGH,
            (US - APART_US, QUEUE, "2026-01", many[DEAD_LETTERS - 1]),
        ),
    ]


def deleted(session: ScriptedSession) -> list[tuple[Statement, tuple[Any, ...]]]:
    """The deletions among the requests, in their order."""
    return [each for each in session.sent if each[0].cql.startswith(("DELETE", "UPDATE"))]
