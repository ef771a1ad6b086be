"""What the endings of a turn have in common: bytes go when nobody needs them, then the ack.

Mark, then bytes, then ack (invariant 2): a crash between is a redelivery that the mark filters.
"""

from __future__ import annotations

from postroad.domain.ladder import LADDER_SECONDS
from postroad.domain.references import Reference
from postroad.domain.wire import encode
from postroad.errors import BrokerUnavailable, ServerError
from postroad.mailqueue.engine import Engine
from postroad.ports.broker import Delivery

BYTES_LATER = max(step for step in LADDER_SECONDS if step <= 60)
"""Seconds until a deletion of bytes that failed is tried again."""


async def later(
    engine: Engine, delivery: Delivery, reference: Reference, delay_seconds: int
) -> None:
    """Publish a reference again, to come after a delay, and ack the message it came in.

    Raises: BrokerError; the message is then still ours.
    """
    body = encode(reference)
    await engine.broker.publish(reference.key.enqueue_id, body, delay_seconds)
    await ack(engine, delivery)


async def delete_and_ack(engine: Engine, delivery: Delivery, reference: Reference) -> None:
    """Delete the bytes of a mail that is over, then ack. The deletion is not lost when the object
    store is away: the reference comes again and finds the mark. Raises: BrokerError."""
    try:
        await engine.blobs.delete(reference.blob_key)
    except ServerError as error:
        engine.log.debug("bytes are deleted later", error=type(error).__name__)
        await later(engine, delivery, reference.again(), BYTES_LATER)
    else:
        await ack(engine, delivery)


async def ack(engine: Engine, delivery: Delivery) -> None:
    """Ack, or let the broker give it to somebody else, whom the mark stops."""
    try:
        await delivery.ack()
    except BrokerUnavailable:
        engine.log.debug("a finished message comes again")
