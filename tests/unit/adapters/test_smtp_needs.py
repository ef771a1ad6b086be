"""What a mail needs of a next hop is refused where the mail is known to need it; what its sender
asked for is passed on where the next hop offers it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postroad.domain.mail.mail import DsnOptions, Envelope, Origin, RecipientDsn
from postroad.domain.mail.shapes import Shape
from postroad.smtp.client.transaction.commands import Needs, recipient_command, refusals
from postroad.smtp.client.transaction.content import MAX_CHANGED, OpenContent

SIZE = MAX_CHANGED + 1


async def no_more() -> AsyncIterator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


@pytest.mark.parametrize(
    ("shape", "is_refused"),
    [(None, False), (Shape(4), False), (Shape(4, has_8bit_body=True), True)],
    ids=["not known", "7 bits", "8 bits"],
)
async def test_only_octets_that_were_found_fail_a_mail_where_8bitmime_is_missing(
    shape: Shape | None, *, is_refused: bool
) -> None:
    """A mail from a release that looked at none can be too large to be looked at now."""
    content = await OpenContent(b"a:b\n", no_more(), SIZE, shape).in_seven_bits()

    assert bool(refused_by({}, content)) == is_refused


async def test_a_mail_with_nul_is_refused_whatever_the_next_hop_offers() -> None:
    octets = b"a: b\r\n\r\nc\r\n\0.\r\nMAIL FROM:<x@evil.example>\r\n"
    content = OpenContent.at_hand(octets, None)

    refused = refused_by({"CHUNKING": "", "8BITMIME": ""}, content)

    assert refused == {PLAIN: "554 5.6.0"}


@pytest.mark.parametrize("offered", ["8BITMIME", "SMTPUTF8"])
async def test_a_next_hop_with_smtputf8_takes_eight_bits(offered: str) -> None:
    """Source: RFC 6531 3.1."""
    content = OpenContent.at_hand(UTF8_HEADER, None)

    assert refused_by({offered: ""}, content) == {}
    assert refused_by({}, content) == {PLAIN: "554 5.6.3"}


@pytest.mark.parametrize(
    ("limit", "is_refused"),
    [("1000", False), ("999", True), (" 999 ", True), ("0", False), ("", False)]
    + [(other, False) for other in ("\u0663", "\u00b2", "-1", "1e2", "1" * 4000, "10 20")],
)
async def test_only_a_number_in_ascii_limits_the_size(limit: str, is_refused: bool) -> None:
    content = OpenContent(b"a:b\n", no_more(), 1000, Shape(4))

    assert bool(refused_by({"SIZE": limit}, content)) == is_refused


PLAIN, IDN, LOCAL, NO_DOMAIN = (
    *("c@d.example", "c@bücher.example", "jörg@d.example"),
    "c@" + "ü" * 64 + ".example",
)
SIZE_OFFERED, UTF8_OFFERED = {"SIZE": ""}, {"SMTPUTF8": "", "8BITMIME": ""}
ASCII_HEADER, UTF8_HEADER = b"Subject: x\r\n\r\n", "Subject: ü\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("recipients", "refused"),
    [
        ((PLAIN, LOCAL), (LOCAL,)),
        ((LOCAL, PLAIN, IDN, NO_DOMAIN), (LOCAL, NO_DOMAIN)),
        ((PLAIN, IDN, "postmaster"), ()),
        ((LOCAL,), (LOCAL,)),
    ],
)
@pytest.mark.parametrize("sender", [None, "a@b.example", "a@bücher.example"])
def test_only_recipients_whose_addresses_need_smtputf8_fail_without_it(
    sender: str | None, recipients: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    """Source: RFC 6531 3.2. A domain goes in A-labels."""
    envelope = Envelope(sender, recipients, origin=Origin(protocol="UTF8SMTP"))
    content = OpenContent.at_hand(ASCII_HEADER, None)

    assert refused_by(SIZE_OFFERED, content, envelope) == dict.fromkeys(refused, "550 5.6.7")
    assert refused_by(UTF8_OFFERED, content, envelope) == {}


@pytest.mark.parametrize(
    ("sender", "header", "protocol"),
    [("jörg@b.example", ASCII_HEADER, "UTF8SMTP"), ("a@b.example", UTF8_HEADER, "UTF8SMTP")],
    ids=["sender", "header"],
)
def test_a_sender_or_header_that_needs_smtputf8_fails_all_recipients_without_it(
    sender: str, header: bytes, protocol: str
) -> None:
    envelope = Envelope(sender, (PLAIN, LOCAL), origin=Origin(protocol=protocol))
    content = OpenContent.at_hand(header, None)

    refused = refused_by({"8BITMIME": ""}, content, envelope)

    assert refused == dict.fromkeys((PLAIN, LOCAL), "550 5.6.7")


def refused_by(
    extensions: dict[str, str],
    content: OpenContent,
    envelope: Envelope = Envelope("a@b.example", (PLAIN,)),  # noqa: B008
) -> dict[str, str]:
    """Return the recipients that are refused, with their codes."""
    found = refusals(envelope, Needs.of(envelope, content), extensions) or {}
    return {each: outcome.text[:9] for each, outcome in found.items()}


@pytest.mark.parametrize(
    ("dsn", "parameters"),
    [
        (RecipientDsn(("SUCCESS", "DELAY"), "rfc822;c+d@e.example"),
         b" NOTIFY=SUCCESS,DELAY ORCPT=rfc822;c+2Bd@e.example"),
        (RecipientDsn((), "rfc822;c@d.example"), b" ORCPT=rfc822;c@d.example"),
        (RecipientDsn(("NEVER",)), b" NOTIFY=NEVER"),
        (RecipientDsn(), b""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_offered", [True, False])
def test_what_a_sender_asks_for_a_recipient_goes_where_dsn_is_offered(
    dsn: RecipientDsn, parameters: bytes, *, is_offered: bool
) -> None:
    """Source: RFC 3461 4."""
    recipient = "c@d.example"
    envelope = Envelope("a@b.example", (recipient,), dsn=DsnOptions(recipients={recipient: dsn}))

    command = recipient_command(recipient, envelope, {"DSN": ""} if is_offered else {})

    assert command == b"RCPT TO:<c@d.example>" + parameters * is_offered + b"\r\n"
