"""Other implementations: aiosmtpd as the server of our client, aiosmtplib as the client of our
server."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import aiosmtplib
from aiosmtpd.smtp import SMTP, Envelope, Session

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer
from postroad.ports.mail_queue import MailQueue
from support.mails import samples
from support.one_hop import OneHop
from support.recording_queue import RecordingQueue


def _sender(envelope: Envelope) -> str | None:
    return None if envelope.mail_from in (None, "", "<>") else envelope.mail_from


class Maintenance:
    """Keeps each mail as aiosmtpd read it."""

    def __init__(self) -> None:
        self.mails: list[tuple[str | None, tuple[str, ...], bytes]] = []

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.original_content
        assert content is not None
        self.mails.append((_sender(envelope), tuple(envelope.rcpt_tos), content))
        return "250 2.0.0 kept"


async def test_aiosmtpd_receives_what_we_send() -> None:
    sent = [each for each in samples(34) if each.dsn is None and each.shape != "long-lines"]
    maintenance = Maintenance()
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(maintenance, hostname="peer.example", enable_SMTPUTF8=True), "127.0.0.1", 0
    )
    relay = OneHop(
        NextHop("127.0.0.1", server.sockets[0].getsockname()[1], TlsMode.NONE), ehlo_name="x"
    )
    for sample in sent:

        async def octets(content: bytes = sample.content) -> AsyncIterator[bytes]:
            yield content

        outcomes = await relay.transmit(sample.mail.envelope, octets(), len(sample.content))
        assert {each.kind for each in outcomes.values()} == {OutcomeKind.DELIVERED}, sample.shape
    await relay.close()
    server.close()

    assert maintenance.mails == [(each.sender, each.recipients, each.sent) for each in sent]


async def test_we_receive_what_aiosmtplib_sends() -> None:
    queue = RecordingQueue()
    context = IntakeContext(
        cast("MailQueue", queue), Offer("x.example", 2**24), MachineClock(), SystemRandomness()
    )
    server = SmtpServer(context)
    await server.listen("127.0.0.1", 0)
    sent = [each for each in samples(34) if each.shape not in ("dsn", "utf8-address")]
    client = aiosmtplib.SMTP(hostname="127.0.0.1", port=server.port, start_tls=False)
    await client.connect()
    for sample in sent:
        await client.sendmail(sample.sender or "", list(sample.recipients), sample.content)
    await client.quit()
    await server.drain(timedelta(seconds=1))

    arrived = [(mail.sender, mail.recipients, content) for mail, content in queue.mails]
    assert [(s, r, c.split(b"\r\n", 3)[3]) for s, r, c in arrived] == [
        (each.sender, each.recipients, each.sent) for each in sent
    ]
