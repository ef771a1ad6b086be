"""What a next hop gets of reverse-paths that name the recipient. Source: ADR 0071."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap.followed_file import path_of
from postroad.domain.mail.mail import DsnOptions, Envelope
from postroad.domain.mail.return_paths import ReturnPaths, plain_path
from postroad.ports.delivery import Transmission
from postroad.smtp.client.opening import PathOf
from support.connections import Events, a_job
from support.fake_hop import FakeHop
from support.smtp_connections import connect

CHUNKING = ("PIPELINING", "CHUNKING", "DSN")
PLAIN = "postroad_plain_return_paths_total"


async def sent(*envelopes: Envelope, verp: bool = True, path_of: PathOf = plain_path) -> list[str]:
    """Return the commands MAIL and RCPT without their angle brackets."""
    hop, events = FakeHop(extensions=CHUNKING), Events()
    connection = connect(hop, events, verp=verp, path_of=path_of)
    for number, envelope in enumerate(envelopes, 1):
        connection.submit(with_envelope(a_job(number), envelope))
    await events.until_finished(len(envelopes))
    connection.close()
    await events.until_closed()
    lines = hop.received.decode().split("\r\n")
    return [each for each in lines if each.startswith(("MAIL", "RCPT"))]


def with_envelope(job: Transmission, envelope: Envelope) -> Transmission:
    return replace(job, envelope=envelope)


async def test_the_reverse_path_names_the_recipient_and_the_rest_of_the_command_stays() -> None:
    dsn = DsnOptions(ret="HDRS", envid="id-1")

    lines = await sent(Envelope("a@o.example", ("b@d.example",), dsn=dsn))

    assert lines == [
        "MAIL FROM:<a+b=d.example@o.example> RET=HDRS ENVID=id-1",
        "RCPT TO:<b@d.example>",
    ]


async def test_one_recipient_goes_at_a_time() -> None:
    lines = await sent(Envelope("a@o.example", ("b@d.example", "c@d.example")))

    assert lines == ["MAIL FROM:<a+b=d.example@o.example>", "RCPT TO:<b@d.example>"]


@pytest.mark.parametrize("verp", [True, False])
async def test_reports_keep_the_null_reverse_path_and_their_recipients(verp: bool) -> None:
    lines = await sent(Envelope(None, ("b@d.example", "c@d.example")), verp=verp)

    assert lines == ["MAIL FROM:<>", "RCPT TO:<b@d.example>", "RCPT TO:<c@d.example>"]


async def test_a_recipient_that_cannot_be_named_has_the_plain_reverse_path_which_is_counted() -> (
    None
):
    before = REGISTRY.get_sample_value(PLAIN) or 0.0

    lines = await sent(Envelope("a@o.example", ("b" * 60 + "@d.example",)))

    assert lines[0] == "MAIL FROM:<a@o.example>"
    assert REGISTRY.get_sample_value(PLAIN) == before + 1


async def test_mails_that_go_as_chunks_name_their_recipients() -> None:
    lines = await sent(*(Envelope("a@o.example", (f"b{number}@d.example",)) for number in range(6)))

    assert [each for each in lines if each.startswith("MAIL")] == [
        f"MAIL FROM:<a+b{number}=d.example@o.example>" for number in range(6)
    ]


async def test_a_signed_path_is_of_the_mail_and_its_tenant() -> None:
    secrets, day = ReturnPaths([b"a secret of twenty-four octets"]), MachineClock().now().date()
    tenant = {"postroad.tenant": "acme"}
    envelope = Envelope("a@o.example", ("b@d.example",), attributes=tenant)

    (line, _) = await sent(envelope, path_of=path_of(lambda: secrets, MachineClock()))

    found = secrets.open(line.removeprefix("MAIL FROM:<").partition(">")[0], day)
    assert found
    assert (found.sender, found.recipient, found.tenant) == ("a@o.example", "b@d.example", "acme")


async def test_without_a_secret_a_path_is_not_signed() -> None:
    lines = await sent(
        Envelope("a@o.example", ("b@d.example",)), path_of=path_of(lambda: None, MachineClock())
    )

    assert lines[0] == "MAIL FROM:<a+b=d.example@o.example>"
