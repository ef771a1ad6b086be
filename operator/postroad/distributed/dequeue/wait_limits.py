"""How long a reference that waits for a server keeps its place in its consumer's prefetch.

While no server answers, it keeps the place: no other reference would do better there. While others
are served (one partition of the view has lost its replicas, one delay queue its quorum), it is
deferred through the delay queues after seconds, and the place is free. Deferring also keeps
RabbitMQ's log short, which cannot be cut off behind a message that is held.
"""

from __future__ import annotations

from datetime import timedelta

from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.entries import EntryKey, Partition
from postroad.errors import BrokerError, ServerError

REMEMBERED = timedelta(minutes=1)
"""How long other references to a partition are deferred at once after one was."""

ASKED_AGAIN = timedelta(seconds=30)
"""How long a view that did not answer is not read again to decide about deferring."""


class WaitLimits:
    """The limits of one consumer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._served: timedelta | None = None
        self._unanswered: timedelta | None = None
        self._unreadable: dict[Partition, timedelta] = {}

    def was_served(self) -> None:
        """Note that one reference was dispatched."""
        self._served = self._engine.clock.elapsed()

    async def is_over(self, since: timedelta, key: EntryKey | None, error: Exception) -> bool:
        """Return whether a reference, waiting since `since` and just failed with `error`, is to be
        deferred."""
        now, timing = self._engine.clock.elapsed(), self._engine.timing
        if now - since >= timing.longest_wait:
            return True
        if now - since < timing.wait and not self._is_unreadable(key, now):
            return False
        if isinstance(error, BrokerError):
            return True  # another delay queue may take it
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
        """Read from the view what any of its servers can answer; seldom while none does."""
        now = self._engine.clock.elapsed()
        if self._unanswered is not None and now - self._unanswered < ASKED_AGAIN:
            return False
        try:
            await self._engine.view.limits()
        except ServerError:
            self._unanswered = now
            return False
        return True
