"""Contents are signed as they go to their next hop, in bounded memory, also for a second one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.seven_bits import PIECE
from postroad.domain.mail.shapes import Shape, shape_of
from postroad.domain.smtp.next_hops import NextHop
from postroad.smtp.client.transaction import content as preparations
from postroad.smtp.client.transaction.content import OpenContent, Preparation

HOP = NextHop("mx.dest.example")
ENVELOPE = Envelope("a@b.example", ("c@d.example",))
FIELD = b"Signed: yes\r\n"
MEBIBYTE = 1024 * 1024


class Signed:
    """Keeps what it signs. `field`: what it puts before the mail."""

    def __init__(self, field: bytes = FIELD) -> None:
        self.field = field
        self.octets = b""
        self.largest = 0

    def begin(self, header: bytes, envelope: Envelope) -> Signed | None:
        return self if header.startswith(b"From") else None

    def feed(self, octets: bytes) -> None:
        self.octets += octets
        self.largest = max(self.largest, len(octets))

    def end(self) -> bytes:
        return self.field


async def chunks(mail: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(mail), MEBIBYTE):
        yield mail[at : at + MEBIBYTE]


async def opened(mail: bytes, *, has_shape: bool = True) -> OpenContent:
    shape: Shape | None = shape_of((mail,)) if has_shape else None
    return await OpenContent.peek(chunks(mail), len(mail), shape)


async def all_of(content: OpenContent) -> bytes:
    found = content.first
    while (chunk := await content.more()) is not None:
        found += chunk
    return found


async def sent(
    preparation: Preparation, content: OpenContent, *, takes_8bit: bool = True
) -> tuple[bytes, Shape | None]:
    preparing = preparation.of(content, ENVELOPE, HOP, takes_8bit=takes_8bit)
    if preparing is None:
        return await all_of(content), content.shape
    async with preparing as ready:
        return await all_of(ready), ready.shape


@pytest.mark.parametrize("has_shape", [True, False])
@pytest.mark.parametrize(
    "mail",
    [
        b"From: a\r\n\r\nbody\r\n",
        b"From: a\n\n.body\n",
        b"From: a\r\n\r\n.body\r\nno end",
        b"From: a\r\n\r\n" + b"x" * 3000 + b"\r\n",
        b"From: a\r\n\r\n" + b"line of text\r\n" * 200_000,
        b"From: a\r\n\r\n" + b"y" * MEBIBYTE + b"\r\r\n" + b"z" * MEBIBYTE,
        b"From: a\r\nDKIM-Signature: x\r\n\r\n" + b"x" * 3000,
    ],
    ids=["plain", "unix", "no end", "long line", "large", "large and odd", "of others"],
)
async def test_what_is_signed_is_what_is_sent(mail: bytes, *, has_shape: bool) -> None:
    signed, content = Signed(), await opened(mail, has_shape=has_shape)

    octets, shape = await sent(Preparation(signed), content)

    assert octets == FIELD + signed.octets
    assert octets.endswith(b"\r\n")
    assert octets.replace(b"\r\n ", b"").replace(b"\r\n", b"") == (FIELD + mail).replace(
        b"\r\n", b""
    ).replace(b"\n", b"").replace(b"\r", b"")
    assert shape == shape_of((octets,))
    assert signed.largest <= 2 * PIECE
    assert await all_of(content) == mail


async def test_a_mail_is_converted_before_it_is_signed() -> None:
    mail = b"From: a\r\nMIME-Version: 1.0\r\nContent-Type: text/plain\r\n\r\n\xc3\xbc\r\n"
    signed, content = Signed(), await opened(mail)

    octets, _ = await sent(Preparation(signed), content, takes_8bit=False)

    assert octets == FIELD + signed.octets
    assert signed.octets.isascii()
    signed.octets = b""
    assert (await sent(Preparation(signed), content))[0] == FIELD + mail


@pytest.mark.parametrize("mail", [b"To: a\r\n\r\nbody\r\n", b"From: a\r\n\r\nbody"])
async def test_a_mail_that_no_key_signs_goes_as_it_is(mail: bytes) -> None:
    content = await opened(mail)

    assert (await sent(Preparation(Signed(b"")), content))[0] == mail
    assert Preparation(None).of(content, ENVELOPE, HOP, takes_8bit=True) is None


async def test_a_mail_too_large_to_be_in_memory_goes_unsigned_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparations, "MAX_CHANGED", 2 * MEBIBYTE)
    mail = b"From: a\r\n\r\n" + b"x\r\n" * MEBIBYTE
    labels = {"reason": "size"}
    before = REGISTRY.get_sample_value("postroad_unsigned_mails_total", labels) or 0

    assert (await sent(Preparation(Signed()), await opened(mail)))[0] == mail

    assert REGISTRY.get_sample_value("postroad_unsigned_mails_total", labels) == before + 1


class Transmissions:
    """Mails of some mebibytes that are prepared in this order, each until it ends."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._tasks: list[asyncio.Task[None]] = []
        self.begun: list[int] = []
        self.ends: list[asyncio.Event] = []

    async def begin(self, mebibytes: int, host: str) -> None:
        """Begin one; return when what can follow from it has happened."""
        self.ends.append(asyncio.Event())
        transmitting = self._transmit(len(self._tasks), mebibytes, NextHop(host))
        self._tasks.append(asyncio.create_task(transmitting))
        await self._later()

    async def end(self, number: int) -> None:
        """End one."""
        self.ends[number].set()
        await self._later()

    async def end_all(self) -> None:
        for each in self.ends:
            each.set()
        await asyncio.gather(*self._tasks)

    async def _transmit(self, number: int, mebibytes: int, hop: NextHop) -> None:
        mail = b"From: a\r\n\r\n" + b"x\r\n" * (mebibytes * MEBIBYTE // 3)
        preparing = self._preparation.of(await opened(mail), ENVELOPE, hop, takes_8bit=True)
        assert preparing is not None
        async with preparing:
            self.begun.append(number)
            await self.ends[number].wait()

    async def _later(self) -> None:
        for _ in range(2000):
            await asyncio.sleep(0)


async def test_a_slow_next_hop_blocks_its_own_large_mails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparations, "ROOM", 12 * MEBIBYTE)
    transmissions = Transmissions(Preparation(Signed()))
    for _ in range(6):
        await transmissions.begin(2, "slow.example")
    await transmissions.begin(2, "other.example")
    await transmissions.begin(2, "third.example")

    slow, others = {0, 1, 2, 3, 4, 5}, {6, 7}
    assert others <= set(transmissions.begun)
    assert slow & set(transmissions.begun)
    await transmissions.end_all()
    assert sorted(transmissions.begun) == sorted(slow | others)
