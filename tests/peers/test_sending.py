"""postroad's worker hands mail to other servers, which relay it to a sink or keep it."""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from peers.cases import (
    CASES,
    LIMIT_BYTES,
    MANY,
    ONE_REFUSED,
    PIPELINED,
    REFUSED,
    REUSED,
    SAME,
    SECURED,
    WHOLE,
    Arrival,
    Case,
    compared,
    in_a_labels,
    shown,
)
from peers.conftest import prepared
from peers.dovecot import Dovecot
from peers.exim import Exim
from peers.haraka import Haraka
from peers.james import James, JamesMailboxes
from peers.maddy import Maddy
from peers.opensmtpd import OpenSmtpd
from peers.postfix import Postfix
from peers.server import Peer, Road
from peers.table import settle
from peers.tap import Tap
from postroad import open_queue
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Mail, Outcome, OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.ports.delivery import (
    BeforeEnd,
    Connection,
    ConnectionEvent,
    Connector,
    JobFinished,
    at_once,
)
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connections import SmtpConnector
from support.certificates import Certificates
from support.sink import Sink
from support.workers import a_consumer

QUICK = RetryPlan((timedelta(milliseconds=20),), timedelta(seconds=20))
LONG_SECONDS = 90.0
MAX_RECIPIENTS = 40
"""The most recipients that peers with such a setting accept in one mail: fewer than the worker
offers at once."""

KEEPERS = (Dovecot, JamesMailboxes)
"""Servers that keep mail, which comes by LMTP."""


