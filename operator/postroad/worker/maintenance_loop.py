"""The loop that runs rounds of maintenance beside other work, and its two intervals. What a round
does is `maintain` of each engine.

Every worker runs it, so that a queue needs no process of its own for it. Every intake runs it too,
more seldom, because a queue may have no worker. Rounds of several processes do not harm one
another, and jitter keeps them apart.
"""

from datetime import timedelta

from postroad.errors import PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.logs import logger

MAINTENANCE_INTERVAL = timedelta(seconds=30)
"""Between two rounds, on average: maintenance finds a dead letter within a minute. A round with
nothing to do costs a few reads; every ten minutes, one reads all that waits."""

INTAKE_MAINTENANCE_INTERVAL = timedelta(minutes=10)
"""The same in an intake, beside which workers run rounds, or no other process does."""

_log = logger("worker")


async def run_maintenance(
    queue: MailQueue, clock: Clock, randomness: Randomness, every: timedelta = MAINTENANCE_INTERVAL
) -> None:
    """Run rounds of maintenance until cancelled, half to one and a half of `every` apart. A round
    that failed is logged; the next one tries again."""
    while True:
        await clock.sleep(every * (0.5 + randomness.uniform()))
        try:
            await queue.maintain()
        except PostroadError as error:
            _log.warning("a round of maintenance failed", queue=queue.name, error=error.explain())
        except Exception:
            _log.exception("a round of maintenance failed", queue=queue.name)
