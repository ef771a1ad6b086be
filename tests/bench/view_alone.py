"""Mails of which only the view learns, so that a million of them pass within an hour.

For each the view is asked what `enqueue`, `dequeue` and `done` ask for a mail that is due at once:
its row at an id of now, a look for its mark, the delivery mark; and the draw is made that may move
browse start. The statements are those, in requests as full as gathering makes them in a busy queue
(ADR 0012), so that maintenance cannot tell such a mail from one that also had a message and bytes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count, islice
from typing import Any

from bench.attempts import insist
from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.adapters.cassandra.view.marks import MAX_TOGETHER
from postroad.distributed.engine.engine import Engine
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, Partition

SIZE_BYTES = 2000
ENVELOPE = Envelope("a@example.org", ("b@example.net",), "measured")
TOGETHER = 2 * MAX_TOGETHER
"""Mails that go the same way at the same time, in a request for each of some partitions."""
AT_ONCE = 16
TOLD_EVERY = 30
"""Looks, one a second."""


@dataclass
class ViewAlone:
    """Passes mails as fast as the view takes them, but never leaves maintenance behind: no process
    fills a real view with so many mails that their rows expire before they are cleaned."""

    engine: Engine
    lifetime: timedelta
    """Of rows. While browse start is further behind now than half of it, no more mails come: rows
    of waiting mail would be rolled forward."""
    most_behind: timedelta = timedelta(0)
    passed: int = 0
    _may_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, mails: int) -> None:
        """Pass so many mails."""
        numbers = iter(range(mails))

        async def worker() -> None:
            while some := sum(1 for _ in islice(numbers, TOGETHER)):
                await self._may_go.wait()
                entries = await self._entries(some)
                await asyncio.gather(*(self._pass(*each) for each in entries))

        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
            watching.cancel()

    async def _entries(self, some: int) -> Iterable[tuple[Partition, list[Entry]]]:
        """Return new entries by partition."""
        found: dict[Partition, list[Entry]] = defaultdict(list)
        for _ in range(some):
            entry = await self._entry()
            found[entry.key.partition].append(entry)
        return found.items()

    async def _entry(self) -> Entry:
        engine = self.engine
        accepted_at, mail_id = engine.clock.now(), engine.ids.new()
        return Entry(
            key=await insist(engine.new_key),
            mail_id=mail_id,
            envelope=ENVELOPE,
            blob_key=f"{engine.name}/{accepted_at:%Y/%m/%d}/{mail_id}",
            size_bytes=SIZE_BYTES,
            accepted_at=accepted_at,
            enqueued_at=accepted_at,
        )

    async def _pass(self, partition: Partition, entries: list[Entry]) -> None:
        engine, name = self.engine, str(self.engine.name)
        view: Any = engine.view  # what lies behind its gathering is asked
        inserted = [(name, *rows.entry_values(each)) for each in entries]
        await insist(partial(view._write_together, statements.INSERT_ROW, partition, inserted))
        ids = [each.enqueue_id for each in entries]
        assert not any(await insist(partial(view._marks_together, partition, ids)))
        now = engine.clock.now()
        marked = [_mark_values(name, each, now) for each in entries]
        delivered = mark_statements.MARK_DELIVERED
        await insist(partial(view._write_together, delivered, partition, marked))
        self.passed += len(entries)
        for _ in entries:
            engine.on_ending()

    async def _watch(self) -> None:
        for look in count():
            behind = await self._behind()
            if self.passed:
                self.most_behind = max(self.most_behind, behind)
                assert behind < self.lifetime, "maintenance does not come after"
            if behind < self.lifetime / 2:
                self._may_go.set()
            else:
                self._may_go.clear()
            if look % TOLD_EVERY == 0:
                seconds = behind.total_seconds()
                print(f"{self.passed:,} passed, browse start {seconds:.0f} s behind", flush=True)
            await asyncio.sleep(1)

    async def _behind(self) -> timedelta:
        browse_start = (await insist(self.engine.view.limits)).browse_start
        now = self.engine.clock.now()
        return now - (browse_start or now)


def _mark_values(name: str, entry: Entry, at: datetime) -> tuple[object, ...]:
    return (*rows.key_values(name, entry.key), *mark_rows.trait_values(entry.traits), at)
