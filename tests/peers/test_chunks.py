"""Postfix takes mails that are sent whole before others are answered, refused ones among them."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from peers.conftest import prepared
from peers.postfix import Postfix
from peers.server import Road
from peers.tap import Tap
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connections import SmtpConnector
from support.certificates import Certificates
from support.connections import Events, a_job
from support.sink import Sink

MAILS = 40
REFUSED = "refused@dest.example"


@pytest.mark.needs("peers")
@pytest.mark.timeout(300)
async def test_postfix_takes_a_series_of_chunks(base: Path, certificates: Certificates) -> None:
    """Every fifth mail is for no other than the recipient who is refused, some are for both."""
    prepared(Postfix)
    recipients = {
        job: (REFUSED,) if job % 5 == 0 else (f"b{job}@dest.example", REFUSED)[: 1 + (job % 7 == 0)]
        for job in range(1, MAILS + 1)
    }
    async with Sink() as sink:
        peer = Postfix(base, Road(sink.port, certificates))
        await peer.start()
        try:
            async with Tap(peer.port) as tap:
                hop = NextHop("127.0.0.1", tap.port, TlsMode.NONE)
                events = Events()
                connection = SmtpConnector(ehlo_name="postroad.example").open(
                    ResolvedHop(hop, ("127.0.0.1",)), events
                )
                for job, to in recipients.items():
                    connection.submit(a_job(job, *to))
                await events.until_finished(MAILS)
                connection.close()
                await events.until_closed()
                said = b"".join(tap.said)
            wanted = {each for to in recipients.values() for each in to} - {REFUSED}
            async with asyncio.timeout(60):
                while sink.received < len(wanted):
                    await asyncio.sleep(0.05)
        finally:
            await peer.stop()

    assert said.count(b"BDAT") > MAILS // 2
    assert events.jobs == list(recipients)
    for job, kinds in events.finished.items():
        assert kinds == {
            each: OutcomeKind.FAILED if each == REFUSED else OutcomeKind.DELIVERED
            for each in recipients[job]
        }
    assert Counter(each for mail in sink.mails for each in mail.recipients) == Counter(wanted)
