"""Mail that comes in chunks (BDAT): every cut gives the same mail, and nothing of it is a command.
Source: RFC 3030."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

import pytest

from postroad.domain.values.networks import Networks
from postroad.intake.clients import Rules
from support.intakes import an_intake

CONTENT = b"Subject: x\r\n\r\n.\r\n..dots\r\nQUIT\r\n.\r\nMAIL FROM:<evil@x>\r\nend\r\n"
BEGIN = b"EHLO c.example\r\n", b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@x.example>\r\n"
RULES = Rules(Networks.parse("127.0.0.0/8"))


def talk(port: int, *parts: bytes) -> list[int]:
    """Send all parts, EHLO alone at first, then QUIT; return the codes of all replies."""
    with socket.create_connection(("127.0.0.1", port), 30) as client, client.makefile("rb") as got:
        codes = []
        for number, part in enumerate((*parts, b"QUIT\r\n")):
            client.sendall(part)
            while number == 0 and (line := got.readline())[3:4] != b" ":
                pass  # the greeting
            if number == 0:
                while got.readline()[3:4] != b" ":
                    pass
        while line := got.readline():
            if line[3:4] == b" ":
                codes.append(int(line[:3]))
        return codes


def chunks(content: bytes, size: int) -> bytes:
    cut = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(
        b"BDAT %d%s\r\n%s" % (len(each), b" LAST" * (number == len(cut)), each)
        for number, each in enumerate(cut, 1)
    )


@pytest.mark.parametrize("size", [1, 3, 7, 16, 1000])
async def test_a_mail_in_chunks_is_the_mail_however_it_is_cut(size: int) -> None:
    async with an_intake(RULES) as (queue, port):
        got = await asyncio.to_thread(partial(talk, port, *BEGIN, chunks(CONTENT, size)))

    assert set(got[:-1]) == {250}
    assert got[-1] == 221
    ((mail, content),) = queue.mails
    assert mail.recipients == ("b@x.example",)
    assert content.endswith(b"\r\n" + CONTENT)


async def test_an_empty_last_chunk_ends_a_mail_and_the_next_one_follows() -> None:
    two = b"BDAT 4\r\nab\r\nBDAT 0 LAST\r\n"
    async with an_intake(RULES) as (queue, port):
        got = await asyncio.to_thread(partial(talk, port, *BEGIN, two, BEGIN[1], two))

    assert got == [250, 250, 250, 250] * 2 + [221]
    assert [content[-4:] for _, content in queue.mails] == [b"ab\r\n"] * 2


@pytest.mark.parametrize(
    ("parts", "codes"),
    [
        ((b"BDAT 6 LAST\r\nQUIT\r\n", b"NOOP\r\n"), [503, 250, 221]),
        ((b"MAIL FROM:<>\r\n", b"BDAT 6 LAST\r\nQUIT\r\n", b"NOOP\r\n"), [250, 554, 250, 221]),
        ((BEGIN[1], b"BDAT 2\r\nab", b"DATA\r\n"), [250, 250, 250, 554]),
        ((BEGIN[1], b"BDAT 2\r\nab", b"MAIL FROM:<>\r\n"), [250, 250, 250, 503, 221]),
        ((BEGIN[1], b"BDAT 2\r\nab", b"RCPT TO:<c@x>\r\n"), [250, 250, 250, 503, 221]),
        ((BEGIN[1], b"BDAT x LAST\r\nQUIT\r\n"), [250, 250, 501]),
        ((BEGIN[1], b"BDAT -1\r\n"), [250, 250, 501]),
        ((BEGIN[1], b"BDAT 99999999999\r\n"), [250, 250, 501]),
        ((BEGIN[1], b"BDAT 2 LAST\r\na\n"), [250, 250, 554, 221]),
        ((BEGIN[1], b"BDAT 2 LAST\r\na\0"), [250, 250, 554, 221]),
    ],
)
async def test_chunks_out_of_order_are_no_commands_and_no_mail(
    parts: tuple[bytes, ...], codes: list[int]
) -> None:
    async with an_intake(RULES) as (queue, port):
        got = await asyncio.to_thread(partial(talk, port, BEGIN[0], *parts))

    assert got == codes
    assert queue.mails == []


async def test_rset_between_chunks_drops_what_has_come() -> None:
    rest = b"BDAT 3\r\nxyzRSET\r\n", BEGIN[1], b"BDAT 4 LAST\r\nab\r\n"
    async with an_intake(RULES) as (queue, port):
        got = await asyncio.to_thread(partial(talk, port, *BEGIN, *rest))

    assert got[-1] == 221
    assert [content[-6:] for _, content in queue.mails] == [b"\r\nab\r\n"]


async def test_a_mail_too_large_is_refused_at_its_last_chunk() -> None:
    async with an_intake(RULES, max_size_bytes=1000) as (queue, port):
        got = await asyncio.to_thread(partial(talk, port, *BEGIN, chunks(b"a" * 2000, 500)))

    assert got[-2:] == [552, 221]
    assert queue.mails == []


async def test_a_large_mail_in_one_chunk_goes_through_a_file(tmp_path: Path) -> None:
    content = b"x" * 998 + b"\r\n"
    async with an_intake(RULES) as (queue, port):
        got = await asyncio.to_thread(partial(talk, port, *BEGIN, chunks(content * 900, 1 << 20)))

    assert got[-2:] == [250, 221]
    assert queue.mails[0][1].endswith(b"\r\n" + content * 900)
