"""Events about mail that the intake accepted: durable before its reply, and no reason to refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.events import AcceptedMail, EventAddresses, EventRule, StreamEvent
from postroad.domain.mail.mail import EVENT_KEY, Envelope, Origin, Outcome
from postroad.domain.smtp.replies import Reply
from postroad.errors import BrokerUnavailable, StoreFull
from postroad.event_log import spooled as events_module
from postroad.event_log.spooled import SpooledEvents
from postroad.intake.clients import Rights
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.reception import OfferedMail, Reception
from postroad.ports.events import EventSpool
from postroad.ports.mail_queue import MailQueue
from support.jumping_loop import jumping
from support.recording_queue import RecordingQueue

OFFERED = OfferedMail("a@x.example", ("b@one.example", "c@two.example"))
CONTENT = b"Message-ID: <1@x.example>\r\n\r\nx\r\n.\r\n"
ORIGIN = Origin("client.example", "192.0.2.9", "ESMTPS")


class ListSpool:
    def __init__(self, queue: RecordingQueue, *problems: Exception) -> None:
        self.queue, self.problems = queue, list(problems)
        self.found: list[tuple[int, dict[str, Any]]] = []

    async def append(self, events: Sequence[StreamEvent]) -> None:
        if self.problems:
            raise self.problems.pop(0)
        self.found += [(len(self.queue.mails), json.loads(body)) for _, _, body in events]


async def receive(
    queue: RecordingQueue, spool: ListSpool, rule: EventRule, content: bytes = CONTENT
) -> tuple[Reply, SpooledEvents]:
    events = SpooledEvents(cast("EventSpool", spool), [rule], "test.recording")
    context = IntakeContext(
        cast("MailQueue", queue),
        Offer("intake.example", 2**20),
        MachineClock(),
        SystemRandomness(),
        events=events,
    )
    reception = Reception(context, OFFERED, ORIGIN, Rights(may_relay=True))
    assert reception.buffer.feed(content) == b""
    try:
        return await reception.enqueue(), events
    finally:
        reception.buffer.discard()


PLAIN = EventRule("all", addresses=EventAddresses.PLAIN)


@pytest.mark.parametrize("size", [0, 300_000])
async def test_a_mail_has_its_events_once_it_is_queued_and_before_its_reply(
    tmp_path: Path, size: int
) -> None:
    queue = RecordingQueue()
    spool = ListSpool(queue)
    lines = (b"y" * 70 + b"\r\n") * (size // 72)
    content = CONTENT.replace(b"x\r\n.", b"x\r\n" + lines + b".")

    reply, _ = await receive(queue, spool, PLAIN, content)

    assert reply.code == 250
    assert [mails for mails, _ in spool.found] == [1, 1]
    first = spool.found[0][1]
    assert first["type"] == "Accepted"
    expected = {
        "queue": "test.recording",
        "recipient": "b@one.example",
        "sender": "a@x.example",
        "client": "192.0.2.9",
        "protocol": "ESMTPS",
        "message_id": "<1@x.example>",
        "name": queue.mails[0][0].name,
    }
    assert expected.items() <= first["data"].items()
    key = queue.mails[0][0].attributes[EVENT_KEY]
    assert len(key) == 32
    assert key not in json.dumps(spool.found)


async def test_a_mail_that_is_refused_has_no_event() -> None:
    queue = RecordingQueue()
    queue.error = StoreFull("full")
    spool = ListSpool(queue)

    reply, _ = await receive(queue, spool, PLAIN)

    assert (reply.code, spool.found) == (452, [])


async def test_a_mail_is_accepted_although_its_events_cannot_be_kept_yet() -> None:
    queue = RecordingQueue()
    spool = ListSpool(queue, BrokerUnavailable("away"))

    reply, events = await receive(queue, spool, PLAIN)
    assert (reply.code, spool.found) == (250, [])

    await events.flush()
    assert [each["type"] for _, each in spool.found] == ["Accepted", "Accepted"]


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ENVELOPE = Envelope("a@x.example", OFFERED.recipients, "4f2a", origin=ORIGIN)
MAIL = AcceptedMail("mail.out", UUID(int=1), ENVELOPE, 700, NOON, None)
ATTEMPT = Attempted(
    "mail.out", UUID(int=2), UUID(int=1), 1, "a@x.example", 700, NOON, NOON, seconds=1.5
)


class HeldSpool(ListSpool):
    """Keeps events once it is released, also when its caller no longer waits; as a thread does."""

    def __init__(self, queue: RecordingQueue) -> None:
        super().__init__(queue)
        self.released = asyncio.Event()

    async def append(self, events: Sequence[StreamEvent]) -> None:
        async def kept() -> None:
            await self.released.wait()
            await super(HeldSpool, self).append(events)

        await asyncio.shield(asyncio.create_task(kept()))


@jumping
async def test_events_that_a_slow_spool_keeps_later_are_kept_once() -> None:
    queue = RecordingQueue()
    spool = HeldSpool(queue)
    events = SpooledEvents(cast("EventSpool", spool), [PLAIN], "test.recording")
    events.note_accepted(MAIL)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await events.flush()

    spool.released.set()
    await events.flush()

    assert len(spool.found) == 2


async def test_beyond_so_many_events_that_no_client_waits_for_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events_module, "MAX_LEFT", 5)
    monkeypatch.setattr(events_module, "MAX_APPENDED", 3)
    queue = RecordingQueue()
    spool = ListSpool(queue, *(StoreFull("full") for _ in range(6)))
    events = SpooledEvents(cast("EventSpool", spool), [PLAIN], "mail.out")
    labels = {"namespace": "mail", "name": "out", "stream": "all", "result": "full"}
    before = REGISTRY.get_sample_value("postroad_events_total", labels) or 0
    events.note(ATTEMPT, MAIL.envelope, {"b@one.example": Outcome.delivered("250 ok")})
    for each in range(6):
        events.note_accepted(replace(MAIL, message_id=str(each)))
        with pytest.raises(StoreFull):
            await events.flush()

    await events.flush()

    found = [(each["type"], each["data"].get("message_id")) for _, each in spool.found]
    accepted = [("Accepted", each) for each in ("3", "4", "4", "5", "5")]
    assert found == [("Delivered", None), *accepted]
    assert REGISTRY.get_sample_value("postroad_events_total", labels) == before + 7
    assert caplog.messages.count("events dropped") == 1


async def test_events_that_clients_wait_for_are_not_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "MAX_LEFT", 5)
    queue = RecordingQueue()
    spool = ListSpool(queue)
    events = SpooledEvents(cast("EventSpool", spool), [PLAIN], "test.recording")
    for _ in range(6):
        events.note_accepted(MAIL)

    await events.flush()

    assert len(spool.found) == 12
