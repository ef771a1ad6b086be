"""Events of a mail that was accepted, durable before their sender goes on."""

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta
from uuid import UUID

from postroad.contents import chunks_of
from postroad.domain.delivery.events import AcceptedMail
from postroad.domain.mail.address_lists import MAX_SEARCHED, message_id_of
from postroad.domain.mail.mail import Content, Envelope
from postroad.errors import PostroadError
from postroad.ports.events import EventLog
from postroad.telemetry.logs import logger

_log = logger("intake")

MAX_EVENT_WAIT = timedelta(seconds=5)


async def publish_accepted(
    events: EventLog | None,
    queue: str,
    enqueue_id: UUID,
    envelope: Envelope,
    content: Content,
    size_bytes: int,
    accepted_at: datetime,
) -> None:
    """Let the events of a mail be durable before it is answered; where that takes long, they go
    with later ones, since the client would send the mail again."""
    if events is None or not events.is_on:
        return
    try:
        async with asyncio.timeout(MAX_EVENT_WAIT.total_seconds()):
            message_id = message_id_of(await start_of(content))
            events.note_accepted(
                AcceptedMail(queue, enqueue_id, envelope, size_bytes, accepted_at, message_id)
            )
            await events.flush()
    except (PostroadError, TimeoutError) as error:
        _log.warning("events of an accepted mail wait", error=str(error))
    except Exception:  # the client has to hear that the mail was accepted
        _log.exception("unexpected error in an event", queue=queue)


async def start_of(content: Content) -> bytes:
    """Return the first MAX_SEARCHED octets of a content."""
    async with aclosing(chunks_of(content, MAX_SEARCHED)) as chunks:  # type: ignore[type-var]
        return await anext(chunks, b"")
