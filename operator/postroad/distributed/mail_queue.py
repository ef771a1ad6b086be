"""`DistributedQueue`: the port `MailQueue`, each operation from its module; its opening, once the
queue has limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from postroad.distributed.administration import administration
from postroad.distributed.administration.administration import EntryChange, change_found
from postroad.distributed.administration.purge import purge
from postroad.distributed.dequeue.dequeue import dequeue
from postroad.distributed.dequeue.items import DistributedItem
from postroad.distributed.dequeue.leases import MailLeases
from postroad.distributed.engine import ownership
from postroad.distributed.engine.engine import Engine, Parts
from postroad.distributed.enqueue.enqueue import enqueue
from postroad.distributed.enqueue.withdrawal import LaterLooks
from postroad.distributed.entries import dead_letters
from postroad.distributed.maintenance.audit import Orphan, audit, delete_orphans
from postroad.distributed.maintenance.browse_start import BrowseStartAdvance
from postroad.distributed.maintenance.maintenance import Maintenance
from postroad.distributed.reading.browse import browse, content
from postroad.distributed.reading.size import AgesCache, SizeCache
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.entries import EntryKey, slice_of
from postroad.domain.queues.selection import Selector
from postroad.errors import BucketNotOwned, QueueNotFound, ServerError
from postroad.handling import ComposedOperations
from postroad.ports.delivery import SharedState, SuppressionList
from postroad.ports.events import EventSpool
from postroad.ports.mail_queue import NO_DELAY, Administration, Operation, check_selector
from postroad.telemetry.metrics import FROM_ZERO

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


class DistributedQueue(ComposedOperations, Administration):
    """One handle on a queue. Make it with `open`."""

    def __init__(self, parts: Parts) -> None:
        self._engine = Engine(parts)
        self._clock = parts.clock
        advancing = BrowseStartAdvance(self._engine)
        self._engine.on_ending = advancing.draw
        self._later_looks = LaterLooks(self._engine)
        self._engine.on_withdrawn = self._later_looks.add
        self._maintenance = Maintenance(self._engine, advancing)
        self._leases = MailLeases(self._engine)
        self._sizes = SizeCache(self._engine)
        self._ages = AgesCache(self._engine)
        for each in FROM_ZERO:
            each.labels(*self._engine.labels)

    @classmethod
    async def open(cls, parts: Parts, *, create_missing: bool = False) -> DistributedQueue:
        """Return an open queue. Raises: QueueNotFound, ServerError."""
        queue = cls(parts)
        if create_missing:
            await create(queue._engine)
        else:
            await open_existing(queue._engine)
        return queue

    @property
    def name(self) -> str:
        return str(self._engine.name)

    @property
    def shared_state(self) -> SharedState:
        return self._engine.view.shared_state

    @property
    def suppression_list(self) -> SuppressionList:
        return self._engine.view.suppression_list

    @property
    def event_spool(self) -> EventSpool | None:
        return self._engine.event_spool

    async def enqueue(
        self,
        mail: Mail,
        delay: timedelta = NO_DELAY,
        *,
        key: str | None = None,
        accepted_at: datetime | None = None,
    ) -> UUID:
        """As the port says. `accepted_at`: when this side took responsibility for the mail, if that
        was before: its age counts from then."""
        return await enqueue(self._engine, mail, delay, key, accepted_at)

    incoming = None
    """As the port says: a pod's temporary directory is its own."""

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        return True  # how much is free in its servers it cannot know

    def check_open(self) -> None:
        self._engine.check_open()

    def dequeue(self, prefetch: int = 10) -> AsyncIterator[DistributedItem]:
        return dequeue(self._engine, self._leases, prefetch)

    def browse(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        check_selector(selector, is_optional=True)
        return browse(self._engine, selector)

    def content(self, enqueue_id: UUID) -> AsyncIterator[bytes]:
        return content(self._engine, enqueue_id)

    async def size(self) -> Sizes:
        return await self._sizes.get()

    async def ages(self) -> Mapping[str, Mapping[timedelta, int]]:
        return await self._ages.get()

    async def change(self, operation: Operation, selector: Selector) -> int:
        check_selector(selector)
        return await administration.OPERATIONS[operation](self._engine, selector)

    async def purge(self, accepted_before: datetime | None = None) -> int:
        return await purge(self._engine, accepted_before)

    def dead_letters(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        check_selector(selector, is_optional=True)
        return dead_letters.views(self._engine, selector)

    async def republish(self, older_than: timedelta) -> int:
        decide = administration.republished(older_than)
        return await administration.change_waiting(decide, self._engine, Selector.all())

    async def maintain(self) -> None:
        await self._maintenance.round()

    async def accept_loss(self, first: datetime, last: datetime | None = None) -> None:
        """Go on without rows that vanished from the closed slice that starts at `first`, or from
        those that start from then to `last`. See `Maintenance.accept_loss`."""
        self._sizes.forget()
        self._ages.forget()
        await self._maintenance.accept_loss(first, last or first)

    def audit(self, *, repair: bool = False, adopt: bool = False) -> AsyncIterator[Orphan]:
        """Yield the objects that have no mail any more; with `repair` they are deleted. Maintenance
        does the same by and by. With `adopt` this view becomes the owner of the bucket's bytes
        first. Raises: BucketNotOwned, ServerError, ClockSkew, ConfigurationStale."""
        return audit(self._engine, repair=repair, adopt=adopt)

    async def check_owner(self) -> None:
        """Check that the bucket's bytes are this view's, as an audit does. Raises: BucketNotOwned,
        ServerError."""
        await ownership.check(self._engine)

    async def delete_orphans(self, keys: Iterable[str]) -> int:
        """Delete those of some objects that have no mail, as `audit` finds out; return how many.
        Raises: as `audit`."""
        return len(await delete_orphans(self._engine, keys))

    async def change_found(
        self, change: EntryChange, keys: Iterable[EntryKey], selector: Selector
    ) -> int:
        """Change the mails that wait under these entries, or under their successors, and that are
        selected; return how many. Raises: InvalidInput for an empty selector, ServerError,
        ClockSkew, ConfigurationStale."""
        return await change_found(self._engine, change, keys, selector)

    async def close(self) -> None:
        if self._engine.closed:
            return
        self._engine.closed = True  # first: nothing new may slip in behind what is waited for
        await self._engine.finish_background()
        await self._later_looks.close()
        await self._leases.close()
        await self._engine.broker.close()
        await self._engine.blobs.close()
        for each in self._engine.owned:
            await each.close()

    async def __aenter__(self) -> DistributedQueue:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
