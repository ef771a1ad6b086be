"""A queue that records enqueued mails and fails on demand."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from postroad.domain.mail.mail import Mail


class RecordingQueue:
    """The part of MailQueue that an intake uses. `mails` pairs each mail with its octets; `keys`
    and `delays` are those of the mails, in the same order."""

    name = "test.recording"

    def __init__(self) -> None:
        self.mails: list[tuple[Mail, bytes]] = []
        self.keys: list[str | None] = []
        self.delays: list[timedelta] = []
        self.error: Exception | None = None
        self.room_bytes = 10**12
        self.waiting = 0
        """Calls of `enqueue` that wait for the gate."""

        self.gate = asyncio.Event()
        self.gate.set()

    incoming = suppression_list = None

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        return size_bytes <= self.room_bytes

    async def enqueue(
        self, mail: Mail, delay: timedelta = timedelta(0), *, key: str | None = None
    ) -> UUID:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.error is not None:
            raise self.error
        assert isinstance(mail.content, bytes | Path)
        content = mail.content if isinstance(mail.content, bytes) else mail.content.read_bytes()
        self.mails.append((mail, content))
        self.keys.append(key)
        self.delays.append(delay)
        return UUID(int=len(self.mails))
