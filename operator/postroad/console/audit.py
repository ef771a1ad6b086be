"""Audit of changes: each is logged, kept in the list of its queue, and announced elsewhere. Of what
was selected, the fields are named and no value: those are addresses."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from postroad.console.queues import ConsoleQueue
from postroad.domain.queues.names import QueueName
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.telemetry.logs import logger

_log = logger("console")

MAX_ENTRIES = 200
"""Changes of a queue that are kept, the last ones."""

MAX_QUEUES = 1000
"""Queues of which changes are kept, those that were changed last."""

MAX_ANNOUNCING = 100
"""Announcements under way at a time; a further one is left out, and logged."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change. `fields`: by which mails were selected; `matched`: how many. `more`: what else is
    to be known of it, no address."""

    at: datetime
    who: str
    change: str
    fields: tuple[str, ...] = ()
    matched: int | None = None
    more: tuple[tuple[str, str], ...] = ()


Announce = Callable[[ConsoleQueue, AuditEntry], Awaitable[None]]


class AuditTrail:
    """The changes that were made by a console."""

    def __init__(self, clock: Clock, announce: Announce | None = None) -> None:
        self._clock, self._announce = clock, announce
        self._entries: OrderedDict[QueueName, deque[AuditEntry]] = OrderedDict()
        self._announcing: set[asyncio.Task[None]] = set()

    def entries(self, name: QueueName) -> list[AuditEntry]:
        """Return the last changes of a queue, the newest first."""
        return list(reversed(self._entries.get(name, ())))

    def record(
        self,
        on: ConsoleQueue,
        who: str,
        change: str,
        more: Mapping[str, str],
        fields: Collection[str] = (),
        matched: int | None = None,
    ) -> None:
        """Record a change that begins, or was made."""
        entry = AuditEntry(
            self._clock.now(), who, change, tuple(fields), matched, tuple(more.items())
        )
        _log.info(
            "a change",
            who=who,
            queue=str(on.name),
            change=change,
            selector=list(fields),
            matched=matched,
            **more,
        )
        kept = self._entries.pop(on.name, None) or deque(maxlen=MAX_ENTRIES)
        kept.append(entry)
        self._entries[on.name] = kept
        if len(self._entries) > MAX_QUEUES:
            self._entries.popitem(last=False)
        if self._announce is not None:
            self._begin(on, entry, self._announce)

    def _begin(self, on: ConsoleQueue, entry: AuditEntry, announce: Announce) -> None:
        if len(self._announcing) >= MAX_ANNOUNCING:
            _log.warning("a change is not announced: too many at a time", queue=str(on.name))
            return
        task = asyncio.create_task(_announced(on, entry, announce))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)


async def _announced(on: ConsoleQueue, entry: AuditEntry, announce: Announce) -> None:
    try:
        await announce(on, entry)
    except PostroadError as error:  # the log and the list have it
        _log.warning("a change was not announced", queue=str(on.name), error=error.explain())
