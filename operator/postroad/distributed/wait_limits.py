"""How long a reference that waits for a server keeps its place among its consumer's.

Where no server answers, no other reference would do better in the place, and the one that waits is
there when the server is back. Where others are served meanwhile (one partition of the view has lost
its replicas, one delay queue its quorum), the place is theirs after seconds: the reference is put
off through the delay queues. That also keeps short what a message that is held too long does to
RabbitMQ: the log of its queue cannot be cut off behind it.
"""

from __future__ import annotations

from datetime import timedelta

from postroad.distributed.engine import Engine
from postroad.domain.slices import EntryKey, Partition
from postroad.errors import BrokerError, ServerError

REMEMBERED = timedelta(minutes=1)
"""How long a partition that used up one reference's patience uses up that of others at once."""

ASKED_AGAIN = timedelta(seconds=30)
"""How long a view that did not answer is not asked for the sake of putting references off."""


class WaitLimits:
    """One consumer's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._served: timedelta | None = None
        self._unanswered: timedelta | None = None
        self._unreadable: dict[Partition, timedelta] = {}

    def was_served(self) -> None:
        """Note that the servers did for one reference all that it needed."""
        self._served = self._engine.clock.elapsed()

    async def is_over(self, since: timedelta, key: EntryKey | None, error: Exception) -> bool:
        """Return whether a reference, which waits since then and has just met this error, is to be
        put off."""
        now, timing = self._engine.clock.elapsed(), self._engine.timing
        if now - since >= timing.longest_wait:
            return True
        if now - since < timing.wait and not self._is_unreadable(key, now):
            return False
        if isinstance(error, BrokerError):
            return True  # whether another queue of the delay queues takes it shows when it is tried
        if not (self._was_served_after(since) or await self._view_answers()):
            return False
        if key is not None:
            self._unreadable[key.partition] = now
        return True

    def _is_unreadable(self, key: EntryKey | None, now: timedelta) -> bool:
        for partition, found in list(self._unreadable.items()):
            if now - found > REMEMBERED:
                del self._unreadable[partition]
        return key is not None and key.partition in self._unreadable

    def _was_served_after(self, since: timedelta) -> bool:
        return self._served is not None and self._served > since

    async def _view_answers(self) -> bool:
        """Ask the view what any of its servers can answer, not often while none does."""
        now = self._engine.clock.elapsed()
        if self._unanswered is not None and now - self._unanswered < ASKED_AGAIN:
            return False
        try:
            await self._engine.view.limits()
        except ServerError:
            self._unanswered = now
            return False
        return True
