"""One handle on a store: as its owner, or as a client of the process that is.

Who gets the lock owns the store and serves it to the others. When an owner goes, its clients stand
for election: one recovers the store and goes on, the others connect to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from postroad.domain.mail.mail import Mail
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.layout import Layout
from postroad.embedded.rpc.client import RemoteQueue
from postroad.embedded.rpc.connection import CallRefused, NoOwner
from postroad.embedded.rpc.receiver import SpoolReceiver
from postroad.embedded.rpc.serving import Server
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.maintenance import Maintenance
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import PostroadError, QueueClosed, StoreUnavailable
from postroad.event_log.operations import OperationEvents, operation_events_of
from postroad.handling import ComposedOperations
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, SuppressionList
from postroad.ports.events import EventSpool
from postroad.ports.files import Files, Lock
from postroad.ports.mail_queue import (
    NO_DELAY,
    Administration,
    Item,
    MailQueue,
    Operation,
    check_delay,
    check_mail,
    check_selector,
)

T = TypeVar("T")
FIND_TIMEOUT = timedelta(seconds=30)
"""Time to look for an owner that has the lock but does not answer."""

LEFT_BEHIND = "a receiver of an MTA that was killed may still be there: end it"
"""Action when a process holds the lock and none serves the store."""

PAUSE = timedelta(milliseconds=20)

SOON = timedelta(milliseconds=250)
"""Time that opening waits for recovery to end. Mail is received in any case afterwards."""


class _OwnerRole:
    """This process owns the store."""

    def __init__(self, queue: OwnedQueue, server: Server, lock: Lock) -> None:
        self.queue, self._server, self._lock = queue, server, lock

    @property
    def lock(self) -> int:
        return self._lock.descriptor

    async def close(self) -> None:
        await self._server.close()
        await self.queue.settle()  # `close` fails those that wait: their mail would be sent twice
        await self.queue.close()
        self._lock.release()  # last: two owners would write to one log


Role = _OwnerRole | RemoteQueue


class EmbeddedQueue(ComposedOperations, Administration):
    """`MailQueue` over a store. `open_engine` recovers the store, once the lock is held.
    `receiver`: this process inherited the lock from the owner and stores mails itself. It never
    becomes the owner: while it lives, no process can."""

    def __init__(
        self,
        name: str,
        files: Files,
        layout: Layout,
        clock: Clock,
        open_engine: Callable[[], Awaitable[tuple[Engine, Maintenance]]],
        receiver: SpoolReceiver | None = None,
        shared_state: SharedState | None = None,
        suppression_list: SuppressionList | None = None,
        event_spool: EventSpool | None = None,
    ) -> None:
        self.shared_state = shared_state
        """The shared state of the processes of this queue; None: this handle has none."""
        self.suppression_list = suppression_list
        """The addresses that this queue does not mail; None: this handle has none."""
        self.event_spool = event_spool
        """Events that wait to be sent; None: this handle has none."""
        self.incoming: Path | None = None
        """As the port says; None until the store is open."""
        self._name, self._files, self._layout, self._clock = name, files, layout, clock
        self._open_engine, self._receiver = open_engine, receiver
        self._role: Role | None = None
        self._election = asyncio.Lock()
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._name

    async def open(self) -> EmbeddedQueue:
        """Take up a role. Raises: StoreDamaged, StoreFailed, StoreUnavailable."""
        await self._queue()
        return self

    async def _queue(self) -> OwnedQueue | RemoteQueue:
        """Return what serves this handle; the role may have to be found anew, but for an owner's,
        which ends when the handle is closed."""
        if isinstance(self._role, _OwnerRole) and not self._is_closed:
            return self._role.queue
        async with self._election:
            self._check_not_closed()  # in the lock: what is opened behind `close` stays open
            if isinstance(self._role, RemoteQueue) and not self._role.connection.is_usable:
                if self._role.connection.lost is not None:
                    await self._role.close()
                self._role = None  # one that is being left closes itself
            if self._role is None:
                self._role = await self._find_role()
            return self._role.queue if isinstance(self._role, _OwnerRole) else self._role

    @property
    def lock(self) -> int | None:
        """The descriptor of the lock on the store, for processes that are to inherit it; None when
        this one does not own the store."""
        return self._role.lock if isinstance(self._role, _OwnerRole) else None

    async def _find_role(self) -> Role:
        if self._receiver is not None:
            return await RemoteQueue.open(Path(self._layout.socket), self._clock)
        until = self._clock.elapsed() + FIND_TIMEOUT
        while True:
            # The lock first: a socket that a killed owner left says nothing.
            lock = self._files.lock(self._layout.lock)
            if lock is not None:
                return await self._own(lock)
            try:
                return await RemoteQueue.open(Path(self._layout.socket), self._clock)
            except StoreUnavailable as error:
                if self._clock.elapsed() > until:
                    raise StoreUnavailable(
                        f"the lock on {self._name} is held: {error}",
                        hint=LEFT_BEHIND if isinstance(error, NoOwner) else error.hint,
                    ) from error
            await self._clock.sleep(PAUSE)

    async def _own(self, lock: Lock) -> _OwnerRole:
        try:
            engine, maintenance = await self._open_engine()
        except BaseException:
            lock.release()
            raise
        queue = OwnedQueue(self._name, engine, maintenance, self._find_events)
        server = Server(queue)
        owner = _OwnerRole(queue, server, lock)
        try:
            # Damage that recovery finds by then is raised here; a long recovery goes on behind.
            await asyncio.wait({maintenance.recovering}, timeout=SOON.total_seconds())
            engine.check()
            await server.listen(Path(self._layout.socket))
        except BaseException:
            await owner.close()
            raise
        return owner

    async def _find_events(self, operation: Operation) -> OperationEvents | None:
        if self.shared_state is None:
            return None
        asked = (self.shared_state, self.event_spool, self._clock)
        return await operation_events_of(operation, self._name, *asked)

    async def _ask(
        self, question: Callable[[OwnedQueue | RemoteQueue], Awaitable[T]], *, again: bool = True
    ) -> T:
        """Ask the owner, and the next one where the first went before it had the whole question;
        `again`: also where it went before it answered."""
        while True:
            queue = await self._queue()
            try:
                return await question(queue)
            except StoreUnavailable as error:
                went = isinstance(queue, RemoteQueue) and queue.connection.lost is not None
                if not (isinstance(error, CallRefused) or (again and went)):
                    raise

    # -- the port --------------------------------------------------------------------------------

    async def enqueue(
        self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None
    ) -> UUID:
        """As the port says. EnqueueUnknown: the owner went meanwhile, the mail may be queued."""
        check_mail(mail)
        check_delay(delay)
        if key is not None:
            return await self._ask(lambda queue: queue.enqueue(mail, delay, key=key))
        if not isinstance(mail.content, bytes | Path):
            return await (await self._queue()).enqueue(mail, delay)  # a stream is read once
        return await self._ask(partial(self._enqueue_whole, mail, delay), again=False)

    def _portion_of(self, concurrency: int) -> int:
        return (concurrency + 1) // 2  # one is made ready while the other is synced

    async def _enqueue_portion(
        self, mails: Sequence[Mail], key: Callable[[Mail], str] | None
    ) -> list[UUID | Exception]:
        """One sync of the log is for all mails, where this process owns the store."""
        try:
            queue = await self._queue()
            are_plain = key is None and all(isinstance(each.content, bytes) for each in mails)
            if are_plain and isinstance(queue, OwnedQueue):
                return await queue.enqueue_portion(mails)
        except PostroadError as error:
            return [error for _ in mails]
        return await super()._enqueue_portion(mails, key)

    async def _enqueue_whole(
        self, mail: Mail, delay: timedelta, queue: OwnedQueue | RemoteQueue
    ) -> UUID:
        is_plain = not delay and not mail.envelope.is_quarantined
        is_whole_and_due = isinstance(mail.content, bytes) and is_plain
        if self._receiver is not None and isinstance(queue, RemoteQueue) and is_whole_and_due:
            return await self._receiver.enqueue(queue.connection, mail)
        return await queue.enqueue(mail, delay)

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        if self._receiver is not None:
            return self._receiver.has_room(size_bytes, is_taken=is_taken)
        if not isinstance(self._role, _OwnerRole):
            return True
        return self._role.queue.has_room(size_bytes, is_taken=is_taken)

    def check_open(self) -> None:
        self._check_not_closed()
        if isinstance(self._role, _OwnerRole):
            self._role.queue.engine.check()

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise QueueClosed(f"{self._name} was closed")

    async def dequeue(self, prefetch: int = 10) -> AsyncIterator[Item]:
        while True:
            queue = await self._queue()
            try:
                async with aclosing(queue.dequeue(prefetch)) as items:  # type: ignore[type-var]
                    async for item in items:
                        yield item
            except StoreUnavailable:
                continue

    async def browse(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        check_selector(selector, is_optional=True)
        async for view in (await self._queue()).browse(selector):
            yield view

    async def dead_letters(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        check_selector(selector, is_optional=True)
        async for view in (await self._queue()).dead_letters(selector):
            yield view

    async def content(self, enqueue_id: UUID) -> AsyncIterator[bytes]:
        async for chunk in (await self._queue()).content(enqueue_id):
            yield chunk

    async def size(self) -> Sizes:
        return await self._ask(lambda queue: queue.size())

    async def ages(self) -> Mapping[str, Mapping[timedelta, int]]:
        return await self._ask(lambda queue: queue.ages())

    async def change(self, operation: Operation, selector: Selector) -> int:
        check_selector(selector)
        return await self._ask(lambda queue: queue.change(operation, selector), again=False)

    async def purge(self) -> int:
        return await self._ask(lambda queue: queue.purge(), again=False)

    async def republish(self, older_than: timedelta) -> int:
        return await self._ask(lambda queue: queue.republish(older_than))

    async def maintain(self) -> None:
        await self._ask(lambda queue: queue.maintain())

    async def close(self) -> None:
        self._is_closed = True
        async with self._election:
            role, self._role = self._role, None
            if role is not None:
                await role.close()
        if self._receiver is not None:
            await self._receiver.close()

    async def __aenter__(self) -> MailQueue:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
