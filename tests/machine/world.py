"""The world around the machine: clients that send mail by SMTP, and a next hop that counts it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

from machine.accounts import ItemProgress

BODIES = (200, 4_000, 40_000)
REFUSED = 0.33
"""The share of attempts that the next hop defers, so that mail waits at each cut."""

ANSWER_SECONDS = 30.0


class Ended(Exception):
    """The connection ended, or the answer was another than the wanted one."""


class World:
    """Clients and next hop, and the ledger of what they saw."""

    def __init__(self, chance: random.Random) -> None:
        self.ledger = ItemProgress()
        self.round = 0
        self._chance = chance
        self._names = self._new_names()

    def _new_names(self) -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield f"m{number}"

    async def send(self, address: str, port: int) -> None:
        """Send mail after mail on connection after connection, until cancelled."""
        while True:
            with contextlib.suppress(OSError, Ended, TimeoutError, EOFError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    reader, writer = await asyncio.open_connection(address, port)
                try:
                    await self._converse(reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.1)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def exchange(text: str | None, wanted: bytes) -> None:
            if text is not None:
                writer.write(text.encode() + b"\r\n")
            async with asyncio.timeout(ANSWER_SECONDS):
                while (line := await reader.readline())[3:4] == b"-":
                    pass
            if not line.startswith(wanted):
                raise Ended(line)

        await exchange(None, b"220")
        await exchange("EHLO client.example", b"250")
        while True:
            name = next(self._names)
            self.ledger.begun += 1
            await exchange(f"MAIL FROM:<{name}@example.org>", b"250")
            await exchange("RCPT TO:<b@example.net>", b"250")
            await exchange("DATA", b"354")
            body = "\r\n".join(["x" * 900] * (self._chance.choice(BODIES) // 900 + 1))
            await exchange(f"Subject: {name}\r\n\r\n{body}\r\n.", b"250")
            self.ledger.acknowledged.add(name)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Be the next hop on one connection."""
        # A connection whose other end lost its power is still open when the run is over.
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            await self._take(reader, writer)
        writer.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 next.hop.example\r\n")
        name = ""
        while line := await reader.readline():
            answer = b"250 ok"
            match line[:4].upper():
                case b"MAIL":
                    name = line.decode().split("<")[1].split("@")[0]
                case b"RCPT" if self._chance.random() < REFUSED:
                    answer = b"450 later"
                case b"DATA":
                    writer.write(b"354 go\r\n")
                    while (content := await reader.readline()) != b".\r\n":
                        if not content:
                            return  # the power went while the mail was on its way
                    self.ledger.deliver(name, self.round)
                case b"QUIT":
                    answer = b"221 bye"
            writer.write(answer + b"\r\n")
            if answer.startswith(b"221"):
                return
