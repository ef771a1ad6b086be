"""Events over HTTP to a receiver that verifies signatures by code of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.adapters.programs import event_webhook
from postroad.adapters.programs.event_webhook import EventWebhook
from postroad.errors import InvalidSettings
from postroad.ports.events import SinkReply, SinkVerdict
from support.event_receiver import SECRET, EventReceiver, verified
from support.webhook_server import AnsweringUnread

BODY = json.dumps({"id": "e1", "type": "Delivered", "data": {}}).encode()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return file


@asynccontextmanager
async def a_sink(url: str, secret: Path) -> AsyncIterator[EventWebhook]:
    sink = EventWebhook(url, secret, None, MachineClock())
    try:
        yield sink
    finally:
        await sink.close()


async def test_an_event_arrives_signed(secret: Path) -> None:
    async with EventReceiver() as receiver, a_sink(receiver.url, secret) as sink:
        assert await sink.send("e1", BODY) == SinkReply(SinkVerdict.TAKEN, "200")

    assert receiver.events == [json.loads(BODY)]


async def test_while_a_secret_is_replaced_each_of_both_verifies(secret: Path) -> None:
    other = "whsec_" + base64.b64encode(b"o" * 32).decode()
    secret.write_text(f"{other}\n{SECRET}\n")
    seen = []

    async with EventReceiver() as receiver, a_sink(receiver.url, secret) as sink:
        await sink.send("e1", BODY)
        secret.write_text(SECRET)
        await sink.send("e1", BODY)
        seen += receiver.events
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, SinkVerdict.TAKEN),
        (204, SinkVerdict.TAKEN),
        (302, SinkVerdict.LATER),
        (308, SinkVerdict.LATER),
        (400, SinkVerdict.REFUSED),
        (401, SinkVerdict.LATER),
        (404, SinkVerdict.LATER),
        (410, SinkVerdict.LATER),
        (413, SinkVerdict.REFUSED),
        (422, SinkVerdict.REFUSED),
        (429, SinkVerdict.LATER),
        (500, SinkVerdict.LATER),
        (503, SinkVerdict.LATER),
    ],
)
async def test_a_status_decides_whether_an_event_comes_again(
    secret: Path, status: int, verdict: SinkVerdict
) -> None:
    async with EventReceiver(lambda _: status) as receiver, a_sink(receiver.url, secret) as sink:
        receiver.headers = {"Location": f"{receiver.url}/elsewhere"}
        reply = await sink.send("e1", BODY)

    assert (reply.verdict, reply.reason) == (verdict, str(status))
    assert len(receiver.events) + len(receiver.refused) == 1
    assert bool(reply.pause) is (status == 410)


async def test_a_sink_that_asks_for_a_pause_gets_it(secret: Path) -> None:
    async with EventReceiver(lambda _: 503) as receiver, a_sink(receiver.url, secret) as sink:
        receiver.headers = {"Retry-After": "120"}
        reply = await sink.send("e1", BODY)

    assert reply.pause == timedelta(minutes=2)


@pytest.mark.parametrize("status", [200, 503])
async def test_a_pause_that_cannot_be_read_is_none(secret: Path, status: int) -> None:
    async with EventReceiver(lambda _: status) as receiver, a_sink(receiver.url, secret) as sink:
        receiver.headers = {"Retry-After": "Fri, 02 Jan 2026 10:00:00 +999999999999999999"}
        reply = await sink.send("e1", BODY)

    assert (reply.reason, reply.pause) == (str(status), timedelta(0))


async def test_a_sink_that_took_an_event_asks_for_no_pause(secret: Path) -> None:
    async with EventReceiver() as receiver, a_sink(receiver.url, secret) as sink:
        receiver.headers = {"Retry-After": "120"}
        assert await sink.send("e1", BODY) == SinkReply(SinkVerdict.TAKEN, "200")


async def test_a_host_that_cannot_be_a_name_is_asked_later(secret: Path) -> None:
    async with a_sink(f"https://{'x' * 64}.example/", secret) as sink:
        assert (await sink.send("e1", BODY)).verdict is SinkVerdict.LATER


async def test_a_sink_that_does_not_answer_is_given_up_in_time(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_webhook, "TIMEOUT", timedelta(milliseconds=200))
    async with EventReceiver() as receiver, a_sink(receiver.url, secret) as sink:
        receiver.gate.clear()
        reply = await sink.send("e1", BODY)

    assert (reply.verdict, reply.reason) == (SinkVerdict.LATER, "TimeoutError")


@pytest.mark.parametrize(
    "answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nx"]
)
async def test_garbage_and_endless_answers_do_not_hold_an_event_up(
    secret: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_webhook, "TIMEOUT", timedelta(seconds=3))
    async with AnsweringUnread(answer) as server, a_sink(server.url, secret) as sink:
        reply = await sink.send("e1", BODY)

    is_taken = reply.verdict is SinkVerdict.TAKEN
    assert is_taken is answer.startswith(b"HTTP/1.1 200")


async def test_a_port_without_a_listener_is_asked_later(secret: Path) -> None:
    async with EventReceiver() as receiver:
        url = receiver.url
    async with a_sink(url, secret) as sink:
        reply = await sink.send("e1", BODY)

    assert reply.verdict is SinkVerdict.LATER
    assert url not in reply.reason


async def test_secrets_that_cannot_be_read_hold_events_back(secret: Path) -> None:
    async with EventReceiver() as receiver, a_sink(receiver.url, secret) as sink:
        secret.unlink()
        assert (await sink.send("e1", BODY)).verdict is SinkVerdict.LATER
        secret.write_text(SECRET)
        assert (await sink.send("e1", BODY)).verdict is SinkVerdict.TAKEN


@pytest.mark.parametrize("text", ["", "short", "whsec_%%%"])
async def test_secrets_that_cannot_sign_are_refused_at_the_start(secret: Path, text: str) -> None:
    secret.write_text(text)

    with pytest.raises(InvalidSettings) as caught:
        EventWebhook("https://x.example/", secret, None, MachineClock())
    assert text == "" or text not in str(caught.value)


def test_the_receiver_of_these_tests_finds_a_wrong_signature() -> None:
    headers = {"webhook-id": "e1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}

    for found in (headers, {**headers, "webhook-timestamp": "99999999999"}):
        with pytest.raises(AssertionError):
            verified(found, BODY)
