"""Other servers and a client hand mail to postroad's intake."""

import asyncio
import smtplib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from peers import swaks
from peers.cases import (
    CASES,
    LIMIT_BYTES,
    MANY,
    ONE_REFUSED,
    PIPELINED,
    SECURED,
    TOO_LARGE,
    WHOLE,
    Arrival,
    Case,
    compared,
    in_a_labels,
    shown,
)
from peers.conftest import prepared
from peers.exim import Exim
from peers.haraka import Haraka
from peers.james import James
from peers.maddy import Maddy
from peers.opensmtpd import OpenSmtpd
from peers.postfix import Postfix
from peers.server import Peer, Road
from peers.table import settle
from peers.tap import Tap
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.domain.mail.mail import Mail
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer
from postroad.ports.mail_queue import MailQueue
from support.certificates import Certificates
from support.recording_queue import RecordingQueue

LONG_SECONDS = 90.0
MAX_RECIPIENTS, DEFAULT_MOST_RECIPIENTS = 500, 1000
SECTION = "What postroad receives"
RECEIVED = (*(case for case in CASES if case not in (ONE_REFUSED, MANY)), MANY)
"""The intake refuses no recipient by its address. After a transient refusal a server may avoid a
next hop for a while, so that case is the last one."""

Inject = Callable[[Case], Awaitable[str]]
"""Hands over the mails of a case; returns why it could not, or an empty text."""


class Receiving:
    """An intake behind a tap, with STARTTLS only for the case that needs it."""

    def __init__(self, tap: Tap, queue: RecordingQueue, plain: int, secured: int) -> None:
        self.tap = tap
        self._queue = queue
        self._plain, self._secured = plain, secured

    async def cell(self, case: Case, inject: Inject, *, waits: bool) -> str:
        """Return the cell of a case. `waits`: the peer hands it over at a time of its own."""
        self.tap.target = self._secured if case.tls else self._plain
        self.tap.forget()
        self._queue.mails.clear()
        if problem := await inject(case):
            return problem
        if waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONG_SECONDS):
                    while not self._is_settled(case):
                        await asyncio.sleep(0.05)
        return shown(case, [self._outcome(case), *self._noted(case)])

    def _outcome(self, case: Case) -> str:
        taken, refused = self._taken(case), self.tap.refusal()
        found = compared(case, case.recipients, taken)
        if found in WHOLE or not (refused or case is TOO_LARGE or self._is_bounced(case)):
            return found
        reached = len({each for arrival in taken for each in arrival.recipients})
        ending = "bounced" if self._is_bounced(case) else "not bounced"
        parts = [f"{reached} taken"] if reached else []
        return ", ".join([*parts, f"refused {refused}" if refused else "not sent", ending])

    def _noted(self, case: Case) -> list[str]:
        if case is PIPELINED:
            return ["pipelined" if self.tap.is_pipelined else "one command at a time"]
        if case.tls:
            protocols = {mail.origin.protocol for mail, _ in self._queue.mails if mail.origin}
            return [] if protocols == {"ESMTPS"} else ["in clear"]
        return []

    def _is_settled(self, case: Case) -> bool:
        copies = sum(len(arrival.recipients) for arrival in self._taken(case))
        return copies >= len(case.recipients) * case.mails or self._is_bounced(case)

    def _is_bounced(self, case: Case) -> bool:
        """Return whether the sender of a case's mail got a notification about it."""
        return any(
            _is_notification(mail, case) and case.token().encode() in content
            for mail, content in self._queue.mails
        )

    def _taken(self, case: Case) -> list[Arrival]:
        return [
            Arrival(mail.recipients, content)
            for mail, content in self._queue.mails
            if not _is_notification(mail, case)
        ]


def _is_notification(mail: Mail, case: Case) -> bool:
    return mail.sender is None and mail.recipients == (case.sender,)


