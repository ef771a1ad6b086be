"""Events of an operation push out no others, keep it back for no longer than they must, and cost
nothing where no stream gets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import cast
from uuid import UUID

import pytest

from postroad.domain.delivery.events import ChangedMail, EventKind, EventRule, StreamEvent
from postroad.domain.mail.mail import Envelope
from postroad.errors import BrokerUnavailable, StreamRefused
from postroad.event_log import operations
from postroad.event_log.operations import OperationEvents, operation_events_of
from postroad.ports.delivery import SharedState, Topic
from postroad.ports.events import EventSpool
from postroad.ports.mail_queue import Operation
from support.memory.clock import ManualClock

HOUR = timedelta(hours=1)
CRM, BUS = EventRule("crm"), EventRule("bus", frozenset({EventKind.REMOVED}))


class PassingClock(ManualClock):
    """Time passes when it is waited for, and at once."""

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(0)
        self.jump(duration)


class ListSpool:
    """Numbers of events by stream; `waiting` grows, unless a sender takes `sent` at each look."""

    def __init__(self, **waiting: int) -> None:
        self.waiting, self.sent = dict(waiting), 0
        self.problems: list[Exception] = []
        self.portions: list[int] = []

    async def append(self, events: Sequence[StreamEvent]) -> None:
        if self.problems:
            raise self.problems.pop(0)
        self.portions.append(len(events))
        for stream, *_ in events:
            self.waiting[stream] = self.waiting.get(stream, 0) + 1

    async def is_beyond(self, stream: str, most: int) -> bool:
        is_beyond = self.waiting.get(stream, 0) > most
        self.waiting[stream] = max(0, self.waiting.get(stream, 0) - self.sent)
        return is_beyond


async def mails(count: int, recipients: int = 1) -> AsyncIterator[ChangedMail]:
    for number in range(count):
        to = tuple(f"{each}@x.example" for each in range(recipients))
        yield ChangedMail(UUID(int=number + 1), UUID(int=number + 1), Envelope(None, to), 1)


async def changed(
    spool: ListSpool, *rules: EventRule, found: AsyncIterator[ChangedMail], clock: PassingClock
) -> int:
    made = OperationEvents("remove", "mail.out", rules, cast("EventSpool", spool), clock)
    return len([each async for each in made.over(found, lambda each: each)])


async def test_events_are_kept_by_the_hundred_mails_and_a_thousand_at_most() -> None:
    spool, clock = ListSpool(), PassingClock()

    assert await changed(spool, CRM, found=mails(250), clock=clock) == 250
    assert spool.portions == [100, 100, 50]
    spool.portions.clear()
    assert await changed(spool, CRM, found=mails(3, recipients=800), clock=clock) == 3
    assert spool.portions == [1000, 600, 800]


async def test_a_sender_that_makes_room_gets_all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_OF_OPERATIONS", 150)
    spool, clock = ListSpool(), PassingClock()
    spool.sent = 10

    assert await changed(spool, CRM, found=mails(1000), clock=clock) == 1000
    assert sum(spool.portions) == 1000
    assert max(spool.waiting.values()) <= 150 + 100


async def test_a_stream_that_stays_full_gets_no_more_and_the_mails_are_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "MAX_OF_OPERATIONS", 150)
    spool, clock = ListSpool(bus=200), PassingClock()
    began = clock.elapsed()

    assert await changed(spool, CRM, BUS, found=mails(150), clock=clock) == 150

    assert spool.waiting == {"bus": 200, "crm": 150}
    assert clock.elapsed() - began == operations.ROOM_WAIT, "waited for once"


async def test_a_stream_that_is_refused_keeps_back_no_mail_and_no_other_stream() -> None:
    spool, clock = ListSpool(), PassingClock()
    spool.problems = [StreamRefused("bus", "403")]

    assert await changed(spool, CRM, BUS, found=mails(150), clock=clock) == 150
    assert spool.waiting == {"crm": 150, "bus": 0}


async def test_no_mail_is_changed_before_its_events_can_be_kept() -> None:
    spool, clock = ListSpool(), PassingClock()
    spool.problems = [BrokerUnavailable("away")]
    made = OperationEvents("remove", "mail.out", [CRM], cast("EventSpool", spool), clock)

    over = made.over(mails(150), lambda each: each)
    with pytest.raises(BrokerUnavailable):
        await anext(over)


async def test_a_mail_waits_for_others_for_a_moment_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "PORTION_SECONDS", 0.01)
    never = asyncio.Event()

    async def one_and_then_none() -> AsyncIterator[ChangedMail]:
        async for each in mails(1):
            yield each
        await never.wait()

    made = OperationEvents(
        "remove", "mail.out", [CRM], cast("EventSpool", ListSpool()), PassingClock()
    )
    over = made.over(one_and_then_none(), lambda each: each)
    async with asyncio.timeout(30):
        assert (await anext(over)).enqueue_id == UUID(int=1)
    await over.aclose()


class Entries:
    """A shared state that counts its readings."""

    def __init__(self, *rules: EventRule, **others: str) -> None:
        self.found = {each.name: each.text() for each in rules} | others
        self.read = 0

    async def published(self, topic: Topic) -> dict[str, str]:
        assert topic is Topic.STREAMS
        self.read += 1
        return self.found


@pytest.mark.parametrize(
    ("operation", "entries", "is_made"),
    [
        (Operation.REMOVE, Entries(), False),
        (Operation.REMOVE, Entries(CRM), True),
        (Operation.REMOVE, Entries(BUS, broken="{"), True),
        (Operation.HOLD, Entries(BUS), False),
        (Operation.EXPIRE, Entries(CRM), True),
    ],
)
async def test_events_are_made_where_a_stream_gets_them(
    operation: Operation, entries: Entries, is_made: bool
) -> None:
    spool, shared = cast("EventSpool", ListSpool()), cast("SharedState", entries)

    made = await operation_events_of(operation, "mail.out", shared, spool, PassingClock())

    assert (made is not None, entries.read) == (is_made, 1)


@pytest.mark.parametrize("operation", [Operation.RELEASE, Operation.FLUSH, Operation.DISCARD, ""])
async def test_an_operation_without_events_reads_nothing(operation: str) -> None:
    entries = Entries(CRM)
    spool, shared = cast("EventSpool", ListSpool()), cast("SharedState", entries)

    assert await operation_events_of(operation, "mail.out", shared, spool, PassingClock()) is None
    assert entries.read == 0
