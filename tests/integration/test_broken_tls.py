"""TLS that breaks behind the handshake: mail that may go in clear does at the next attempt, other
mail waits, and none is repeated in haste."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest

from postroad.domain.smtp.next_hops import HopLogin, NextHop, Protocol, TlsMode
from postroad.ports.delivery import ConnectionClosed
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connecting import Timeouts
from postroad.smtp.client.connections import SmtpConnector
from support.certificates import Certificates
from support.connections import Events, a_job
from support.sasl_server import SaslServer
from support.sink import EXTENSIONS, HANG_UP, SILENCE, Rule, Sink

TLS, CLEAR, WAITS = "over TLS", "in clear", "waits"
HASTY = Timeouts(command=timedelta(seconds=0.5), data_start=timedelta(seconds=0.5))
CLOSED_MODES = (TlsMode.ENCRYPTED, TlsMode.REQUIRED)


def under_tls(verbs: tuple[str, ...], reply: str, times: int = 1 << 30) -> Rule:
    """Return a rule that replies so to these commands under TLS."""
    is_secured, left = False, times

    def rule(verb: str, argument: str) -> str | None:
        nonlocal is_secured, left
        is_secured = verb == "STARTTLS" or (is_secured and verb != "CONNECT")
        if is_secured and verb in verbs and left:
            left -= 1
            return reply
        return None

    return rule


class Mails:
    """Hands mails to a sink, one connection after the other."""

    def __init__(self, sink: Sink, certificates: Certificates, protocol: Protocol) -> None:
        self._sink, self._protocol = sink, protocol
        self.is_slow = False
        """Whether a content has a second part, which comes when a next hop that goes has gone."""
        self._connector = SmtpConnector(
            ehlo_name="relay.example", ca_file=certificates.authority, timeouts=HASTY
        )

    async def next(
        self, tls: TlsMode = TlsMode.OPPORTUNISTIC, login: HopLogin | None = None
    ) -> str:
        hop = NextHop("localhost", self._sink.port, tls, self._protocol, login=login)
        before, events = len(self._sink.mails), Events()
        self._begun = self._sink.commands.count("STARTTLS")
        connection = self._connector.open(ResolvedHop(hop, ("127.0.0.1",)), events)
        connection.submit(replace(a_job(1), content=self._slowly) if self.is_slow else a_job(1))
        while not (events.finished or any(isinstance(e, ConnectionClosed) for e in events.all)):
            await events.next()
        connection.close()
        await events.until_closed()
        if len(self._sink.mails) == before:
            return WAITS
        return TLS if self._sink.mails[-1].tls else CLEAR

    async def _slowly(self) -> AsyncGenerator[bytes, None]:
        yield b"Subject: x\r\n"
        yield b"\r\nbody\r\n"
        while self._sink.sessions and self._sink.commands.count("STARTTLS") > self._begun:
            await asyncio.sleep(0.01)
        yield b"end\r\n"


def sink_with(rule: Rule, certificates: Certificates, protocol: Protocol = Protocol.SMTP) -> Sink:
    tls = certificates.server_context()
    return Sink(rule, tls=tls, lmtp=protocol is Protocol.LMTP)


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize(
    "reply", [HANG_UP, SILENCE, "421 no", "454 later", "550 no", "999 what", "no reply"]
)
async def test_a_session_that_fails_at_ehlo_under_tls_goes_on_in_clear(
    certificates: Certificates, reply: str, protocol: Protocol
) -> None:
    rule = under_tls(("EHLO", "LHLO", "HELO"), reply)
    async with sink_with(rule, certificates, protocol) as sink:
        mails = Mails(sink, certificates, protocol)

        assert [await mails.next() for _ in range(3)] == [CLEAR] * 3
        assert sink.commands.count("STARTTLS") == 1
        assert [await mails.next(tls) for tls in CLOSED_MODES] == [WAITS, WAITS]


@pytest.mark.parametrize("reply", [HANG_UP, SILENCE, "421 no", "999 what", "no reply"])
async def test_a_session_that_fails_at_starttls_goes_on_in_clear(
    certificates: Certificates, reply: str
) -> None:
    rule = under_tls(("STARTTLS",), reply)
    async with sink_with(rule, certificates) as sink:
        mails = Mails(sink, certificates, Protocol.SMTP)

        assert await mails.next() == CLEAR
        assert [await mails.next(tls) for tls in CLOSED_MODES] == [WAITS, WAITS]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_next_hop_that_wants_a_certificate_gets_mail_in_clear(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """With TLS 1.3 its alert comes when the handshake of this side has succeeded."""
    tls = certificates.server_context()
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(certificates.authority)
    tls.minimum_version = tls.maximum_version = version
    async with Sink(tls=tls) as sink:
        mails = Mails(sink, certificates, Protocol.SMTP)

        assert [await mails.next() for _ in range(2)] == [CLEAR] * 2
        assert [await mails.next(tls) for tls in CLOSED_MODES] == [WAITS, WAITS]


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize(
    ("verb", "reply"),
    [*product(("MAIL", "RCPT", "DATA"), (HANG_UP, SILENCE)), ("CONTENT", HANG_UP)],
)
async def test_a_connection_lost_under_tls_before_a_mail_was_sent_is_followed_by_one_in_clear(
    certificates: Certificates, reply: str, verb: str, protocol: Protocol
) -> None:
    rule = under_tls((verb,), reply)
    async with sink_with(rule, certificates, protocol) as sink:
        mails = Mails(sink, certificates, protocol)
        mails.is_slow = verb == "CONTENT"

        assert [await mails.next() for _ in range(3)] == [WAITS, CLEAR, CLEAR]
        assert [await mails.next(tls) for tls in CLOSED_MODES] == [WAITS, WAITS]


async def test_a_connection_lost_under_tls_behind_a_mail_is_followed_by_one_under_tls(
    certificates: Certificates,
) -> None:
    async with sink_with(under_tls(("DOT",), HANG_UP, 2), certificates) as sink:
        mails = Mails(sink, certificates, Protocol.SMTP)

        assert [await mails.next() for _ in range(3)] == [WAITS, WAITS, TLS]


@pytest.mark.parametrize("reply", ["421 no", "451 later", "550 no"])
async def test_a_refusal_under_tls_is_none_of_tls(certificates: Certificates, reply: str) -> None:
    async with sink_with(under_tls(("MAIL",), reply, 1), certificates) as sink:
        mails = Mails(sink, certificates, Protocol.SMTP)

        assert [await mails.next() for _ in range(2)] == [WAITS, TLS]


async def test_where_mail_went_over_tls_a_lost_connection_does_not_end_that(
    certificates: Certificates,
) -> None:
    is_lost = False
    rule = under_tls(("MAIL",), HANG_UP, 1)
    switched: Rule = lambda verb, argument: rule(verb, argument) if is_lost else None  # noqa: E731
    async with sink_with(switched, certificates) as sink:
        mails = Mails(sink, certificates, Protocol.SMTP)
        assert await mails.next() == TLS
        is_lost = True

        assert [await mails.next() for _ in range(2)] == [WAITS, TLS]


async def test_a_next_hop_that_takes_no_mail_in_clear_gets_it_over_tls_again(
    certificates: Certificates,
) -> None:
    broken = under_tls(("MAIL",), HANG_UP, 1)
    is_secured = False

    def rule(verb: str, argument: str) -> str | None:
        nonlocal is_secured
        is_secured = verb == "STARTTLS" or (is_secured and verb != "CONNECT")
        wanted = "530 5.7.0 Must issue a STARTTLS command first"
        clear = None if is_secured or verb != "MAIL" else wanted
        return broken(verb, argument) or clear

    async with sink_with(rule, certificates) as sink:
        mails = Mails(sink, certificates, Protocol.SMTP)

        assert [await mails.next() for _ in range(3)] == [WAITS, WAITS, TLS]


@pytest.mark.parametrize("verbs", [("EHLO", "HELO"), ("AUTH",), ("MAIL",)], ids=" ".join)
async def test_no_login_follows_broken_tls_into_clear(
    certificates: Certificates, tmp_path: Path, verbs: tuple[str, ...]
) -> None:
    (tmp_path / "username").write_text("user")
    (tmp_path / "password").write_text("secret")
    login = HopLogin(tmp_path, is_sent_unverified=True)
    users = SaslServer("user", "secret")
    sink = Sink(
        under_tls(verbs, HANG_UP),
        tls=certificates.server_context(),
        users=users,
        extensions=(*EXTENSIONS, "AUTH PLAIN"),
    )
    async with sink:
        mails = Mails(sink, certificates, Protocol.SMTP)

        assert [await mails.next(login=login) for _ in range(3)] == [WAITS] * 3
        assert sink.commands.count("STARTTLS") == 3
