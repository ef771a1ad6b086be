"""Exceptions for old programs, by network: bare line ends and early input."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from postroad.domain.mail.shapes import MAX_RECEIVED_FIELDS
from postroad.domain.values.networks import Networks
from postroad.intake.clients import ClientLimits, Rules
from postroad.intake.dialogue import MAX_ERRORS
from postroad.telemetry.metrics import of_queue
from support.intakes import an_intake
from support.recording_queue import RecordingQueue

OLD, OTHER, OUTSIDE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
RULES = Rules(
    relay_from=Networks.of((OLD, OTHER)),
    early_input_from=Networks.of((OLD,)),
    normalise_from=Networks.of((OLD,)),
)
ENVELOPE = b"MAIL FROM:<>\r\nRCPT TO:<b@dest.example>\r\nDATA\r\n"


async def say(port: int, *segments: bytes, address: str = OTHER) -> list[str]:
    """Send each segment after a reply to the last line of the one before. Return all replies until
    the intake closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    replies = []
    for segment in segments:
        replies.append((await reader.readline()).decode())
        writer.write(segment)
        for _ in range(segment.count(b"\r\n") - 1 if segment == ENVELOPE else 0):
            replies.append((await reader.readline()).decode())
    replies += (await reader.read()).decode().splitlines()
    writer.close()
    return [each.rstrip() for each in replies]


async def hand_in(port: int, content: bytes, *, address: str) -> str:
    """Hand in a mail. Return the reply to it."""
    said = (b"HELO client.example\r\n", ENVELOPE, content + b"\r\n.\r\n", b"QUIT\r\n")
    return (await say(port, *said, address=address))[-2]


def content_of(queue: RecordingQueue) -> bytes:
    """The content of the only mail, without the three lines of the field that the intake added."""
    [(_, content)] = queue.mails
    return content.split(b"\r\n", 3)[3]


@pytest.mark.parametrize(
    "end",
    [
        b"\n.\n",
        b"\n.\r\n",
        b"\r.\r",
        b"\r\n.\n",
        b"\r\n.\r",
        b"\r.\r\n",
        b"\n\n.\r\n",
        b"\n\r\n.\n",
    ],
    ids=repr,
)
async def test_no_mail_is_smuggled_from_either_network(end: bytes) -> None:
    inner = b"MAIL FROM:<x@evil.example>\r\nRCPT TO:<c@dest.example>\r\nDATA\r\nforged"
    async with an_intake(RULES) as (queue, port):
        refused = await hand_in(port, b"outer" + end + inner, address=OTHER)
        assert queue.mails == []
        taken = await hand_in(port, b"outer" + end + inner, address=OLD)

    assert refused == "554 5.6.0 the mail holds a bare CR or LF"
    assert taken.startswith("250 2.0.0 queued")
    content = content_of(queue)
    assert b"DATA\r\nforged" in content, "it is text of the one mail"
    lines = content.replace(b"\r\n", b"")
    assert b"\r" not in lines
    assert b"\n" not in lines


async def test_what_is_counted_of_a_mail_is_what_is_stored() -> None:
    async with an_intake(RULES, max_size_bytes=70_000) as (queue, port):
        too_large = await hand_in(port, b"\n" * 40_000, address=OLD)
        loop = await hand_in(port, b"Received: x\n" * MAX_RECEIVED_FIELDS + b"\nbody", address=OLD)

    assert too_large.startswith("552 5.3.4")
    assert loop.startswith("554 5.4.6")
    assert queue.mails == []


DIALOGUE = b"HELO x\r\n" + ENVELOPE + b"body\r\n.\r\nQUIT\r\n"


async def test_early_input_is_a_mail_from_exempt_networks_and_the_end_for_others() -> None:
    async with an_intake(RULES) as (queue, port):
        cut_off = await say(port, DIALOGUE, address=OTHER)
        assert queue.mails == []
        exempt = await say(port, DIALOGUE, address=OLD)

    assert [each[:3] for each in cut_off] == ["220", "554"]
    assert [each[:3] for each in exempt] == ["220", "250", "250", "250", "354", "250", "221"]
    assert content_of(queue) == b"body\r\n"


async def test_a_mail_that_comes_early_behind_a_refused_data_is_no_commands() -> None:
    inner = b"RCPT TO:<c@dest.example>\r\nDATA\r\nforged\r\n.\r\n"
    early = b"HELO x\r\nMAIL FROM:<>\r\nRCPT TO:<no>\r\nDATA\r\n"
    async with an_intake(RULES) as (queue, port):
        replies = await say(port, early + inner, address=OLD)

    assert [each[:3] for each in replies] == ["220", "250", "250", "501", "554"]
    assert replies[-1].startswith("554 5.5.0 ")
    assert queue.mails == []


async def test_an_exempt_network_may_not_speak_http() -> None:
    async with an_intake(RULES) as (_, port):
        replies = await say(port, b"POST / HTTP/1.1\r\n\r\n" + DIALOGUE, address=OLD)

    assert replies[1:] == ["421 4.7.0 this is a mail server"]


def counted(queue: RecordingQueue) -> dict[str, float]:
    """Return the clients that were refused, by reason."""
    [metric] = [each for each in REGISTRY.collect() if each.name == "postroad_refused_clients"]
    return {
        each.labels["reason"]: each.value
        for each in metric.samples
        if each.labels["name"] == of_queue(queue.name)[1] and each.name.endswith("_total")
    }


async def test_refused_clients_are_counted_by_reason_each_connection_once() -> None:
    recipients = b"".join(b"RCPT TO:<%d@dest.example>\r\n" % number for number in range(5))
    outside = (b"HELO x\r\n", b"MAIL FROM:<>\r\n" + recipients + b"QUIT\r\n")
    async with an_intake(RULES, client_limits=ClientLimits(mails_per_minute=1)) as (queue, port):
        before = counted(queue)
        await say(port, *outside, address=OUTSIDE)
        await say(port, *outside, address="127.0.0.4")
        await say(port, DIALOGUE)
        await say(port, b"GET / HTTP/1.1\r\n")
        await say(port, b"NONSENSE\r\n" * MAX_ERRORS)
        await hand_in(port, b"x", address=OLD)
        await say(port, b"HELO x\r\n", b"MAIL FROM:<>\r\n", address=OLD)
        after = counted(queue)

    grown = {reason: count - before.get(reason, 0) for reason, count in after.items()}
    assert {reason: count for reason, count in grown.items() if count} == {
        "relay": 2,
        "early": 1,
        "http": 1,
        "errors": 1,
        "mails": 1,
    }


async def test_a_client_beyond_its_share_of_sessions_is_counted() -> None:
    async with an_intake(RULES, client_limits=ClientLimits(sessions=1)) as (queue, port):
        before = counted(queue).get("sessions", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(OLD, 0))
        assert (await reader.readline()).startswith(b"220 ")
        refused = await say(port, address=OLD)
        writer.transport.abort()

    assert refused == ["421 4.7.0 too many sessions from your address, come again"]
    assert counted(queue)["sessions"] == before + 1
