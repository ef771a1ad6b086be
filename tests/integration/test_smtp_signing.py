"""What a next hop receives over a real socket carries signatures that verify."""

from __future__ import annotations

from itertools import count

import pytest

from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.routing.routes import ResolvedHop
from postroad.signing.signatures import MailSigner, SigningRule
from postroad.smtp.client.connections import SmtpConnector
from support.connections import Events, a_job
from support.mails import samples
from support.memory.clock import START
from support.signing import records, selected, verified
from support.sink import EXTENSIONS, HANG_UP, Sink
from support.smtp_relay import hand_over, kinds, relay_to

DOMAIN = "origin.example"
KEYS = (selected("rsa"), selected("ed"))
DNS = records(DOMAIN, *KEYS)
NO_8BIT = tuple(each for each in EXTENSIONS if each != "8BITMIME")


class OneRule:
    """Signs every mail that has an author."""

    def begin(self, header: bytes, envelope: Envelope) -> MailSigner | None:
        return MailSigner(SigningRule(DOMAIN, KEYS), START) if b"From: " in header else None


@pytest.mark.parametrize("extensions", [EXTENSIONS, NO_8BIT], ids=["8 bits", "7 bits"])
async def test_a_relay_signs_mails_of_every_shape(extensions: tuple[str, ...]) -> None:
    async with Sink(extensions=extensions) as sink:
        relay = relay_to(sink, signer=OneRule())
        for sample in samples(17):
            outcomes = await hand_over(relay, sample.mail)
            if b"From: " in sample.content and OutcomeKind.FAILED not in kinds(outcomes).values():
                mail = sink.mails[-1]
                assert verified(mail.content, DNS) == [True, True], sample.shape
                assert mail.mail_parameters[0] == f"SIZE={len(mail.content)}"
        await relay.close()

    assert len(sink.mails) >= 14


async def test_a_connection_signs_the_mail_ahead_too() -> None:
    sent = [each.content for each in samples(12) if b"From: " in each.content]
    async with Sink() as sink:
        hop = ResolvedHop(NextHop("hop.example", sink.port, TlsMode.NONE), ("127.0.0.1",))
        events = Events()
        connector = SmtpConnector(ehlo_name="relay.example", signer=OneRule())
        connection = connector.open(hop, events)
        for number, content in enumerate(sent):
            connection.submit(a_job(number, content=content))
        await events.until_finished(len(sent))
        connection.close()
        await events.until_closed()

    assert [verified(each.content, DNS) for each in sink.mails] == [[True, True]] * len(sent)


async def test_a_mail_that_meets_a_stale_session_is_signed_once() -> None:
    connections = count()

    def ends_the_second_mail(verb: str, argument: str) -> str | None:
        return HANG_UP if verb == "MAIL" and next(connections) == 1 else None

    mail = next(each.mail for each in samples() if each.shape == "plain")
    async with Sink(ends_the_second_mail) as sink:
        relay = relay_to(sink, signer=OneRule())
        for _ in range(2):
            assert set(kinds(await hand_over(relay, mail)).values()) == {OutcomeKind.DELIVERED}
        await relay.close()

    assert sink.connections == 2
    assert [verified(each.content, DNS) for each in sink.mails] == [[True, True]] * 2
    assert [each.content.count(b"DKIM-Signature") for each in sink.mails] == [2, 2]
