"""The header of submitted mail, in chunks of every size: what goes on, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from postroad.domain.mail.shapes import MAX_HEADER
from postroad.intake.reply_texts import LARGE_HEADER, MALFORMED_HEADER
from postroad.intake.submitted_header import (
    WRONG_AUTHOR,
    SubmittedHeader,
)
from postroad.routing.tables import SenderPatterns

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SENDERS = SenderPatterns.of(("@example.org",))


def fed(header: SubmittedHeader, content: bytes, size: int) -> bytes:
    chunks = [content[at : at + size] for at in range(0, len(content), size)] or [b""]
    return b"".join(
        header.feed(chunk, is_end=number == len(chunks)) for number, chunk in enumerate(chunks, 1)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "content",
    [
        b"From: a@example.org\r\nDate: x\r\nMessage-ID: <y>\r\n\r\nbody\r\n\r\nmore\r\n",
        b"From: a@example.org\r\n b@example.org\r\nDate: x\r\nMessage-ID: <y>\r\n\r\n",
        b"\r\nno header\r\n",
    ],
)
def test_a_complete_header_goes_on_as_it_is(content: bytes, size: int) -> None:
    header = SubmittedHeader(None, None, NOW)

    assert fed(header, content, size) == content
    assert header.refusal is None


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_what_lacks_is_added_and_what_names_hidden_recipients_goes(size: int) -> None:
    header = SubmittedHeader(SENDERS, "1@mx.example", NOW)
    content = (
        b"Return-Path: <x@y>\r\nFrom: a@example.org\r\nBCC: one@x,\r\n two@x\r\nSubject: s\r\n"
        b"\r\nBcc: of the body\r\n"
    )

    assert fed(header, content, size) == (
        b"From: a@example.org\r\nSubject: s\r\nDate: Sun, 29 Nov 2026 12:00:00 +0000\r\n"
        b"Message-ID: <1@mx.example>\r\n\r\nBcc: of the body\r\n"
    )
    assert header.refusal is None


@pytest.mark.parametrize("content", [b"From: a@example.org\r\n", b"From: a@example.org"])
def test_a_mail_that_ends_within_its_header_is_complete(content: bytes) -> None:
    header = SubmittedHeader(SENDERS, "1@mx.example", NOW)

    assert fed(header, content, 4).startswith(b"From: a@example.org\r\nDate: ")
    assert header.refusal is None


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"From: a@else.example\r\n\r\n", WRONG_AUTHOR),
        (b"From: a@example.org\r\nFrom: a@example.org\r\n\r\n", WRONG_AUTHOR),
        (b"FROM : b@else.example\r\n\r\n", WRONG_AUTHOR),
        (b"From: a@example.org\r\nSender: s@else.example\r\n\r\n", WRONG_AUTHOR),
        (b"From:\r\n\r\n", WRONG_AUTHOR),
        (b"From: =?utf-8?q?a=40example=2Eorg?= <b@else.example>\r\n\r\n", WRONG_AUTHOR),
        (b"\r\nFrom: a@example.org\r\n\r\n", WRONG_AUTHOR),
        (b"From: a@" + b"a." * 100_000 + b"example.org\r\n\r\n", WRONG_AUTHOR),
        (b"no field\r\nFrom: a@example.org\r\n\r\n", MALFORMED_HEADER),
        (b"X: " + b"x" * MAX_HEADER, LARGE_HEADER),
    ],
)
def test_a_header_that_hides_its_author_is_refused(content: bytes, refusal: object) -> None:
    header = SubmittedHeader(SENDERS, None, NOW)
    fed(header, content, 10_000)

    assert header.refusal is refusal
