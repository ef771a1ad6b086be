"""The queues of a run: a directory, or one over real servers. What waits is read where the engine
keeps it, and only of the mails that it is asked for."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar, cast
from uuid import UUID

from kills.mails import Key, PlannedMail
from postroad import Mail, Selector, open_queue
from postroad.bootstrap.cluster import connect
from postroad.distributed.entries.replacement import replacement_of
from postroad.distributed.mail_queue import DistributedQueue
from postroad.distributed.reading.browse import waiting
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.entries import EndingKind, Entry, place
from postroad.domain.queues.names import QueueName
from postroad.ports.mail_queue import MailQueue
from postroad.ports.view import View
from postroad.settings import from_environment
from support.servers import cql

TOGETHER = 100
"""Requests at once."""

MANY_CRASHES = "1000"
"""Kills that find a mail in flight before the queue gives it up, which is 20 by default: a run has
more of them than any worker outside."""

T = TypeVar("T")
R = TypeVar("R")

CONTENT = b"From: a@origin.example\r\nSubject: x\r\n\r\nx\r\n"


class BackEnd(Protocol):
    """A queue, and the command that works on it."""

    @property
    def command(self) -> Sequence[str]:
        """The worker's command and its options."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of the worker."""
        ...

    async def fill(self, mails: Iterable[PlannedMail]) -> None:
        """Queue mails."""
        ...

    async def waiting(self, of: Collection[Key]) -> set[Key]:
        """Return which of these wait, while no worker runs."""
        ...

    async def remove(self, sender: str) -> bool:
        """Remove the mail of a sender, while a worker runs; return whether it waited, and in the
        entry that it began with."""
        ...

    async def size(self) -> int:
        """Return how many mails wait."""
        ...


class Embedded:
    """A queue in a directory, and `postroad mta`."""

    environment: Mapping[str, str] = {}

    def __init__(self, root: Path) -> None:
        self._url = f"embedded://{root}"
        self._ids = dict[str, UUID]()
        self.command = ("mta", "--queue", self._url, "--listen", "127.0.0.1:0")

    async def fill(self, mails: Iterable[PlannedMail]) -> None:
        async with open_queue(self._url, create=True) as queue:
            self._ids = await _enqueue(queue, mails)

    async def waiting(self, of: Collection[Key]) -> set[Key]:
        """Opening the directory recovers it, so that its mails have the recipients left."""
        found = set[Key]()
        async with open_queue(self._url) as queue:
            async for view in queue.browse():
                sender = view.mail.sender or ""
                found.update((sender, each) for each in view.mail.recipients)
        return found.intersection(of)

    async def remove(self, sender: str) -> bool:
        async with open_queue(self._url) as queue:
            return await queue.remove(Selector(enqueue_id=self._ids[sender])) > 0

    async def size(self) -> int:
        async with open_queue(self._url) as queue:
            return (await queue.size()).size


class Distributed:
    """A queue of the distributed engine, and `postroad worker`."""

    environment: Mapping[str, str] = {"POSTROAD_WORKER_WINDOW": "200"}
    """Fewer in flight than by default, because each kill delays what is."""

    def __init__(self, url: str, queue: DistributedQueue) -> None:
        self.command = ("worker", "--queue", url)
        self._queue, self._engine = queue, queue._engine
        self._ids = dict[str, UUID]()
        self._filled = UUID(int=0)

    async def fill(self, mails: Iterable[PlannedMail]) -> None:
        self._ids = await _enqueue(self._queue, mails)
        self._filled = max(self._ids.values())

    async def waiting(self, of: Collection[Key]) -> set[Key]:
        """Looks up the mails one by one, and reads the rows of all reports, which are younger than
        the mails: each kill may delay a report by two minutes, the claim of the killed worker."""
        senders = {sender for sender, _ in of} - {""}
        found = set[Key]().union(*await _some_at_once(self._left, senders))
        for report in await self._waiting("", self._filled):
            found.update(("", to) for to in report.envelope.recipients)
        return found.intersection(of)

    async def _waiting(self, sender: str, after: UUID | None = None) -> list[Entry]:
        began = await self._engine.limits_cache.begin()
        found = waiting(self._engine, began, Selector(sender=sender), after)
        return [each.entry async for each in found]

    async def _left(self, sender: str) -> set[Key]:
        view, writing = self._engine.view, self._engine.configuration.effective().writing
        key = place(self._ids[sender], writing.slice_window, writing.bucket_count)
        entry = await view.row(key)
        if isinstance(entry, Entry):
            left = await recipients_left(view, entry)
        else:  # its slice was cleaned, since all its mails are over or have other entries
            found = await self._waiting(sender)
            left = {to for each in found for to in await recipients_left(view, each)}
        return {(sender, each) for each in left}

    async def remove(self, sender: str) -> bool:
        return await self._queue.remove(Selector(enqueue_id=self._ids[sender])) > 0

    async def size(self) -> int:
        return (await self._queue.size()).size


async def recipients_left(view: View, entry: Entry) -> set[str]:
    """Return who is left of a mail that has or had this entry, by marks and records."""
    key, recipients = entry.key, entry.envelope.recipients
    while (mark := await view.mark(key)) is not None:
        is_replaced = mark.ending is not None and mark.ending.kind is EndingKind.REPLACED
        if mark.delivered_at is not None or not is_replaced:
            return set()
        key, change = replacement_of(mark)
        recipients = change.remaining
    records = await view.records(entry.mail_id)
    over = {to for to, each in records.items() if each.outcome.kind is not OutcomeKind.DEFERRED}
    return set(recipients) - over


async def _enqueue(queue: MailQueue, mails: Iterable[PlannedMail]) -> dict[str, UUID]:
    """Queue mails; return the enqueue id of each by its sender."""

    async def one(mail: PlannedMail) -> tuple[str, UUID]:
        return mail.sender, await queue.enqueue(Mail(mail.sender, mail.recipients, CONTENT))

    return dict(await _some_at_once(one, mails))


async def _some_at_once(operation: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    gate = asyncio.Semaphore(TOGETHER)

    async def one(item: T) -> R:
        async with gate:
            return await operation(item)

    return await asyncio.gather(*map(one, items))


@asynccontextmanager
async def over_servers(
    made: Callable[[str, DistributedQueue], Distributed] = Distributed,
) -> AsyncIterator[Distributed]:
    """Make a queue of the run's own over the servers that POSTROAD_* name, in a keyspace of its
    own, and remove it afterwards. `made`: by a kind of its own."""
    word = secrets.token_hex(4)
    keyspace, name = f"kills_{word}", QueueName(f"kills-{word}", "outgoing")
    os.environ["POSTROAD_CASSANDRA_KEYSPACE"] = keyspace
    os.environ["POSTROAD_BROKER_DELIVERY_LIMIT"] = MANY_CRASHES
    url = f"distributed://{name}"
    try:
        async with open_queue(url, create=True) as queue:
            yield made(url, cast("DistributedQueue", queue))
    finally:
        servers = connect(from_environment())
        await servers.broker(name).delete()
        await servers.blobs(name.bucket("postroad-")).drop()
        await servers.close()
        await asyncio.to_thread(cql, f"DROP KEYSPACE IF EXISTS {keyspace}")
