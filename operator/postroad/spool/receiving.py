"""Taking responsibility for a mail: its bytes, then its place in the log, then the answer.

Source: SP-7..9, SP-13 (a slow sender has a file of its own); LQ-29; FORMAT.md 4 and 8 (R2).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from postroad.domain.mail import Content, Mail
from postroad.errors import InvalidMail, MailTooLarge, StoreFailed, StoreFull
from postroad.spool.contents import CHUNK, Filling
from postroad.spool.engine import Engine
from postroad.spool.records import Waiting, envelope_json, to_json
from postroad.spool.shape import Shape, header_size_of, shape_of

Result = TypeVar("Result")


async def receive(engine: Engine, mail: Mail, delay: timedelta) -> UUID:
    """Queue a mail. See `MailQueue.enqueue`."""
    engine.check()
    envelope = envelope_json(mail.envelope)
    if len(to_json(envelope)) > engine.options.largest_envelope:
        raise InvalidMail("the envelope is too large for one record")
    size = len(mail.content) if isinstance(mail.content, bytes) else 0
    check_size(engine, size)
    refuse_when_full(engine, size)
    engine.receiving += 1
    try:
        return await _receive(engine, mail, envelope, delay)
    finally:
        engine.receiving -= 1


async def _receive(
    engine: Engine, mail: Mail, envelope: dict[str, object], delay: timedelta
) -> UUID:
    accepted_us = engine.now_us()
    mail_id = engine.identifiers.new().bytes
    slot = await engine.slots.take()
    size = await _Spooling(engine, slot, mail_id, accepted_us).store(mail.content, envelope)
    enqueue_id = engine.identifiers.new()
    waiting = Waiting(
        mail_id, enqueue_id.bytes, slot, 0, mail.envelope, tuple(range(len(mail.recipients))),
        accepted_us, accepted_us, size, engine.due_after(delay),
    )  # fmt: skip
    await engine.accept(waiting, mail.content if isinstance(mail.content, bytes) else None)
    return enqueue_id


def check_size(engine: Engine, size: int) -> None:
    """Raises: MailTooLarge."""
    limit = engine.options.largest_mail
    if limit is not None and size > limit:
        raise MailTooLarge(f"the mail is larger than {limit} octets")


def refuse_when_full(engine: Engine, size: int) -> None:
    """Refuse before anything is written. Raises: StoreFull."""
    options, room = engine.options, engine.headroom.after(size)
    if room.bytes < options.least_free_bytes:
        raise StoreFull(f"less than {options.least_free_bytes} octets would be free")
    if room.inodes is not None and room.inodes < options.least_free_inodes:
        raise StoreFull(f"less than {options.least_free_inodes} inodes are free")


class _Spooling:
    """One mail on its way into its spool file. Whatever happens, the slot is not lost, and not
    used by anybody else before the thread that fills it has let go."""

    def __init__(self, engine: Engine, slot: int, mail_id: bytes, accepted_us: int) -> None:
        self._engine, self._slot = engine, slot
        self._mail_id, self._accepted_us = mail_id, accepted_us
        self._filling: Filling | None = None
        self._call: asyncio.Future[Any] | None = None

    async def store(self, content: Content, envelope: dict[str, object]) -> int:
        """Store content and envelope; return the content's size. Durable when it returns."""
        try:
            if isinstance(content, bytes):
                await self._run(self._store_whole, content, envelope)
                return len(content)
            chunks = _chunks_of(content) if isinstance(content, Path) else content
            return await self._store_stream(chunks, envelope)
        except BaseException as error:
            self._give_up(is_sound=not isinstance(error, StoreFailed | StoreFull))
            raise

    async def _run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run in a thread; a cancelled caller leaves, the thread goes on."""
        call = asyncio.ensure_future(self._engine.mail_threads.run(work, *arguments))
        self._call = call
        return await asyncio.shield(call)

    def _store_whole(self, content: bytes, envelope: dict[str, object]) -> None:
        shape = shape_of(content)
        envelope["shape"] = shape.as_json()
        self._engine.contents.store(
            self._slot, self._mail_id, content, to_json(envelope), shape.header_size,
            self._accepted_us,
        )  # fmt: skip

    async def _store_stream(self, chunks: AsyncIterator[bytes], envelope: dict[str, object]) -> int:
        """A stream is never held whole; its dots are left to the sender to find."""
        engine = self._engine
        filling = self._filling = await self._run(engine.contents.begin, self._slot)
        header_size = 0
        async for chunk in chunks:
            if not filling.length:
                header_size = header_size_of(chunk)
            check_size(engine, filling.length + len(chunk))
            refuse_when_full(engine, len(chunk))
            await self._run(filling.add, chunk)
        envelope["shape"] = Shape(header_size, None).as_json()
        await self._run(
            filling.finish, self._mail_id, to_json(envelope), header_size, self._accepted_us
        )
        filling.close()
        return filling.length

    def _give_up(self, *, is_sound: bool) -> None:
        """Let the slot go once no thread writes to its file any more. It holds no whole mail, or
        one that the log does not know: both are free."""
        if self._call is None or self._call.done():
            self._let_go(is_sound)
        else:
            self._call.add_done_callback(lambda _: self._let_go(is_sound))

    def _let_go(self, is_sound: bool) -> None:
        if self._call is not None and not self._call.cancelled():
            self._call.exception()  # it has been, or will never be, told to the caller
        if self._filling is not None:
            self._filling.close()
        slots = self._engine.slots
        (slots.release if is_sound else slots.discard)(self._slot)


async def _chunks_of(path: Path) -> AsyncIterator[bytes]:
    """Yield a file's content."""
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise InvalidMail(f"the content cannot be read: {error.strerror}") from error
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
