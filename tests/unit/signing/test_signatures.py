"""What is signed verifies by dkimpy, as it is sent; and what a signature does not let pass."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import islice

import pytest

from postroad.domain.mail.address_lists import fields_of
from postroad.domain.mail.dot_stuffing import Stuffer, Unstuffer
from postroad.domain.mail.shapes import shape_of
from postroad.errors import InvalidMail
from postroad.signing.signatures import (
    MAX_SIGNED,
    Canonical,
    MailSigner,
    SigningRule,
    author_domain,
)
from postroad.smtp.client.transaction.content import OpenContent
from support.mails import samples
from support.signing import records, selected, verified

NOW = datetime(2026, 11, 24, tzinfo=UTC)
DOMAIN = "origin.example"
KEYS = (selected("rsa1"), selected("ed1"))
RULE = SigningRule(DOMAIN, KEYS)
DNS = records(DOMAIN, *KEYS)
FORMS = [(header, body) for header in Canonical for body in Canonical]
MAIL = b"From: a@origin.example\r\nTo: b@c.example\r\nSubject: x\r\n\r\nbody\r\n"


def signed(mail: bytes, rule: SigningRule = RULE) -> bytes:
    signer = MailSigner(rule, NOW)
    signer.feed(mail)
    return signer.end() + mail


async def cut(mail: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(mail), size):
        yield mail[at : at + size]


async def on_the_wire(mail: bytes, rule: SigningRule, chunk: int, *, is_7bit: bool) -> bytes:
    """What a next hop receives of a mail."""
    content = await OpenContent.peek(cut(mail, chunk), len(mail), shape_of((mail,)))
    if is_7bit:
        content = await content.in_seven_bits()
    content = await content.signed(MailSigner(rule, NOW))
    stuffer, unstuffer = Stuffer(content.shape, folds=content.folds), Unstuffer()
    wire = stuffer.feed(content.first)
    while (piece := await content.more()) is not None:
        wire += stuffer.feed(piece)
    received, rest = unstuffer.feed(wire + stuffer.end())
    assert rest == b""
    assert content.sent_size == len(received)
    return received


def generated(seed: int) -> Iterator[bytes]:
    """Mails with odd blanks, folds, repeated and unusual fields, line ends of all kinds, long lines
    and dots."""
    chance = random.Random(seed)
    blanks = ["", " ", "  ", "\t", " \t ", "\r\n ", "\r\n\t "]

    def blank() -> str:
        return chance.choice(blanks)

    def value() -> str:
        words = chance.randrange(1, 8)
        return blank().join(chance.choice(["a", "é", "x:y", "=?utf-8?q?z?=", "."]) + "w"
                            for _ in range(words))  # fmt: skip

    names = (
        *("Subject", "to", "CC", "Received", "X-Odd", "List-Id", "List-Unsubscribe", "DATE"),
        *("Resent-From", "MIME-Version", "Content-Type", "References", "DKIM-Signature"),
    )
    pieces = ["text", " ", "  ", "\t", "\n", "\r\n", "\r\n\r\n", ".", "\r\n.", "ü", "y" * 1200]
    while True:
        fields = [f"{chance.choice(names)}:{blank()}{value()}" for _ in range(chance.randrange(9))]
        fields.insert(chance.randrange(len(fields) + 1), f"From:{blank()}A <a@{DOMAIN}>{blank()}")
        body = "".join(chance.choice(pieces) for _ in range(chance.randrange(60)))
        end = chance.choice(["\r\n", "\n"])
        header = "".join(f"{each}\r\n" for each in fields)
        yield f"{header}\r\n{body}".encode().replace(b"\r\n", end.encode())


def mails() -> Iterator[bytes]:
    yield from (each.content for each in samples(150) if each.shape not in ("dot-first",))
    yield from generated(7)


async def test_a_thousand_mails_verify_as_they_are_sent() -> None:
    for number, mail in enumerate(islice(mails(), 1000)):
        rule = SigningRule(DOMAIN, KEYS, None, False, *FORMS[number % len(FORMS)])

        received = await on_the_wire(mail, rule, 1 + 997 * (number % 90), is_7bit=number % 5 == 0)

        assert verified(received, DNS) == [True, True], (number, mail)


def test_a_header_is_found_at_every_cut() -> None:
    whole = signed(MAIL, SigningRule(DOMAIN, KEYS[1:]))
    for at in range(len(MAIL)):
        signer = MailSigner(SigningRule(DOMAIN, KEYS[1:]), NOW)
        signer.feed(MAIL[:at])
        signer.feed(MAIL[at:])

        assert signer.end() + MAIL == whole


@pytest.mark.parametrize(
    "change",
    [
        (b"body", b"BODY"),
        (b"Subject: x", b"Subject: y"),
        (b"\r\n\r\nbody", b"\r\nFrom: c@d.example\r\n\r\nbody"),
        (b"\r\n\r\nbody", b"\r\nReply-To: c@d.example\r\n\r\nbody"),
        (b"\r\n\r\nbody", b"\r\nSubject: y\r\n\r\nbody"),
        (b"\r\n\r\nbody", b"\r\nCc: c@d.example\r\n\r\nbody"),
        (b"\r\nbody\r\n", b"\r\nbody\r\nmore\r\n"),
    ],
)
def test_a_change_breaks_each_signature(change: tuple[bytes, bytes]) -> None:
    mail = signed(MAIL)
    assert verified(mail, DNS) == [True, True]

    assert verified(mail.replace(*change), DNS) == [False, False]


def test_what_relays_and_lists_add_breaks_none() -> None:
    mail = b"Received: by relay.example\r\n" + signed(MAIL).replace(
        b"\r\n\r\nbody\r\n", b"\r\nList-Id: <l.example>\r\nX-Spam: no\r\n\r\nbody \r\n\r\n"
    )

    assert verified(mail, DNS) == [True, True]


def test_the_fields_of_a_signature_are_what_its_readers_need() -> None:
    field = signed(MAIL).partition(b"\r\nDKIM")[0].decode()

    assert re.sub(r"\s+", "", field).startswith(
        "DKIM-Signature:v=1;a=rsa-sha256;c=relaxed/relaxed;d=origin.example;s=rsa1;"
        f"t={int(NOW.timestamp())};h=from:from:reply-to:subject:subject:to:to:cc;bh="
    )
    assert max(map(len, field.splitlines())) <= 78


@pytest.mark.parametrize(
    "header",
    [
        b"From: a@origin.example\r\nno field\r\n",
        b" From: a@origin.example\r\n",
        b"From: a@origin.example\r\n" + b"To: b@c.example\r\n" * MAX_SIGNED,
        b"From: a@origin.example\r\nX: " + b"x" * 300_000 + b"\r\n",
    ],
    ids=["no field", "begins with a fold", "too many", "too long"],
)
def test_a_header_that_servers_read_differently_is_not_signed(header: bytes) -> None:
    with pytest.raises(InvalidMail):
        signed(header + b"\r\nbody\r\n")


@pytest.mark.parametrize(
    ("field", "domain"),
    [
        (b"From: a@Origin.Example", "origin.example"),
        (b'FROM : "b@other.example" <a@origin.example>', "origin.example"),
        (b"From:\r\n =?utf-8?q?=C3=BC?=\r\n <a@o.example> (c@other.example)", "o.example"),
        (b"From: a@one.example, b@one.example", "one.example"),
        ("From: ü@bücher.example".encode(), "xn--bcher-kva.example"),
    ],
)  # fmt: skip
def test_the_author_is_the_address_of_from(field: bytes, domain: str) -> None:
    assert author_domain(fields_of(b"Sender: s@else.example\r\n" + field + b"\r\n\r\n")) == domain


@pytest.mark.parametrize(
    "header",
    [
        b"To: a@origin.example",
        b"From: a@origin.example\r\nFrom: a@origin.example",
        b"From: a@one.example, b@two.example",
        b"From: undisclosed",
        b"From: ",
        b"From: a@-\xff.example",
        b"From: friends: a@one.example, b@two.example;",
        b"From: a@one.example)b@one.example",
        b"From: a@one.example]<b@one.example>",
        b"From: a@b\xfccher.example",
    ],
)
def test_a_mail_without_one_author_domain_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidMail):
        author_domain(fields_of(header + b"\r\n\r\n"))
