"""The broker's dead queue: maintenance decides each message that consumers could not handle.

A message that is no reference becomes a dead letter with its body. A reference only comes here
because consumers crashed while they handled it: it goes back through a delay queue, until it
crashed too many. Row in the dead letters, then mark, then ack.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace as copy
from typing import cast
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import dead_letters, replacement
from postroad.distributed.entries.endings import (
    SERVER_RETRY_SECONDS,
    ack,
    delete_and_ack,
    publish_again,
)
from postroad.distributed.entries.late_mail import rescue_if_late
from postroad.distributed.entries.mail_errors import is_common, note
from postroad.domain.queues.dispatch import deletes_bytes
from postroad.domain.queues.entries import Mark, UndecodableRow
from postroad.domain.queues.names import next_delay, redelivery_delay_after
from postroad.domain.queues.references import Reference, decode
from postroad.domain.values.identifiers import id_at
from postroad.errors import BrokerUnavailable, ServerError, UnreadableReference, ViewRefused
from postroad.ports.broker import Delivery
from postroad.ports.view import DeadLetter

PREFETCH = 10
UNREADABLE = "the message is no reference that this version can read"
BROKEN = "maintenance failed on this message: "

KEPT_BYTES = 64 << 10
"""Of a message that the view refuses whole: enough to see what it was."""


async def consume_dead(engine: Engine) -> None:
    """Empty the dead queue. Raises: ServerError."""
    messages = cast("AsyncGenerator[Delivery, None]", engine.broker.consume_dead(PREFETCH))
    async with aclosing(messages):
        async for delivery in messages:
            try:
                await _handle_or_keep(engine, delivery)
            except BaseException:
                with suppress(BrokerUnavailable):
                    await delivery.give_back()
                raise


async def _handle_or_keep(engine: Engine, delivery: Delivery) -> None:
    """Handle a message. One whose handling fails becomes a dead letter as it is, because all others
    wait behind it; `requeue` gives it back. What a server refuses ends the round."""
    try:
        await _handle(engine, delivery)
    except ServerError:
        raise
    except Exception as error:
        if is_common(error):
            raise
        letter_id = await _keep_body(engine, delivery, BROKEN + type(error).__name__)
        note(engine, letter_id)


async def _handle(engine: Engine, delivery: Delivery) -> None:
    try:
        reference = decode(delivery.body)
    except UnreadableReference:
        await _keep_body(engine, delivery, UNREADABLE)
    else:
        await _decide(engine, delivery, reference)


async def _keep_body(engine: Engine, delivery: Delivery, reason: str) -> UUID:
    """Write the body as a dead letter under an id made of its bytes, so that a repetition writes
    the same letter. Of a body that the view refuses the beginning is kept, because all others wait
    behind it."""
    now = engine.clock.now()
    letter_id = _id_of(delivery.body, engine)
    letter = DeadLetter(
        letter_id, dead_letters.month_of(letter_id), now, reason, None, delivery.body
    )
    try:
        await engine.view.write_letter(letter)
    except ViewRefused:
        size = len(delivery.body)
        if size <= KEPT_BYTES:
            raise
        cut = f"{reason} (the first {KEPT_BYTES} of its {size} bytes)"
        await engine.view.write_letter(copy(letter, reason=cut, body=delivery.body[:KEPT_BYTES]))
    await ack(engine, delivery)
    return letter_id


async def _decide(engine: Engine, delivery: Delivery, reference: Reference) -> None:
    limits = await engine.limits_cache.limits()
    mark = await engine.view.mark(reference.key)
    if mark is not None and mark.is_final:
        if deletes_bytes(mark):
            await delete_and_ack(engine, delivery, reference)
        else:
            await ack(engine, delivery)
        return
    if limits.have_passed(reference.key.slice_start):
        await rescue_if_late(engine, reference.key)
        await ack(engine, delivery)
        return
    again = reference.again(crashes=1)
    entry = reference.entry or await engine.view.row(reference.key)
    if isinstance(entry, UndecodableRow):
        await publish_again(engine, delivery, reference.again(), SERVER_RETRY_SECONDS)
    elif entry is None:
        await _keep_body(engine, delivery, UNREADABLE)
    elif mark is not None and mark.is_unfinished_replacement:
        await replacement.finish(engine, entry, mark)
        await ack(engine, delivery)
    elif again.crashes > engine.delivery_limit:
        standing = await dead_letters.give_up(
            engine, entry, entry.envelope, dead_letters.OVER_THE_LIMIT
        )
        await replacement.finish(engine, entry, standing or Mark())
        await ack(engine, delivery)
    else:
        wait = next_delay(again.due_at, engine.limits_cache.now())
        redelivery_delay = redelivery_delay_after(
            again.crashes, engine.timing.redelivery_delay, engine.randomness.uniform()
        )
        await publish_again(engine, delivery, again, wait or redelivery_delay)


def _id_of(body: bytes, engine: Engine) -> UUID:
    digest = int.from_bytes(hashlib.sha256(body).digest()[:16], "big")
    return id_at(
        engine.clock.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0),
        digest >> 64,
        digest,
    )
