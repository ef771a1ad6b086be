"""Items in the hands of this process, and the claims that show other processes the slow ones.

A first delivery takes no claim. An item that is leased for longer than `keep_after` gets one, which
is renewed until the item ends: so a consumer that gets another message about the same mail finds
the claim after that message's delay (invariant 10).

Time that a reference which waits for a server keeps its place in its consumer's prefetch.

While no server answers, it keeps the place: no other reference would do better there. While others
are served (one partition of the view has lost its replicas, one delay queue its quorum), it is
deferred through the delay queues after seconds, and the place is free. Deferring also keeps
RabbitMQ's log short, which cannot be cut off behind a message that is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import each_of, results
from postroad.domain.queues.entries import EntryKey, Partition
from postroad.errors import BrokerError, ServerError
from postroad.telemetry import metrics

ClaimIds = tuple[UUID, ...]

AT_ONCE = 64
"""Claims taken at the same time: each is a lightweight transaction, and a large prefetch would send
thousands together."""


class MailLease:
    """One item in flight. `owner` is the claim's, one per lease, so that two messages about one
    entry exclude each other within a process too."""

    def __init__(
        self,
        leases: MailLeases,
        enqueue_id: UUID,
        owner: UUID,
        since: timedelta,
        before: ClaimIds,
        when_ended: Callable[[], None],
    ) -> None:
        self._leases = leases
        self.enqueue_id = enqueue_id
        self.owner = owner
        self.claim_due = since
        self.claims = (*before, enqueue_id)
        self.is_claimed = False
        self.when_ended = when_ended

    def end(self) -> None:
        """End the lease with its item. The claim, if any, lapses by itself."""
        self._leases.forget(self)

    async def release_claimed(self) -> None:
        """As `release`, where claims were taken: the entry is over; its mark stops others."""
        if self.is_claimed:
            await self.release()

    async def release(self) -> None:
        """Release all claims, as nothing was transmitted. Best effort: else they lapse."""
        await self._leases.release(self)


class MailLeases:
    """All leases of a handle, and the task that renews their claims."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._leases: set[MailLease] = set()
        self._renewer: asyncio.Task[None] | None = None

    def begin(
        self,
        enqueue_id: UUID,
        owner: UUID,
        *,
        claimed: bool,
        before: ClaimIds,
        since: timedelta,
        when_ended: Callable[[], None],
    ) -> MailLease:
        """Begin a lease. `before`: the entries before this one that were claimed with it. `since`:
        the elapsed time before the marks were read on which it depends. `when_ended` is called
        once, when the lease ends."""
        timing = self._engine.timing
        first = timing.claim / 3 if claimed else timing.keep_after
        lease = MailLease(self, enqueue_id, owner, since + first, before, when_ended)
        lease.is_claimed = claimed
        self._leases.add(lease)
        self._engine.in_flight.add(enqueue_id)
        metrics.LEASED.labels(*self._engine.labels).set(len(self._leases))
        if self._renewer is None or self._renewer.done():
            self._renewer = asyncio.ensure_future(self._renew_all())
        return lease

    def forget(self, lease: MailLease) -> None:
        """End a lease. Idempotent."""
        if lease in self._leases:
            self._leases.discard(lease)
            self._engine.in_flight.discard(lease.enqueue_id)
            metrics.LEASED.labels(*self._engine.labels).set(len(self._leases))
            lease.when_ended()

    async def release(self, lease: MailLease) -> None:
        try:
            await asyncio.gather(
                *(self._engine.view.release_claim(each, lease.owner) for each in lease.claims)
            )
        except ServerError as error:
            self._engine.log.debug("claims are left to lapse", error=type(error).__name__)

    async def close(self) -> None:
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.gather(self._renewer, return_exceptions=True)

    async def _renew_all(self) -> None:
        while self._leases:
            await self._engine.clock.sleep(self._engine.timing.keep_after / 4)
            now = self._engine.clock.elapsed()
            due = [each for each in self._leases if each.claim_due <= now]
            if not due:
                continue
            # First claims come first: other processes expect them within a redelivery delay.
            due.sort(key=lambda each: (each.is_claimed, each.claim_due))
            async for _ in results(each_of(due), self._renew, AT_ONCE):
                pass

    async def _renew(self, lease: MailLease) -> None:
        if lease not in self._leases:
            return  # it ended while others were renewed
        timing = self._engine.timing
        lease.is_claimed = True
        try:
            await self._engine.view.claim(lease.enqueue_id, lease.owner, timing.claim)
            if lease not in self._leases:
                await self.release(lease)  # it ended, and gave its claims back, meanwhile
        except ServerError as error:  # tried again at the next round
            self._engine.log.debug("a claim was not renewed", error=type(error).__name__)
        else:
            lease.claim_due = self._engine.clock.elapsed() + timing.claim / 3


REMEMBERED = timedelta(minutes=1)
"""Time for which other references to a partition are deferred at once after one was."""

ASKED_AGAIN = timedelta(seconds=30)
"""Time for which a view that did not answer is not read again to decide about deferring."""


class WaitLimits:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._served: timedelta | None = None
        self._unanswered: timedelta | None = None
        self._unreadable: dict[Partition, timedelta] = {}

    def was_served(self) -> None:
        self._served = self._engine.clock.elapsed()

    async def is_over(self, since: timedelta, key: EntryKey | None, error: Exception) -> bool:
        """Return whether a reference that waits since `since` and failed just now is deferred."""
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