class Watched:
    """A connector that keeps each recipient's last outcome."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.outcomes: dict[str, Outcome] = {}

    def open(
        self,
        hop: ResolvedHop,
        on_event: Callable[[ConnectionEvent], None],
        before_end: BeforeEnd = at_once,
    ) -> Connection:
        def watching(event: ConnectionEvent) -> None:
            if isinstance(event, JobFinished):
                self.outcomes.update(event.outcomes)
            on_event(event)

        return self._connector.open(hop, watching, before_end)


class Sending:
    """A peer behind a tap, and the worker before it."""

    def __init__(self, peer: Peer, tap: Tap, sink: Sink, certificates: Certificates) -> None:
        self._peer, self._tap, self._sink = peer, tap, sink
        self._authority = certificates.authority

    async def cell(self, case: Case, folder: Path) -> str:
        """Return the cell of a case."""
        outcomes = await self._hand_over(case, folder)
        wanted = [each for each, got in outcomes.items() if got.kind is OutcomeKind.DELIVERED]
        found = compared(case, wanted, await self._arrivals(case, wanted))
        refused = _refusals(outcomes)
        parts = [found] if wanted else []
        parts += [f"{count} {text}" if wanted else text for text, count in refused.items()]
        return shown(case, [*(parts or ["not sent"]), *self._noted(case)])

    def _noted(self, case: Case) -> list[str]:
        if case is PIPELINED:
            return ["pipelined" if self._tap.is_pipelined else "one command at a time"]
        if case is REUSED:
            return [f"{self._tap.connections} connection" + "s" * (self._tap.connections > 1)]
        if case is SECURED:
            assert not any(b"MAIL FROM" in each for each in self._tap.said)
        return []

    async def _hand_over(self, case: Case, folder: Path) -> dict[str, Outcome]:
        self._tap.forget()
        protocol = Protocol.LMTP if isinstance(self._peer, KEEPERS) else Protocol.SMTP
        mode = TlsMode.REQUIRED if case.tls else TlsMode.NONE
        hop = NextHop("localhost", self._tap.port, mode, protocol)
        watched = Watched(SmtpConnector(ehlo_name="postroad.example", ca_file=self._authority))
        async with open_queue(f"embedded://{folder}", create=True) as queue:
            for number in range(case.mails):
                await queue.enqueue(Mail(case.sender, case.recipients, case.content(number)))
            stop = asyncio.Event()
            consumer = a_consumer(queue, hop, QUICK, 1, watched)
            running = asyncio.create_task(consumer.run(stop, timedelta(seconds=5)))
            while (await queue.size()).size:
                await asyncio.sleep(0.02)
            stop.set()
            await running
        return watched.outcomes

    async def _arrivals(self, case: Case, wanted: list[str]) -> list[Arrival]:
        """Wait until each accepted mail has come, then return all that came."""
        if isinstance(self._peer, Dovecot):
            return [
                Arrival((f"{user}@dest.example" if "@" not in user else user,), content)
                for user, contents in self._peer.mails().items()
                for content in contents
            ]
        if isinstance(self._peer, JamesMailboxes):
            users = [in_a_labels(each) for each in wanted]
            kept = await asyncio.to_thread(self._peer.mails, users)
            return [Arrival((user,), mail) for user, mails in kept.items() for mail in mails]
        with suppress(TimeoutError):
            async with asyncio.timeout(LONG_SECONDS):
                while compared(case, wanted, self._come()) != SAME and self._is_waiting(
                    case, wanted
                ):
                    await asyncio.sleep(0.05)
        return self._come()

    def _is_waiting(self, case: Case, wanted: list[str]) -> bool:
        tokens = [case.token(number).encode() for number in range(case.mails)]
        come = sum(
            len(each.recipients)
            for each in self._sink.mails
            if any(token in each.content[:4096] for token in tokens)
        )
        return come < len(wanted) * case.mails

    def _come(self) -> list[Arrival]:
        return [Arrival(tuple(each.recipients), each.content) for each in self._sink.mails]


def _mailboxes() -> tuple[str, ...]:
    wanted = {in_a_labels(each) for case in CASES for each in case.recipients}
    return tuple(sorted(wanted - {REFUSED}))


def _refusals(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    found: dict[str, int] = {}
    for outcome in outcomes.values():
        if outcome.kind is not OutcomeKind.DELIVERED:
            code = re.match(r"[45]\d\d(?: [45]\.\d+\.\d+)?", outcome.text or "")
            text = f"{outcome.kind.value} {code[0] if code else outcome.text}"
            found[text] = found.get(text, 0) + 1
    return found


@pytest.mark.needs("peers")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind", [Postfix, Exim, OpenSmtpd, Haraka, Maddy, James, Dovecot, JamesMailboxes]
)
async def test_a_server_takes_what_postroad_sends(
    kind: type[Peer], base: Path, certificates: Certificates, tmp_path: Path
) -> None:
    prepared(kind)
    async with Sink() as sink:
        road = Road(
            sink.port, certificates, limit_bytes=LIMIT_BYTES, most_recipients=MAX_RECIPIENTS
        )
        peer = kind(base, road)
        if isinstance(peer, Dovecot):
            peer.users = _mailboxes()
        await peer.start()
        try:
            if isinstance(peer, JamesMailboxes):
                await peer.know([each for each in _mailboxes() if each.isascii()])
            async with Tap(peer.port) as tap:
                sending = Sending(peer, tap, sink, certificates)
                cells = {
                    case.name: await sending.cell(case, tmp_path / f"queue{number}")
                    for number, case in enumerate(CASES)
                }
        finally:
            await peer.stop()
    always = {case.name for case in (*CASES[:1], PIPELINED, REUSED, ONE_REFUSED, MANY, SECURED)}
    # OpenSMTPD's release cannot sign with OpenSSL 3, whatever the key; James has no TLS in LMTP.
    if kind in (OpenSmtpd, JamesMailboxes):
        always.remove(SECURED.name)
    assert not [name for name in always if not cells[name].startswith(WHOLE)], cells
    assert not [each for each in cells.values() if re.search("LOST|TWICE|WANTED|CHANGES", each)], (
        cells
    )
    settle("What postroad sends", peer.title, cells)
