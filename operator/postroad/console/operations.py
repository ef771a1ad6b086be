"""Operations on selected mails, made in portions, so that their progress is seen and they go on
where they were when a server was away.

Each portion is one call of the queue for the mails up to an id, and is durable before the next one
begins. An operation is for mails that were accepted before it began. It is in memory: one that ends
with the console is begun anew by the same request, which passes over what is done."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypeVar
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from postroad.console.audit import AuditTrail
from postroad.console.queues import ConsoleQueue
from postroad.console.reading import Views
from postroad.console.remembered_work import RememberedWork
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import FIRST, id_at
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import MailQueue, Operation
from postroad.problems import Problem
from postroad.telemetry.logs import logger

_log = logger("console")

T = TypeVar("T")

LAST_OF_A_MILLISECOND = (0xFFF, (1 << 62) - 1)

PORTION = 1000
"""Mails of one portion."""

MAX_RUNNING = 8
"""Operations of a user under way at a time, counts of their mails among them."""

MAX_AWAY = timedelta(minutes=30)
"""Time for which a server may be away amid an operation."""

FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=1), timedelta(seconds=30)

DESTRUCTIVE = frozenset((Operation.REMOVE, Operation.EXPIRE, Operation.DISCARD))
"""Operations that cannot be undone: they need the number of mails as a confirmation."""


class Phase(StrEnum):
    """Phase of an operation."""

    COUNTED = "Counted"
    """A dry run, which has ended."""
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"


@dataclass(eq=False, slots=True)
class Running:
    """An operation of a user on a queue. `changed` wakes those who watch it."""

    id: UUID
    on: ConsoleQueue
    operation: Operation
    selector: Selector
    matched: int
    who: str
    began_at: datetime
    phase: Phase = Phase.RUNNING
    done: int = 0
    message: str | None = None
    """Why it failed, or what it waits for."""
    ended_at: datetime | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def has_ended(self) -> bool:
        return self.phase is not Phase.RUNNING

    @property
    def dry_run(self) -> bool:
        return self.phase is Phase.COUNTED

    async def note(self) -> None:
        """Wake those who watch."""
        async with self.changed:
            self.changed.notify_all()


def listing_of(queue: MailQueue, operation: Operation) -> Views:
    return queue.dead_letters if operation.of_dead_letters else queue.browse


def kinds_of(selector: Selector) -> list[str]:
    """Return by what a selector selects, without the values: those are addresses."""
    fields = Selector.__dataclass_fields__
    return [name for name in fields if getattr(selector, name) not in (None, False)]


class Operations:
    """The operations of a console."""

    def __init__(self, clock: Clock, audit: AuditTrail) -> None:
        self._clock, self._audit = clock, audit
        self._kept = RememberedWork[Running](lambda each: each.has_ended)
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._beginning = set[UUID]()
        self._busy = Counter[str]()
        """Operations and counts under way, by user: one user neither waits for another, nor learns
        what the others do."""

    def find(self, on: ConsoleQueue, operation_id: UUID) -> Running | None:
        found = self._kept.find(on.name.namespace, operation_id)
        return found if found is not None and found.on is on else None

    async def begin(
        self,
        on: ConsoleQueue,
        operation: Operation,
        selector: Selector,
        who: str,
        *,
        is_dry: bool = False,
        confirm: int | None = None,
        key: str | None = None,
    ) -> Running:
        """Count the selected mails, and begin to change them unless it is a dry run. With a `key`
        that the user gave before, and is remembered, return what it began. Raises: Problem where it
        lacks the confirmation, or too many run, or the key stands for something else; InvalidInput,
        errors of the queue."""
        made = uuid4() if key is None else _id_of(on, who, key)
        if made in self._beginning:
            raise Problem(409, "a request with this Idempotency-Key is being answered now")
        found = self._kept.find(on.name.namespace, made)
        if found is not None and (found.on is on or not found.has_ended):
            before = found.operation, found.dry_run, replace(found.selector, accepted_before=None)
            if before != (operation, is_dry, selector):
                raise Problem(409, "this Idempotency-Key stands for another operation")
            return found
        self._beginning.add(made)
        try:
            return await self._begin(made, on, operation, selector, who, is_dry, confirm)
        finally:
            self._beginning.discard(made)

    async def _begin(
        self,
        made_id: UUID,
        on: ConsoleQueue,
        operation: Operation,
        selector: Selector,
        who: str,
        is_dry: bool,
        confirm: int | None,
    ) -> Running:
        began = self._clock.now()
        meant = replace(selector.require_purpose(), accepted_before=began)
        if self._busy[who] >= MAX_RUNNING:
            raise Problem(429, f"{MAX_RUNNING} operations are under way: wait for the end of one")
        self._busy[who] += 1  # a count reads as much as the operation
        try:
            matched = await count(on.queue, operation, meant)
        finally:
            self._busy -= Counter((who,))
        if not is_dry and operation in DESTRUCTIVE and confirm != matched:
            raise Problem(
                409,
                f"{operation.value} is for {matched} mails, and cannot be undone: repeat it with"
                f' "confirm": {matched}',
            )
        made = Running(made_id, on, operation, meant, matched, who, began)
        self._kept.make_room(on.name.namespace)
        self._kept.add(on.name.namespace, made.id, made)
        if is_dry:
            made.phase, made.ended_at = Phase.COUNTED, began
        else:
            self._audit.record(on, who, operation.value, {}, kinds_of(selector), matched)
            self._busy[who] += 1
            self._tasks[made.id] = asyncio.create_task(self._run(made), name=f"{operation.value}")
        return made

    async def close(self) -> None:
        """End what is under way, between two portions or amid one."""
        tasks = list(self._tasks.values())
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, running: Running) -> None:
        try:
            await self._change_all(running)
            running.phase = Phase.DONE
        except PostroadError as error:
            running.phase, running.message = Phase.FAILED, error.explain()
        except Exception:
            running.phase, running.message = Phase.FAILED, "the console failed; see its log"
            _log.exception("an operation failed")
        finally:
            del self._tasks[running.id]
            self._busy -= Counter((running.who,))
            running.ended_at = self._clock.now()
            _log.info(
                "an operation ended",
                who=running.who,
                queue=str(running.on.name),
                operation=running.operation.value,
                selector=kinds_of(running.selector),
                matched=running.matched,
                id=str(running.id),
                phase=running.phase.value,
                done=running.done,
            )
        await running.note()

    async def _change_all(self, running: Running) -> None:
        """Change the mails with ids of before the operation, in portions; then those that got
        another entry since, which lie behind, in one call: by this operation, which passes over
        what is done, or by a worker."""
        queue, operation = running.on.queue, running.operation
        end = id_at(running.began_at, *LAST_OF_A_MILLISECOND)
        after: UUID | None = None
        while True:
            meant = replace(running.selector, after=after, last=end)
            listed = partial(_end_of_portion, listing_of(queue, operation), meant)
            last = await self._persist(running, listed)
            portion = replace(meant, last=last or end)
            running.done += await self._persist(running, partial(queue.change, operation, portion))
            await running.note()
            if last is None:
                break
            after = last
        if not operation.of_dead_letters:
            rest = replace(running.selector, after=end)
            running.done += await self._persist(running, partial(queue.change, operation, rest))

    async def _persist(self, running: Running, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat what a queue does while a server is away. Raises: the error of one that is away
        for too long, and those that time does not mend."""
        until, pause = self._clock.elapsed() + MAX_AWAY, FIRST_PAUSE
        while True:
            try:
                found = await work()
            except PostroadError as error:
                if not error.transient or self._clock.elapsed() > until:
                    raise
                running.message = f"waits: {error.explain()}"
                await running.note()
                await self._clock.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)
            else:
                running.message = None
                return found


def _id_of(on: ConsoleQueue, who: str, key: str) -> UUID:
    """Return the id of the operation of a user's Idempotency-Key."""
    return uuid5(NAMESPACE_OID, json.dumps([str(on.name), who, key]))


async def count(queue: MailQueue, operation: Operation, selector: Selector) -> int:
    """Count the mails that an operation is for; of all mail, as the queue's size does."""
    if selector.is_everything:
        sizes = await queue.size()
        found = sizes.dead_letters if operation.of_dead_letters else sizes.size
        if found is not None and not sizes.at_least:
            return found
    number = 0
    async for _ in listing_of(queue, operation)(selector):
        number += 1
    return number


async def _end_of_portion(views: Views, selector: Selector) -> UUID | None:
    """Return the id of the last mail of a portion; None where fewer are left."""
    last, number = FIRST, 0
    async with aclosing(views(selector)) as stream:  # type: ignore[type-var]
        async for view in stream:
            number += 1
            last = max(last, view.place or view.enqueue_id)
            if number == PORTION:
                return last
    return None