@asynccontextmanager
async def receiving(
    certificates: Certificates, most_recipients: int = MAX_RECIPIENTS
) -> AsyncIterator[Receiving]:
    queue = RecordingQueue()
    offer = Offer("postroad.example", LIMIT_BYTES, most_recipients)
    servers = []
    for tls in (None, certificates.server_context):
        context = IntakeContext(
            cast("MailQueue", queue), offer, MachineClock(), SystemRandomness(), tls=tls
        )
        servers.append(SmtpServer(context))
        await servers[-1].listen("127.0.0.1", 0)
    async with Tap(servers[0].port) as tap:
        yield Receiving(tap, queue, servers[0].port, servers[1].port)
    for server in servers:
        await server.drain(timedelta(seconds=1))


def by_smtplib(port: int) -> Inject:
    """Hand mails to a peer, all in one session."""

    def inject(case: Case) -> str:
        with smtplib.SMTP("127.0.0.1", port, "client.example", timeout=LONG_SECONDS) as client:
            client.ehlo()
            options, recipients = [], case.recipients
            if case.is_utf8 and client.has_extn("smtputf8"):
                options.append("SMTPUTF8")
            elif case.is_utf8:
                recipients = tuple(map(in_a_labels, recipients))
                if not "".join(recipients).isascii():
                    return "not offered by the server"
            if not case.body.isascii():
                options.append("BODY=8BITMIME")
            for number in range(case.mails):
                refused = client.sendmail(
                    case.sender or "", recipients, case.content(number), options
                )
                if refused:
                    return f"refused by the server: {next(iter(refused.values()))[0]}"
        return ""

    async def attempt(case: Case) -> str:
        try:
            return await asyncio.to_thread(inject, case)
        except smtplib.SMTPResponseException as error:
            return f"refused by the server: {error.smtp_code}"

    return attempt


def by_swaks(folder: Path, port: int) -> Inject:
    """Let swaks send mails to the intake itself, each in a session of its own."""

    async def inject(case: Case) -> str:
        if case.is_utf8 and not "".join(map(in_a_labels, case.recipients)).isascii():
            return "not spoken by the client"
        options = ["--tls"] if case.tls else ["--pipeline"] if case is PIPELINED else []
        recipients = tuple(map(in_a_labels, case.recipients))
        for number in range(case.mails):
            await swaks.send(
                folder, port, case.sender or "", recipients, case.content(number), *options
            )
        return ""

    return inject


@pytest.mark.needs("peers")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [Postfix, Exim, OpenSmtpd, Haraka, Maddy, James])
async def test_postroad_takes_what_a_server_sends(
    kind: type[Peer], base: Path, certificates: Certificates
) -> None:
    prepared(kind)
    # OpenSMTPD gives up the whole mail after 25 refusals in a row, so it never reaches the rest.
    most = DEFAULT_MOST_RECIPIENTS if kind is OpenSmtpd else MAX_RECIPIENTS
    async with receiving(certificates, most) as intake:
        cells = {}
        for secures in (False, True):
            road = Road(intake.tap.port, certificates, secures=secures, retry_seconds=5)
            peer = kind(base / str(secures), road)
            await peer.start()
            try:
                inject = by_smtplib(peer.port)
                for case in RECEIVED:
                    if case.tls == secures:
                        cells[case.name] = await intake.cell(case, inject, waits=True)
            finally:
                await peer.stop()
    _settle(peer.title, cells)


@pytest.mark.needs("peers")
async def test_postroad_takes_what_a_client_sends(base: Path, certificates: Certificates) -> None:
    prepared(Postfix)  # swaks lies in the same folder
    async with receiving(certificates) as intake:
        inject = by_swaks(base, intake.tap.port)
        cells = {case.name: await intake.cell(case, inject, waits=False) for case in RECEIVED}
    _settle("swaks", cells)


def _settle(column: str, cells: dict[str, str]) -> None:
    for name in ("plain, 7-bit", "lines of dots", "null sender", PIPELINED.name, SECURED.name):
        assert cells[name].startswith(WHOLE), cells
    assert "in clear" not in cells[SECURED.name], cells
    bad = ("LOST", "TWICE", "WANTED", "CHANGES")
    assert not [each for each in cells.values() if any(word in each for word in bad)], cells
    settle(SECTION, column, cells)
