"""Hands mails to one next hop over connections as the worker uses them, one mail on each at a time:
for tests of what is on the wire, which need no queue and no scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from uuid import UUID

from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.smtp.next_hops import NextHop
from postroad.ports.delivery import (
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    ContentFailed,
    FindShape,
    JobFinished,
    Signer,
    Transmission,
    not_known,
)
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connecting import Timeouts
from postroad.smtp.client.connections import SmtpConnection, SmtpConnector

USUAL = Timeouts()


class OneHop:
    """The arguments are those of a connector. Needs a running event loop."""

    def __init__(
        self,
        hop: NextHop,
        *,
        ehlo_name: str | None,
        ca_file: Path | None = None,
        signer: Signer | None = None,
        timeouts: Timeouts = USUAL,
        connections: int = 20,
    ) -> None:
        self._connector = SmtpConnector(
            ehlo_name=ehlo_name, ca_file=ca_file, signer=signer, timeouts=timeouts
        )
        self._hop = ResolvedHop(hop, ())
        self._slots = asyncio.Semaphore(connections)
        self._idle: list[_Line] = []

    async def transmit(
        self,
        envelope: Envelope,
        content: AsyncIterator[bytes],
        size_bytes: int,
        shape: FindShape = not_known,
    ) -> Mapping[str, Outcome]:
        """Hand over one mail; return what came of it for the recipients that were tried. Raises:
        what reading the content raises."""
        kept: list[bytes] = []

        async def chunks() -> AsyncGenerator[bytes, None]:
            for chunk in kept:
                yield chunk
            async for chunk in content:
                kept.append(chunk)
                yield chunk

        job = Transmission(1, UUID(int=1), envelope, size_bytes, chunks, shape)
        async with self._slots:
            while True:
                line = self._idle.pop() if self._idle else _Line(self._connector, self._hop)
                was_open = line.is_open
                event = await line.carry(job)
                if isinstance(event, JobFinished):
                    if not line.has_ended:
                        self._idle.append(line)
                    return event.outcomes
                if isinstance(event, ContentFailed):
                    raise event.error
                if not was_open:
                    return dict.fromkeys(envelope.recipients, Outcome.deferred(event.text))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(each.close() for each in self._idle))


class _Line:
    """One connection, and the end of what it does."""

    def __init__(self, connector: SmtpConnector, hop: ResolvedHop) -> None:
        self.is_open = self.has_ended = False
        self._end = asyncio.Event()
        self._events: asyncio.Queue[JobFinished | ContentFailed | ConnectionClosed] = (
            asyncio.Queue()
        )
        self._connection: SmtpConnection = connector.open(hop, self._happened)

    async def carry(self, job: Transmission) -> JobFinished | ContentFailed | ConnectionClosed:
        self._connection.submit(job)
        try:
            return await self._events.get()
        except asyncio.CancelledError:
            self._connection.abort()
            await self._end.wait()
            raise

    async def close(self) -> None:
        self._connection.close()
        await self._end.wait()

    def _happened(self, event: ConnectionEvent) -> None:
        match event:
            case ConnectionOpened():
                self.is_open = True
            case ConnectionClosed(_, untried):
                self.has_ended = True
                self._end.set()
                if untried:
                    self._events.put_nowait(event)
            case JobFinished() | ContentFailed():
                self._events.put_nowait(event)
