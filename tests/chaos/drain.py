"""The end of a run: all faults are healed, the workload has stopped, and one healthy process
repairs the queue as an administrator would, until nothing changes any more. Then the run reads what
the servers have left."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from chaos.workload import Place, change, consume, list_dead_letters, list_waiting
from postroad.distributed.mail_queue import DistributedQueue
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue

Remains = Mapping[str, list[str]]
Inspect = Callable[[str], Awaitable[Remains]]
"""Returns what the servers still have of a queue, by kind."""

STEADY = 3
"""Consecutive rounds in which nothing waits and nothing is dead, after which the queue is empty."""

LOOKS = 3
"""Comparisons of `size` with what browsing finds until a difference is a violation. A row whose
insert did not reach a quorum is on one replica, and the replicas that answer decide whether a
reading meets it. Browsing repairs it."""

STUCK = 4
"""Consecutive rounds in which no fewer mails wait, after which all get a new message. A new message
is a new entry: while mails are delivered, replacing those that wait takes longer than delivering
them."""


async def drain(place: Place, inspect: Inspect) -> None:
    """Drain all queues, and record what is left."""
    async with asyncio.TaskGroup() as group:
        for name, queue in place.queues.items():
            group.create_task(_Drain(place, name, queue, inspect).run())


class _Drain:
    def __init__(self, place: Place, name: str, queue: MailQueue, inspect: Inspect) -> None:
        self._place, self._name, self._queue, self._inspect = place, name, queue, inspect
        self._until = place.clock.elapsed().total_seconds() + place.pace.drain_timeout

    @property
    def _has_time(self) -> bool:
        return self._place.clock.elapsed().total_seconds() < self._until

    async def run(self) -> None:
        await self._recount()
        consuming = asyncio.ensure_future(consume(self._place, self._name, self._queue, final=True))
        try:
            await self._empty()
            remains = await self._clean()
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
        await list_waiting(self._place, self._name, self._queue, last=True)
        await list_dead_letters(self._place, self._name, self._queue, last=True)
        self._place.recorder.note("remains", queue=self._name, remains=remains)

    async def _recount(self) -> None:
        """Compare `size` with what browsing finds, once replacements that stopped were finished:
        maintenance does that a grace period after they began. Nothing else happens meanwhile."""
        await self._place.sleep(self._place.pace.timing.grace.total_seconds())
        await self._maintenance()
        looks = 0
        while self._has_time:
            try:
                size = (await self._queue.size()).size
                found = len([each async for each in self._queue.browse()])
            except PostroadError:
                await self._round()
                continue
            looks += 1
            if size == found or looks == LOOKS:
                self._place.recorder.note("recount", queue=self._name, size=size, found=found)
                return

    async def _empty(self) -> None:
        """Deliver, release, flush and requeue until nothing waits."""
        place, steady, stuck, before = self._place, 0, 0, math.inf
        everything = {"all": True}
        while self._has_time and steady < STEADY:
            await change(place, "release", self._name, self._queue, everything)
            await change(place, "flush", self._name, self._queue, everything)
            dead = await list_dead_letters(place, self._name, self._queue)
            await change(place, "requeue", self._name, self._queue, everything)
            if stuck == STUCK:
                stuck = 0
                await change(place, "republish", self._name, self._queue, everything)
            await self._round()
            waiting = await list_waiting(place, self._name, self._queue)
            steady = steady + 1 if dead == 0 and waiting == 0 else 0
            stuck = 0 if waiting is not None and waiting < before else stuck + 1
            before = before if waiting is None else waiting

    async def _clean(self) -> Remains:
        """Run maintenance, which closes, passes and cleans slices, until nothing is left."""
        while True:
            await self._round()
            try:
                remains = await self._inspect(self._name)
            except Exception as error:
                remains = {"unknown": [repr(error)]}
            if not any(remains.values()) or not self._has_time:
                return remains
            if not any(left for kind, left in remains.items() if kind != "objects"):
                await self._audit()
                await self._place.sleep(self._place.pace.timing.upload.total_seconds() / 4)

    async def _round(self) -> None:
        await self._place.sleep(self._place.pace.maintenance)
        await self._maintenance()

    async def _audit(self) -> None:
        """Delete the uploads that killed processes left, as `postroad audit` does."""

        queue = cast("DistributedQueue", self._queue)

        async def work() -> Mapping[str, Any]:
            return {"count": len([each async for each in queue.audit(repair=True)])}

        await self._place.call("audit", work, queue=self._name)

    async def _maintenance(self) -> None:
        async def work() -> Mapping[str, Any]:
            await self._queue.maintain()
            return {}

        await self._place.call("maintain", work, queue=self._name)
