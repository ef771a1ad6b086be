"""The broker's dead queue: maintenance decides each message that consumers could not handle.

A message that is no reference becomes a dead letter with its body. A reference only comes here
because consumers crashed while they handled it: it goes back through a delay queue, until it
crashed too many. Row in the dead letters, then mark, then ack.

Discard: dead letters end for good. The dead letter is deleted, then its bytes.

A claim excludes a requeue meanwhile. The bytes are deleted only while no other process can have had
the claim since the dead letter was read, and while the entry's mark still shows that the entry was
given up: a suspended process may have written the dead letter after the entry had ended otherwise.
Else the audit decides, as it does for what a discard that stopped half way leaves, and for dead
letters that are old enough to have come back with a server which missed their deletion."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace as copy
from typing import cast
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import dead_letters, endings, replacement
from postroad.distributed.entries.dead_letters import dead_letter_of, end_as_dead
from postroad.distributed.entries.live_slices import rescue_if_late
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.dispatch import deletes_bytes
from postroad.domain.queues.entries import Entry, Mark, UndecodableRow
from postroad.domain.queues.lifetimes import DEAD_LETTER_RETURN
from postroad.domain.queues.names import next_delay, redelivery_delay_after
from postroad.domain.queues.references import Reference, decode
from postroad.domain.values.identifiers import id_at, moment_of
from postroad.errors import (
    BrokerUnavailable,
    ServerError,
    Undecodable,
    UnreadableReference,
    ViewRefused,
)
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
        if endings.is_common(error):
            raise
        dead_letter_id = await _keep_body(engine, delivery, BROKEN + type(error).__name__)
        endings.note(engine, dead_letter_id)


async def _handle(engine: Engine, delivery: Delivery) -> None:
    try:
        reference = decode(delivery.body)
    except UnreadableReference:
        await _keep_body(engine, delivery, UNREADABLE)
    else:
        await _decide(engine, delivery, reference)


async def _keep_body(engine: Engine, delivery: Delivery, reason: str) -> UUID:
    """Write the body as a dead letter under an id made of its bytes, so that a repetition writes
    the same dead letter. Of a body that the view refuses the beginning is kept, because all others
    wait behind it."""
    now = engine.clock.now()
    dead_letter_id = _id_of(delivery.body, engine)
    dead_letter = DeadLetter(
        dead_letter_id, dead_letters.month_of(dead_letter_id), now, reason, None, delivery.body
    )
    try:
        await engine.view.write_dead_letter(dead_letter)
    except ViewRefused:
        size = len(delivery.body)
        if size <= KEPT_BYTES:
            raise
        cut = f"{reason} (the first {KEPT_BYTES} of its {size} bytes)"
        await engine.view.write_dead_letter(
            copy(dead_letter, reason=cut, body=delivery.body[:KEPT_BYTES])
        )
    await endings.ack(engine, delivery)
    return dead_letter_id


async def _decide(engine: Engine, delivery: Delivery, reference: Reference) -> None:
    limits = await engine.limits_cache.limits()
    mark = await engine.view.mark(reference.key)
    if mark is not None and mark.is_final:
        if deletes_bytes(mark):
            await endings.delete_and_ack(engine, delivery, reference)
        else:
            await endings.ack(engine, delivery)
        return
    if limits.have_passed(reference.key.slice_start):
        await rescue_if_late(engine, reference.key)
        await endings.ack(engine, delivery)
        return
    again = reference.again(crashes=1)
    entry = reference.entry or await engine.view.row(reference.key)
    if isinstance(entry, UndecodableRow):
        await endings.publish_again(
            engine, delivery, reference.again(), endings.SERVER_RETRY_SECONDS
        )
    elif entry is None:
        await _keep_body(engine, delivery, UNREADABLE)
    elif mark is not None and mark.is_unfinished_replacement:
        await replacement.finish(engine, entry, mark)
        await endings.ack(engine, delivery)
    elif again.crashes > engine.delivery_limit and (left := await _undelivered(engine, entry)):
        standing = await dead_letters.give_up(engine, entry, left, dead_letters.OVER_THE_LIMIT)
        await replacement.finish(engine, entry, standing or Mark())
        await endings.ack(engine, delivery)
    else:
        wait = next_delay(again.due_at, engine.limits_cache.now())
        redelivery_delay = redelivery_delay_after(
            again.crashes, engine.timing.redelivery_delay, engine.randomness.uniform()
        )
        await endings.publish_again(engine, delivery, again, wait or redelivery_delay)


async def _undelivered(engine: Engine, entry: Entry) -> Envelope | None:
    """As `dead_letters.undelivered`; all recipients where this release cannot decode who got the
    mail, because other messages wait behind it."""
    try:
        return await dead_letters.undelivered(engine, entry)
    except Undecodable:
        return entry.envelope


def _id_of(body: bytes, engine: Engine) -> UUID:
    digest = int.from_bytes(hashlib.sha256(body).digest()[:16], "big")
    return id_at(
        engine.clock.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0),
        digest >> 64,
        digest,
    )


async def discard_dead_letter(engine: Engine, dead_letter: DeadLetter) -> bool:
    """End a dead letter. Returns whether this call ended it. A dead letter stays that a requeue
    gives a new entry, or that this release cannot decode. Raises: ServerError."""
    owner, began = UUID(int=engine.randomness.bits(128)), engine.clock.elapsed()
    if not await engine.view.claim(dead_letter.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        current = await dead_letter_of(engine, dead_letter)
        if current is None or current.requeued_as is not None or not current.is_decoded:
            return False
        if current.entry is not None:
            standing = await end_as_dead(engine, current.entry)
            if standing is not None:
                # The mail ended otherwise, or waits: only the dead letter is stale.
                if not standing.is_unknown:
                    await engine.view.delete_dead_letter(current)
                return False
        await engine.view.delete_dead_letter(current)
        was_ours = engine.clock.elapsed() - began < engine.timing.claim / 2
        limits = await engine.limits_cache.limits()
        if current.entry is None or limits.have_passed(current.entry.key.slice_start):
            return True
        if was_ours and _was_never_deleted(engine, current):
            await endings.delete_bytes(engine, [current.entry.blob_key])
        return True
    finally:
        await engine.view.release_claim(dead_letter.enqueue_id, owner)


def _was_never_deleted(engine: Engine, dead_letter: DeadLetter) -> bool:
    """True if this cannot be a dead letter that was requeued and came back since, unknown to the
    view: an older release deletes dead letters without a note. Then the mail may wait on these
    bytes."""
    return engine.clock.now() - moment_of(dead_letter.enqueue_id) < DEAD_LETTER_RETURN
