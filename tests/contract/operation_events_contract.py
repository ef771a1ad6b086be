"""What every engine promises of the events of an administrator's operations on waiting mails."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from contract.queue_harness import Consumer, Harness, plain_mail
from postroad.domain.delivery.events import EventAddresses, EventKind, EventRule
from postroad.domain.mail.mail import TENANT
from postroad.domain.queues.selection import Selector
from postroad.event_log import operations
from postroad.event_log.spooled import SpooledEvents
from postroad.ports.delivery import Topic
from postroad.ports.mail_queue import MailQueue

ALL = Selector.all()
PLAIN = EventRule("crm", addresses=EventAddresses.PLAIN)


async def stream_to(queue: MailQueue, *rules: EventRule) -> None:
    """Let programs outside get events, as a worker publishes it."""
    assert queue.shared_state is not None
    for each in rules:
        await queue.shared_state.publish(Topic.STREAMS, each.name, each.text(), timedelta(hours=1))


async def events_of(queue: MailQueue, count: int, stream: str = "crm") -> list[dict[str, Any]]:
    """Take so many events, and see that no other one waits."""
    assert queue.event_spool is not None
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(60), aclosing(queue.event_spool.batches(stream)) as batches:
        while len(found) < count:
            for each in await anext(batches):
                found.append(json.loads(each.body))
                await each.done()
    assert len(found) == count
    assert not await queue.event_spool.is_beyond(stream, 0)
    return found


def types(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((each["type"], each["data"]["recipient"]) for each in found)


class OperationEventsContract:
    """Events of hold, remove and expire to programs outside."""

    @pytest.fixture
    async def queue(self, harness: Harness) -> MailQueue:
        return await harness.open()

    async def test_mails_held_removed_and_given_up_have_an_event_for_each_recipient(
        self, queue: MailQueue
    ) -> None:
        await stream_to(queue, PLAIN)
        of_two = plain_mail("one", recipients=("a@x.example", "b@y.example"))
        first = await queue.enqueue(replace(of_two, attributes={TENANT: "acme"}))
        for name in ("two", "three"):
            await queue.enqueue(plain_mail(name, recipients=(f"{name}@x.example",)))

        (view,) = [each async for each in queue.browse(Selector(name="one"))]
        assert await queue.hold(Selector(name="one")) == 1
        held = await events_of(queue, 2)
        assert await queue.remove(Selector(name="two")) == 1
        assert await queue.expire(Selector(name="three")) == 1
        others = await events_of(queue, 2)

        assert types(held) == [("Held", "a@x.example"), ("Held", "b@y.example")]
        assert types(others) == [("Failed", "three@x.example"), ("Removed", "two@x.example")]
        data = held[0]["data"]
        assert (data["enqueue_id"], data["mail_id"]) == (str(first), str(view.mail_id))
        assert (data["name"], data["tenant"], data["domain"]) == ("one", "acme", "x.example")
        assert data["size_bytes"] == len(of_two.content)  # type: ignore[arg-type]
        assert [each["data"].get("given_up") for each in others] == [None, True]

    async def test_what_an_operation_does_not_change_has_no_event(self, queue: MailQueue) -> None:
        await queue.enqueue(plain_mail("held", recipients=("a@x.example",)))
        await queue.hold(ALL)
        await queue.enqueue(plain_mail("new", recipients=("b@x.example",)))
        await stream_to(queue, PLAIN)

        assert await queue.hold(ALL) == 1
        assert await queue.release(ALL) == 2
        assert await queue.flush(ALL) == 0
        assert types(await events_of(queue, 1)) == [("Held", "b@x.example")]
        assert await queue.remove(Selector(name="none")) == 0
        assert await queue.purge() == 2
        assert await queue.event_spool.is_beyond("crm", 0) is False  # type: ignore[union-attr]

    async def test_a_stream_gets_the_kinds_that_it_has(self, queue: MailQueue) -> None:
        held = replace(PLAIN, kinds=frozenset({EventKind.HELD}))
        outcomes = replace(PLAIN, name="bus", kinds=frozenset({EventKind.DELIVERED}))
        await stream_to(queue, held, outcomes)
        await queue.enqueue(plain_mail(recipients=("a@x.example",)))

        await queue.hold(ALL)
        await queue.remove(ALL)

        assert types(await events_of(queue, 1)) == [("Held", "a@x.example")]
        assert await queue.event_spool.is_beyond("bus", 0) is False  # type: ignore[union-attr]

    async def test_a_mail_that_waits_for_its_retry_is_removed_with_an_event_of_its_entry(
        self, queue: MailQueue, harness: Harness
    ) -> None:
        await stream_to(queue, PLAIN)
        await queue.enqueue(plain_mail(recipients=("a@x.example",)))
        consumer = Consumer(harness, queue)
        item = await consumer.next()
        await item.retry(timedelta(minutes=1), error="451 later")
        await consumer.close()
        (view,) = [each async for each in queue.browse()]

        assert await queue.remove(ALL) == 1

        (event,) = await events_of(queue, 1)
        assert event["data"]["enqueue_id"] == str(view.enqueue_id)

    async def test_events_are_made_in_portions_and_before_the_mails_are_changed(
        self, queue: MailQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "PORTION", 2)
        await stream_to(queue, PLAIN)
        for number in range(5):
            await queue.enqueue(plain_mail(recipients=(f"{number}@x.example",)))
        left: list[int] = []
        flush = SpooledEvents.flush

        async def noted(events: SpooledEvents) -> None:
            await flush(events)
            left.append(len([each async for each in queue.browse()]))

        monkeypatch.setattr(SpooledEvents, "flush", noted)

        assert await queue.remove(ALL) == 5
        assert left[0] == 5
        assert len(left) == 3
        assert len(await events_of(queue, 5)) == 5
