"""Events about mail that the intake accepted: durable before its reply, and no reason to refuse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap.events import SpooledEvents
from postroad.domain.delivery.events import EventAddresses, EventRule, StreamEvent
from postroad.domain.mail.mail import Origin
from postroad.domain.smtp.replies import Reply
from postroad.errors import BrokerUnavailable, StoreFull
from postroad.intake.clients import Rights
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.reception import OfferedMail, Reception
from postroad.ports.events import EventSpool
from postroad.ports.mail_queue import MailQueue
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
    events = SpooledEvents(cast("EventSpool", spool), [rule])
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
