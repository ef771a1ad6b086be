"""Opening a queue: a queue exists once it has limits."""

from datetime import timedelta

from postroad.distributed.engine import ownership
from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.entries import slice_of
from postroad.errors import BucketNotOwned, QueueNotFound, ServerError

MAX_RACING = timedelta(minutes=10)
"""Several processes may create a queue at once; each sets its limits this much earlier than its own
now."""


async def create(engine: Engine) -> None:
    """Create what a queue whose tables exist lacks. Idempotent. Raises: ServerError,
    ConfigurationError, ClockSkew."""
    await engine.broker.declare()
    await engine.blobs.create()
    await begin(engine)
    try:
        await ownership.check(engine)
    except BucketNotOwned as error:  # mail is stored and delivered all the same
        engine.log.error("the bucket's bytes will not be audited", error=error.explain())
    except ServerError as error:  # the first audit checks again
        engine.log.debug("the bucket's owner is not known yet", error=error.explain())


async def begin(engine: Engine) -> None:
    """Set the limits of a queue that has none yet: from then on it exists. Idempotent. A clock that
    is ahead would put browse start after entries that are still to come, so it is checked as before
    every other write. Raises: ServerError, ConfigurationError, ClockSkew."""
    limits = await engine.limits_cache.refresh()
    if limits.browse_start is None:
        await engine.limits_cache.check_clock()
        window = engine.configuration.effective().writing.slice_window
        start = slice_of(await engine.limits_cache.earliest_now() - MAX_RACING, window)
        await engine.view.advance(browse_start=start, content_start=start)
        await engine.limits_cache.refresh()


async def open_existing(engine: Engine) -> None:
    """Raises: QueueNotFound when the queue was never created; ServerError."""
    limits = await engine.limits_cache.refresh()
    if limits.browse_start is None:
        raise QueueNotFound(f"the queue {engine.name} was never created")
