"""Maintenance of the queue beside deliveries: limits, cleanup, rows about to expire, dead letters.

Every worker does it, so that a queue needs no process more; every intake too, more seldom, since a
queue may have nobody who delivers. Rounds of several are harmless to one another, and jitter keeps
them apart.
"""

from __future__ import annotations

from datetime import timedelta

from postroad.errors import PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.logs import logger

EVERY = timedelta(seconds=30)
"""Between two rounds, on average: a dead letter is seen within a minute. A round that finds nothing
to do costs a few reads; every ten minutes, one goes over all that waits."""

_log = logger("worker")


async def run_maintenance(
    queue: MailQueue, clock: Clock, randomness: Randomness, every: timedelta = EVERY
) -> None:
    """Do rounds of maintenance for ever, half to one and a half of `every` apart. Never raises:
    what failed is logged and tried again in the next round."""
    while True:
        await clock.sleep(every * (0.5 + randomness.uniform()))
        try:
            await queue.maintain()
        except PostroadError as error:
            _log.warning("a round of maintenance failed", queue=queue.name, error=error.explain())
        except Exception:
            _log.exception("a round of maintenance failed", queue=queue.name)
