"""The way of a mail as spans, over processes of intake and worker, from a client's span to that
which a webhook gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from integration.test_events_of_processes import KINDS, RETRIES, a_queue
from support.http_clients import a_mail, basic
from support.intake_files import ALICE, PASSWORD, write_users
from support.otlp_receiver import OtlpReceiver, ReceivedSpan
from support.ports import free_port
from support.programs import Program
from support.webhook_server import SECRET, WebhookServer

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CLIENT}-01"
FIELDS = {"messaging.system", "messaging.destination.name", "messaging.message.body.size"}


async def an_intake(folder: Path, url: str, environment: Mapping[str, str]) -> tuple[Program, int]:
    write_users(folder / "users.yaml", **{ALICE: PASSWORD})
    port = free_port()
    listener = {"name": "http", "role": "http", "host": "127.0.0.1", "port": port}
    document = {"listeners": [listener], "users": {"file": "users.yaml"}}
    (folder / "intake.yaml").write_text(json.dumps(document))  # JSON is YAML
    program = await Program.start(
        folder,
        *("intake", "--queue", url, "--create", "--intake", str(folder / "intake.yaml")),
        environment=environment,
    )
    await program.until_ready()
    return program, port


async def a_worker(
    folder: Path, url: str, webhook: WebhookServer, environment: Mapping[str, str]
) -> Program:
    (folder / "login").mkdir()
    (folder / "login" / "secret").write_text(SECRET)
    return await Program.start(
        folder,
        *("worker", "--queue", url, "--webhook", webhook.url),
        *("--webhook-login-folder", str(folder / "login")),
        environment={**RETRIES, **environment},
    )


async def submit(port: int, traceparent: str) -> int:
    headers = {**basic(), "traceparent": traceparent}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/mails", json=a_mail(), headers=headers) as answer,
    ):
        return answer.status


def with_name(receiver: OtlpReceiver, name: str) -> list[ReceivedSpan]:
    return [each for each in receiver.spans if each.name == name]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_spans_of_a_mail_belong_to_the_client_s_from_intake_to_webhook(
    kind: str, tmp_path: Path
) -> None:
    async with (
        a_queue(kind, tmp_path) as url,
        OtlpReceiver() as receiver,
        WebhookServer() as webhook,
    ):
        webhook.statuses["b@dest.example"] = 500
        sent_to = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        intake, port = await an_intake(tmp_path, url, {**sent_to, "OTEL_SERVICE_NAME": "door"})
        worker = await a_worker(tmp_path, url, webhook, sent_to)
        try:
            assert await submit(port, SAMPLED) == 201
            await receiver.until(lambda: bool(with_name(receiver, "dequeue")))
            webhook.statuses.clear()
            await receiver.until(lambda: len(with_name(receiver, "dequeue")) == 2)
        finally:
            assert (await worker.stop(), await intake.stop()) == (0, 0)

    (accept,), (enqueue,) = with_name(receiver, "accept"), with_name(receiver, "enqueue")
    dequeues, attempts = with_name(receiver, "dequeue"), with_name(receiver, "attempt")
    assert {each.trace for each in receiver.spans} == {TRACE}
    assert (accept.parent, enqueue.parent) == (CLIENT, accept.id)
    assert [each.parent for each in dequeues] == [enqueue.id] * 2
    assert [each.parent for each in attempts] == [each.id for each in dequeues]
    assert [each.is_error for each in attempts] == [True, False]
    assert {each.service for each in (accept, enqueue)} == {"door"}
    assert {each.service for each in (*dequeues, *attempts)} == {"postroad"}
    assert [request.headers["traceparent"] for request in webhook.requests] == [
        f"00-{TRACE}-{each.id}-01" for each in attempts
    ]
    assert accept.attributes.keys() & dequeues[0].attributes.keys() >= FIELDS
    assert accept.attributes["postroad.reply"] == "250 2.0.0"
    assert [each.attributes["postroad.ending"] for each in dequeues] == ["deferred", "delivered"]
    assert [each.attributes["postroad.attempt"] for each in dequeues] == [1, 2]
    assert attempts[1].attributes == {
        "postroad.next_hop": attempts[0].attributes["postroad.next_hop"],
        "postroad.replies": ["250 2.0.0"],
        "postroad.delivered": 1,
    }
    ids = {each.attributes["messaging.message.id"] for each in (enqueue, dequeues[0])}
    assert len(ids) == 1
    assert "@" not in receiver.text
    assert "dest.example" not in receiver.text


async def test_a_trace_that_is_not_sampled_is_carried_on_without_spans(tmp_path: Path) -> None:
    async with OtlpReceiver() as receiver, WebhookServer() as webhook:
        url = f"embedded://{tmp_path / 'store'}"
        sent_to = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        intake, port = await an_intake(tmp_path, url, sent_to)
        worker = await a_worker(tmp_path, url, webhook, sent_to)
        try:
            assert await submit(port, SAMPLED.removesuffix("01") + "00") == 201
            await webhook.is_held.wait()
        finally:
            assert (await worker.stop(), await intake.stop()) == (0, 0)

    (posted,) = webhook.requests
    assert posted.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert posted.headers["traceparent"].endswith("-00")
    assert receiver.spans == []


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        (SAMPLED, SAMPLED),
        (f"00-{'0' * 32}-{CLIENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (SAMPLED.upper(), None),
        ("somewhere", None),
    ],
)
async def test_processes_without_spans_carry_the_span_of_the_client(
    tmp_path: Path, given: str, carried: str | None
) -> None:
    async with WebhookServer() as webhook:
        url = f"embedded://{tmp_path / 'store'}"
        intake, port = await an_intake(tmp_path, url, {})
        worker = await a_worker(tmp_path, url, webhook, {})
        try:
            assert await submit(port, given) == 201
            await webhook.is_held.wait()
        finally:
            assert (await worker.stop(), await intake.stop()) == (0, 0)

    (posted,) = webhook.requests
    assert posted.headers.get("traceparent") == carried


async def test_a_receiver_that_is_away_delays_neither_mail_nor_the_end(tmp_path: Path) -> None:
    async with WebhookServer() as webhook:
        url = f"embedded://{tmp_path / 'store'}"
        away = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
        intake, port = await an_intake(tmp_path, url, away)
        worker = await a_worker(tmp_path, url, webhook, away)
        try:
            assert await submit(port, SAMPLED) == 201
            await webhook.is_held.wait()
        finally:
            async with asyncio.timeout(20):
                assert (await worker.stop(), await intake.stop()) == (0, 0)

    assert len(webhook.requests) == 1
