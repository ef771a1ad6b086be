"""A content on its way out is looked at, and converted, in small steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from email import message_from_bytes

import pytest

from postroad.domain.mail.seven_bits import PIECE
from postroad.domain.mail.shapes import MAX_HEADER, Shape, shape_of
from postroad.smtp.client.transaction import content as contents
from postroad.smtp.client.transaction.content import OpenContent
from support.manual_loop import run

MEBIBYTE = 1024 * 1024
HEADER = b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"


async def each(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def all_of(content: OpenContent) -> bytes:
    found = content.first
    while (chunk := await content.more()) is not None:
        found += chunk
    return found


@pytest.mark.parametrize("is_looked_at", [True, False])
@pytest.mark.parametrize("line", ["Grüße\r\n".encode(), "Grüße\n".encode(), b"\xfc" * 77])
async def test_others_go_on_while_a_large_mail_is_converted(
    line: bytes, *, is_looked_at: bool
) -> None:
    mail = HEADER + line * (2 * MEBIBYTE // len(line))
    chunks = [mail[at : at + MEBIBYTE] for at in range(0, len(mail), MEBIBYTE)]
    content = await OpenContent.peek(
        each(chunks), len(mail), shape_of(chunks) if is_looked_at else None
    )
    converting = asyncio.create_task(content.in_seven_bits())

    passes = 0
    while not converting.done():
        passes += 1
        await asyncio.sleep(0)

    assert passes >= 2 * MEBIBYTE // PIECE
    converted = await converting
    sent = await all_of(converted)
    assert sent.isascii()
    assert converted.shape == shape_of((sent,))
    expected = mail.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")[len(HEADER) :]
    assert message_from_bytes(sent).get_payload(decode=True) == expected
    assert await all_of(content) == mail  # for a next hop that takes it as it is


def test_a_conversion_waits_for_no_time() -> None:
    async def scene() -> None:
        mail = HEADER + "Grüße\r\n".encode() * (2 * PIECE // 9)
        content = await OpenContent.peek(each([mail]), len(mail))
        converting = asyncio.create_task(content.in_seven_bits())
        for _ in range(1000):
            await asyncio.sleep(0)

        assert converting.done()

    run(scene())


async def test_of_a_mail_without_a_body_no_more_than_a_header_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []

    def note(header: bytes) -> bool:
        parsed.append(len(header))
        return False

    monkeypatch.setattr(contents, "is_signed", note)
    no_body = b"x" * (2 * MAX_HEADER)
    with_body = b"Subject: x\r\n\r\n" + no_body
    for mail in (no_body, with_body):
        await OpenContent.peek(each([mail]), len(mail))
        await OpenContent.peek(each([mail]), len(mail) + 1)

    assert parsed == [MAX_HEADER, MAX_HEADER, 14, 14]


@pytest.mark.parametrize("is_8bit", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_header_of_8_bits_is_found_also_where_the_shape_is_unknown(
    *, is_8bit: bool, is_whole: bool
) -> None:
    first = b"Subject: " + ("ü" if is_8bit else "u").encode() + b"\r\n\r\n" + "ü".encode()

    content = await OpenContent.peek(each([first]), len(first) + (not is_whole))

    assert content.has_8bit_header == is_8bit
    assert content.may_have_8bit


@pytest.mark.parametrize(
    ("header", "folds", "are_folded"),
    [(b"a: b\r\n", 0, False), (b"a: b\r\n", 1, True),
     (b"DKIM-Signature: v=1\r\n", 1, False)],
)  # fmt: skip
def test_lines_that_are_too_long_are_folded_unless_the_mail_is_signed(
    header: bytes, folds: int, are_folded: bool
) -> None:
    first = header + b"\r\n" + b"x" * 1000
    shape = Shape(len(header), folds=folds)

    assert OpenContent(first, each([]), len(first), shape).folds == are_folded
