"""A hook over HTTP as a filter: its request, its answers, and answers that are none."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from postroad.domain.delivery.webhooks import read_secrets
from postroad.domain.mail.mail import Origin
from postroad.errors import TlsRefused
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    HeaderChange,
    applied,
)
from postroad.intake.filters.hook import MAX_ANSWER, HookFilter
from support.certificates import Certificates
from support.webhook_server import SECRET, WebhookServer

CONTENT = b"Subject: x\r\nX-8: \xe9\r\n\r\nbody \xff\r\n"
MAIL = FilteredMail(
    "abcd", "mx.example", None, ("b@y.example",), CONTENT,
    Origin("client.example", "192.0.2.1", "ESMTPSA"), "alice", "tenant", ("TLSv1.3", "AES"),
)  # fmt: skip


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.copied(tmp_path)


def hook(server: WebhookServer, ca_file: Path | None = None) -> HookFilter:
    return HookFilter(server.url, read_secrets(SECRET), ca_file, lambda: datetime.now(UTC))


async def answered(body: bytes, status: int = 200, mail: FilteredMail = MAIL) -> FilterDecision:
    async with WebhookServer() as server:
        server.body, server.statuses = body, {"b@y.example": status}
        return await hook(server).decide(mail)


async def test_a_hook_gets_the_mail_signed_with_all_that_is_known_of_its_client(
    certificates: Certificates,
) -> None:
    async with WebhookServer(certificates.server_context()) as server:
        assert await hook(server, certificates.authority).decide(MAIL) == FilterDecision()

    (posted,) = server.requests
    assert posted.is_signed_by(SECRET)
    assert posted.key == "abcd"
    assert posted.message == CONTENT
    assert posted.envelope == {
        "name": "abcd",
        "hostname": "mx.example",
        "sender": None,
        "recipients": ["b@y.example"],
        "client": {"host": "client.example", "address": "192.0.2.1", "protocol": "ESMTPSA"},
        "tls": ["TLSv1.3", "AES"],
        "user": "alice",
        "tenant": "tenant",
        "size": len(CONTENT),
        "headers": [["Subject", "x"], ["X-8", "\ufffd"]],
    }


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ({}, FilterDecision()),
        ({"verdict": "reject", "reply": "550 no"}, FilterDecision("reject", "550 no")),
        ({"verdict": "discard"}, FilterDecision("discard")),
        ({"hold": "spam"}, FilterDecision(hold="spam")),
        (
            {"headers": [{"action": "add", "name": "X", "value": "y"}]},
            FilterDecision(headers=(HeaderChange("add", "X", "y"),)),
        ),
        (
            {"headers": [{"action": "remove", "name": "X", "index": 2}]},
            FilterDecision(headers=(HeaderChange("remove", "X", index=2),)),
        ),
        (
            {"sender": "", "add_recipients": ["c@y"], "remove_recipients": ["b@y"]},
            FilterDecision(sender="", add_recipients=("c@y",), remove_recipients=("b@y",)),
        ),
        ({"body": "aGk="}, FilterDecision(body=b"hi")),
    ],
)
async def test_an_answer_decides(answer: dict[str, Any], decision: FilterDecision) -> None:
    assert await answered(json.dumps(answer).encode()) == decision


async def test_an_answer_without_content_accepts() -> None:
    assert await answered(b"", 204) == FilterDecision()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 500),
        (b"", 401),
        (b"{}", 201),
        (b"", 302),
        (b"accept", 200),
        (b"[]", 200),
        (b"[" * 100_000, 200),
        (b'{"verdict": "maybe"}', 200),
        (b'{"verdict": 1}', 200),
        (b'{"decision": "reject"}', 200),
        (b'{"headers": [{"name": "X"}]}', 200),
        (b'{"headers": [{"action": "add", "name": "X", "vale": "y"}]}', 200),
        (b'{"body": "not base64"}', 200),
        (b'{"hold": true}', 200),
        (b'{"reply": "\\ud800"}', 200),
        (b'{"reply": "' + b"x" * 200_000 + b'"}', 200),
    ],
)
async def test_an_answer_that_is_no_decision_fails(body: bytes, status: int) -> None:
    with pytest.raises(FilterFailed):
        await answered(body, status)


@pytest.mark.parametrize(
    "answer",
    [
        {"headers": [{"action": "add", "name": "X", "value": "a\r\nBcc: b"}]},
        {"add_recipients": ["a@x.example\r\nDATA"]},
        {"headers": [{"action": "add", "name": "X"}] * 1001},
    ],
)
async def test_an_answer_that_a_client_could_not_send_is_refused(answer: dict[str, Any]) -> None:
    decision = await answered(json.dumps(answer).encode())

    with pytest.raises(FilterFailed):
        applied(MAIL, decision)


@pytest.mark.parametrize("mail_bytes", [0, 8 * MAX_ANSWER])
async def test_a_compressed_answer_is_read_up_to_a_bound(mail_bytes: int) -> None:
    mail = FilteredMail(
        "n", "h", None, ("b@y.example",), b"A: 1\r\n\r\n" + b"x" * mail_bytes, Origin()
    )
    async with WebhookServer() as server:
        server.body = gzip.compress(b" " * 64 * MAX_ANSWER)
        server.headers = {"Content-Encoding": "gzip"}
        with pytest.raises(FilterFailed, match="too large"):
            await hook(server).decide(mail)


async def test_a_hook_whose_certificate_is_anothers_gets_no_mail(
    certificates: Certificates,
) -> None:
    async with WebhookServer(certificates.server_context()) as server:
        with pytest.raises((aiohttp.ClientError, TlsRefused)):
            await hook(server).decide(MAIL)

    assert server.requests == []


async def test_a_hook_that_breaks_off_fails() -> None:
    async with WebhookServer() as server:
        server.losses = 1
        with pytest.raises(aiohttp.ClientError):
            await hook(server).decide(MAIL)
