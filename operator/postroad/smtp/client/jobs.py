"""One job of a connection: its content, read shortly before it is sent, and its transaction."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing

from postroad.domain.mail.mail import Outcome
from postroad.ports.delivery import ContentFailed, JobFinished, Transmission
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.client.transaction.chunks import ChunkTransaction
from postroad.smtp.client.transaction.content import OpenContent
from postroad.smtp.client.transaction.preparation import Preparation
from postroad.smtp.client.transaction.replies import Outgoing
from postroad.smtp.client.transaction.transactions import ClientTransaction


class ConnectionJob:
    """One transmission."""

    def __init__(self, transmission: Transmission) -> None:
        self.transmission = transmission
        self.number = transmission.job
        self.transaction: ClientTransaction | ChunkTransaction | None = None
        self.untransmitted: JobFinished | ContentFailed | None = None
        """What becomes of it without a transaction, once that is known."""
        self._at_hand: OpenContent | None = None
        self._reading: asyncio.Task[OpenContent] | None = None
        """Reads the beginning of a content that is not at hand."""
        self._resources: AsyncExitStack | None = None

    @property
    def is_read(self) -> bool:
        """Whether the beginning of the content was read, or could not be."""
        if self._reading is None:
            return self._at_hand is not None
        return self._reading.done()

    def read(self, session: ClientSession, preparation: Preparation) -> None:
        """Begin to read the content, once; wake the session when it is there. One that is at hand
        is there when this returns, without a task of its own."""
        if self._reading is not None or self._at_hand is not None:
            return
        if (kept := self.transmission.at_hand()) is not None:
            content = OpenContent.at_hand(*kept)
            if preparation.leaves(content, takes_8bit=session.takes_8bit):
                self._at_hand = content
                return
        self._reading = asyncio.create_task(self._peek(session, preparation))
        self._reading.add_done_callback(lambda _: session.wire.wake())

    def begin(self, session: ClientSession) -> Outgoing | None:
        """Begin the transaction. None: `untransmitted` has what becomes of the job."""
        if self.untransmitted is not None or (content := self._content()) is None:
            return None
        begun = session.begin(self.transmission.envelope, content)
        if isinstance(begun, Outgoing):
            return begun
        self.untransmitted = JobFinished(self.number, begun)
        return None

    def _content(self) -> OpenContent | None:
        if self._at_hand is not None:
            return self._at_hand
        assert self._reading is not None
        if (error := self._reading.exception()) is None:
            return self._reading.result()
        if not isinstance(error, Exception):
            raise error
        self.untransmitted = ContentFailed(self.number, error)
        return None

    def all_recipients(self, outcome: Outcome) -> dict[str, Outcome]:
        return dict.fromkeys(self.transmission.envelope.recipients, outcome)

    async def release(self) -> None:
        """Close the content."""
        reading = self._reading
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait((reading,))
        if reading is not None and not reading.cancelled():
            reading.exception()  # else asyncio logs that of a job that is unsaid
        if self._resources is not None:
            await self._resources.aclose()

    async def _peek(self, session: ClientSession, preparation: Preparation) -> OpenContent:
        self._resources = AsyncExitStack()
        chunks = await self._resources.enter_async_context(aclosing(self.transmission.content()))
        shape = await self.transmission.shape()
        content = await OpenContent.peek(chunks, self.transmission.size_bytes, shape)
        envelope = self.transmission.envelope
        preparing = preparation.of(
            content, envelope, session.next_hop, takes_8bit=session.takes_8bit
        )
        if preparing is None:
            return content
        return await self._resources.enter_async_context(preparing)
