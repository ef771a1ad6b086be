"""A webhook over HTTP: what it gets, and what its answers and losses lead to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from postroad.adapters.programs import webhook
from postroad.adapters.programs.webhook import TOO_EARLY, UNSIGNABLE
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop
from postroad.ports.delivery import ConnectionOpened, JobFinished
from postroad.routing.routes import ResolvedHop
from support.certificates import Certificates
from support.connections import Events, a_job
from support.memory.clock import ManualClock
from support.webhook_server import SECRET, AnsweringUnread, WebhookServer, a_webhook_connector

D, F, L = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED
NO_HOP = ResolvedHop(NextHop("webhook", 0), ())
OLD = "the secret that was valid before"


async def test_a_request_has_the_mail_and_is_signed(tmp_path: Path) -> None:
    async with WebhookServer() as server:
        events = Events()
        connection = a_webhook_connector(server, tmp_path).open(NO_HOP, events)
        content = b"Subject: x\r\n\r\n\x00\xff\r\n--x--\n.\r\n"
        connection.submit(a_job(7, "b@dest.example", "c@dest.example", content=content))
        await events.until_finished(1)
        connection.close()
        await events.until_closed()

    (posted,) = server.requests
    assert events.finished[7] == {"b@dest.example": D, "c@dest.example": D}
    assert posted.path == "/mail"
    assert posted.message == content
    assert posted.envelope == {
        "mail_id": "00000000-0000-0000-0000-000000000007",
        "sender": "job7@origin.example",
        "recipients": ["b@dest.example", "c@dest.example"],
        "priority": 0,
        "tenant": None,
    }
    assert posted.key.startswith("00000000-0000-0000-0000-000000000007_")
    assert posted.headers["Idempotency-Key"] == f'"{posted.key}"'
    assert posted.is_signed_by(SECRET)
    assert not posted.is_signed_by(SECRET.replace("a2", "a3"))


async def test_mails_share_a_connection_and_a_renewed_secret_needs_no_restart(
    tmp_path: Path,
) -> None:
    async with WebhookServer() as server:
        events = Events()
        connector = a_webhook_connector(server, tmp_path, secrets=SECRET)
        connection = connector.open(NO_HOP, events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        renewed = SECRET.replace("a2", "b2")
        (tmp_path / "secret").write_text(f"{renewed}\n{SECRET}\n")
        connection.submit(a_job(2))
        await events.until_finished(2)
        connection.close()
        await events.until_closed()

    first, second = server.requests
    assert len(server.connections) == 1
    assert (first.is_signed_by(SECRET), first.is_signed_by(renewed)) == (True, False)
    assert (second.is_signed_by(SECRET), second.is_signed_by(renewed)) == (True, True)


async def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    async with WebhookServer() as server:
        server.statuses["b1@dest.example"] = 307
        server.headers = {"Location": f"http://localhost:{server.port}/elsewhere"}
        events = Events()
        connection = a_webhook_connector(server, tmp_path).open(NO_HOP, events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        connection.close()
        await events.until_closed()

    assert [each.path for each in server.requests] == ["/mail"]
    assert events.finished == {1: {"b1@dest.example": L}}


@pytest.mark.parametrize(("status", "is_asked"), [(429, True), (503, True), (500, False)])
async def test_a_webhook_that_asks_for_a_rest_gets_it(
    tmp_path: Path, status: int, is_asked: bool
) -> None:
    async with WebhookServer() as server:
        server.statuses["b1@dest.example"] = status
        server.headers = {"Retry-After": "120"}
        events = Events()
        connection = a_webhook_connector(server, tmp_path).open(NO_HOP, events)
        connection.submit(a_job(1))
        connection.submit(a_job(2))
        await events.until_finished(1 if is_asked else 2)
        connection.close()
        closed = await events.until_closed()

    finished = next(each for each in events.all if isinstance(each, JobFinished))
    assert finished.backoff == timedelta(seconds=120 if is_asked else 0)
    assert closed.untried == ((2,) if is_asked else ())


async def test_a_connection_that_was_closed_meanwhile_leaves_its_mail_untried(
    tmp_path: Path,
) -> None:
    async with WebhookServer() as server:
        events = Events()
        connection = a_webhook_connector(server, tmp_path).open(NO_HOP, events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        server.losses = 1
        connection.submit(a_job(2))
        connection.submit(a_job(3))
        closed = await events.until_closed()

    assert closed.untried == (2, 3)
    assert events.finished == {1: {"b1@dest.example": D}}


async def test_a_new_connection_that_breaks_off_leaves_its_mail_in_doubt(tmp_path: Path) -> None:
    async with WebhookServer() as server:
        server.losses = 1
        connector = a_webhook_connector(server, tmp_path)
        for expected in (L, D):
            events = Events()
            connection = connector.open(NO_HOP, events)
            connection.submit(a_job(1))
            await events.until_finished(1)
            connection.close()
            await events.until_closed()
            assert events.finished == {1: {"b1@dest.example": expected}}
            if expected is L:
                assert "may be delivered" in events.texts[1]

    first, again = server.requests
    assert first.key == again.key


async def test_a_webhook_that_is_away_has_no_attempt(tmp_path: Path) -> None:
    async with WebhookServer() as server:
        pass
    events = Events()
    a_webhook_connector(server, tmp_path).open(NO_HOP, events).submit(a_job(1))
    closed = await events.until_closed()

    assert closed.untried == (1,)
    assert events.all == [closed]
    assert closed.text.startswith("451 4.4.1 no connection to http://localhost:")
    assert "hunter2" not in closed.text


async def test_a_secret_that_is_gone_is_no_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with WebhookServer() as server:
        connector, events = a_webhook_connector(server, tmp_path), Events()
        (tmp_path / "secret").unlink()
        connector.open(NO_HOP, events).submit(a_job(1))
        closed = await events.until_closed()

    assert closed.untried == (1,)
    assert closed.text == UNSIGNABLE, "a report to the sender has it: it names no file"
    assert "a webhook's secrets cannot be used" in caplog.text
    assert not server.requests


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_certificate_is_verified(
    tmp_path: Path, certificates: Certificates, is_trusted: bool
) -> None:
    async with WebhookServer(certificates.server_context()) as server:
        ca_file, events = certificates.authority if is_trusted else None, Events()
        connection = a_webhook_connector(server, tmp_path, ca_file=ca_file).open(NO_HOP, events)
        connection.submit(a_job(1))
        if is_trusted:
            await events.until_finished(1)
            connection.close()
        closed = await events.until_closed()

    assert len(server.requests) == is_trusted
    if not is_trusted:
        assert closed.untried == (1,)
        assert closed.text.startswith("451 4.7.5 the webhook's certificate is not accepted")


async def test_authorities_that_replace_others_verify_the_next_connection(
    tmp_path: Path, certificates: Certificates
) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Certificates.make(tmp_path / "others").authority.read_bytes())
    async with WebhookServer(certificates.server_context()) as server:
        connector, refused, events = (
            a_webhook_connector(server, tmp_path, ca_file=file),
            Events(),
            Events(),
        )
        connector.open(NO_HOP, refused).submit(a_job(1))
        await refused.until_closed()
        file.write_bytes(certificates.authority.read_bytes())
        connection = connector.open(NO_HOP, events)
        connection.submit(a_job(1))
        async with asyncio.timeout(20):
            await events.until_finished(1)
        connection.close()
        await events.until_closed()

    assert len(server.requests) == 1


async def test_a_mail_that_is_too_large_is_refused_unsent(tmp_path: Path) -> None:
    async with WebhookServer() as server:
        events = Events()
        connector = a_webhook_connector(server, tmp_path, largest_bytes=65536)
        connection = connector.open(NO_HOP, events)
        connection.submit(a_job(1, content=bytes(65537)))
        connection.submit(a_job(2, content=bytes(65536)))
        await events.until_finished(2)
        connection.close()
        await events.until_closed()

    assert [each.message for each in server.requests] == [bytes(65536)]
    assert events.finished == {1: {"b1@dest.example": F}, 2: {"b2@dest.example": D}}
    assert events.texts[1].startswith("552 5.3.4")


async def test_an_answer_that_does_not_come_in_time_leaves_the_mail_in_doubt(
    tmp_path: Path,
) -> None:
    async with WebhookServer() as server:
        server.hold_back()
        events = Events()
        connector = a_webhook_connector(server, tmp_path, timeout=timedelta(seconds=0.5))
        connector.open(NO_HOP, events).submit(a_job(1))
        await events.until_closed()

    assert events.all[0] == ConnectionOpened()
    assert events.finished == {1: {"b1@dest.example": L}}
    assert "may be delivered" in events.texts[1]


async def test_a_long_answer_ends_its_connection_and_not_its_outcome(tmp_path: Path) -> None:
    async with WebhookServer() as server:
        server.body = bytes(1_000_000)
        events = Events()
        connection = a_webhook_connector(server, tmp_path).open(NO_HOP, events)
        for job in (1, 2):
            connection.submit(a_job(job))
        await events.until_finished(2)
        connection.close()
        await events.until_closed()

    assert events.finished == {1: {"b1@dest.example": D}, 2: {"b2@dest.example": D}}


async def test_a_webhook_that_answers_before_it_has_the_mail_is_asked_again(tmp_path: Path) -> None:
    """Else a server that answers all requests by 200 unread would lose large mails."""
    server = AnsweringUnread(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with server:
        events = Events()
        connector = a_webhook_connector(server, tmp_path)
        connector.open(NO_HOP, events).submit(a_job(1, content=bytes(16 * 2**20)))
        await events.until_finished(1)

    assert events.finished == {1: {"b1@dest.example": L}}
    assert events.texts[1].startswith(TOO_EARLY)


@pytest.mark.parametrize("is_aborted", [False, True])
async def test_an_answer_without_an_end_has_its_outcome(
    is_aborted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a short time, and when the worker ends: the mail would go again else."""
    passing, pass_over = asyncio.Event(), webhook.pass_over

    async def noting(response: aiohttp.ClientResponse) -> None:
        passing.set()
        await pass_over(response)

    monkeypatch.setattr(webhook, "pass_over", noting)
    if not is_aborted:
        monkeypatch.setattr(webhook, "MAX_PASSING", timedelta(milliseconds=20))
    server = AnsweringUnread(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
    async with server:
        events = Events()
        connection = a_webhook_connector(server, tmp_path).open(NO_HOP, events)
        connection.submit(a_job(1))
        await passing.wait()
        if is_aborted:
            connection.abort()
        await events.until_finished(1)
        connection.abort()
        await events.until_closed()

    assert events.finished == {1: {"b1@dest.example": D}}


async def test_the_time_of_a_signature_is_that_of_the_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    async with WebhookServer() as server:
        events = Events()
        connection = a_webhook_connector(server, tmp_path, clock=clock).open(NO_HOP, events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        connection.close()
        await events.until_closed()

    assert server.requests[0].headers["webhook-timestamp"] == str(int(clock.now().timestamp()))
