"""`python -m bench.hostile_clients PORT SECONDS`: clients that want no mail delivered, from
`ADDRESSES` addresses of loopback, in a process of their own.

10,000 of them. Those that hold a session do so at the same time, those that are cut off at once
come evenly over the time. Prints JSON: by kind how many were greeted and with which code each was
sent away, and the most sessions that one address had at the same time.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

CLIENTS, ADDRESSES = 10_000, 40
SHARE = CLIENTS // ADDRESSES
"""Sessions of one address, which the intake has to allow for all of them to come in."""

ENVELOPE = b"MAIL FROM:<a@x.example>\r\n", b"RCPT TO:<b@y.example>\r\n", b"DATA\r\n"


class Client:
    """One connection, and the code of the last reply that was read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.code = reader, writer, "none"

    async def reply(self) -> None:
        """Read a reply to its last line. Raises: ConnectionError at the end."""
        while line := await self.reader.readline():
            self.code = line[:3].decode(errors="replace")
            if line[3:4] != b"-":
                return
        raise ConnectionError

    async def say(self, octets: bytes) -> None:
        """Send a command and read its reply. Raises: ConnectionError."""
        self.writer.write(octets)
        await self.reply()

    async def rest(self) -> None:
        """Read until the intake closes. Raises: ConnectionError then."""
        while True:
            await self.reply()


async def silent(client: Client) -> None:
    """Say nothing."""
    await client.rest()


async def octet_a_second(client: Client) -> None:
    """Send a mail, an octet each second."""
    for command in (b"EHLO slow.example\r\n", *ENVELOPE):
        await client.say(command)
    while not client.writer.is_closing():
        client.writer.write(b"x")
        await asyncio.sleep(1)


async def noop(client: Client) -> None:
    """Say NOOP, as fast as it is answered."""
    while True:
        await client.say(b"NOOP\r\n")


async def never_reads(client: Client) -> None:
    """Send commands without reading an answer."""
    for command in (b"EHLO deaf.example\r\n", ENVELOPE[0]):
        await client.say(command)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    while True:
        client.writer.write(ENVELOPE[1] * 100)
        await client.writer.drain()


async def http(client: Client) -> None:
    """Submit a form."""
    client.writer.write(
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\nHELO evil\r\nMAIL FROM:<e@e.example>\r\n"
    )
    await client.rest()


async def garbage(client: Client) -> None:
    """Send what is no command."""
    for _ in range(100):
        client.writer.write(random.randbytes(200).replace(b"\n", b"") + b"\r\n")
    await client.rest()


async def early(client: Client) -> None:
    """Send a whole mail behind EHLO without waiting for its reply."""
    client.writer.write(b"EHLO early.example\r\n" + b"".join(ENVELOPE) + b"x\r\n.\r\n")
    await client.rest()


HOLDING = (silent, octet_a_second, never_reads)
KINDS: tuple[Callable[[Client], Awaitable[None]], ...] = (*HOLDING, noop, http, garbage, early)


class Crowd:
    """All clients, and what became of them."""

    def __init__(self, port: int, seconds: float) -> None:
        self._port, self._seconds = port, seconds
        self._open: Counter[str] = Counter()
        self.most_of_one_address = 0
        self.greeted: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    async def run(self) -> None:
        """Send them all, and end those that are left."""
        clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        await asyncio.sleep(self._seconds)
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, number: int) -> None:
        kind = KINDS[number % len(KINDS)]
        over = self._seconds / 2 if kind in HOLDING else self._seconds * 0.9
        await asyncio.sleep(over * number / CLIENTS)
        name, end = kind.__name__, "held to the end"
        try:
            async with self._session(f"127.0.1.{1 + number % ADDRESSES}") as client:
                self.greeted[name] += 1
                try:
                    await kind(client)
                finally:
                    end = client.code if client.reader.at_eof() else end
        except OSError:
            pass
        finally:
            self.ends[f"{name}: {end}"] += 1

    @asynccontextmanager
    async def _session(self, address: str) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(address, 0)
        )
        client = Client(reader, writer)
        try:
            await client.reply()
            if client.code != "220":
                raise ConnectionError
            self._open[address] += 1
            self.most_of_one_address = max(self.most_of_one_address, self._open[address])
            try:
                yield client
            finally:
                self._open[address] -= 1
        finally:
            writer.transport.abort()


def main() -> None:
    """Be a crowd for some time."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(int(sys.argv[1]), float(sys.argv[2]))
    asyncio.run(crowd.run())
    json.dump(
        {"most": crowd.most_of_one_address, "greeted": crowd.greeted, "ends": crowd.ends},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
