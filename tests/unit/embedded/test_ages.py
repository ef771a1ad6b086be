"""Ages of waiting mail: they are counted at most once a minute, because each mail is looked at."""

from __future__ import annotations

from datetime import timedelta

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import start
from postroad.embedded.store.administration import FRESH
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock


async def counted(queue: OwnedQueue) -> int:
    return sum(sum(of_domain.values()) for of_domain in (await queue.ages()).values())


async def test_a_count_of_ages_is_repeated_when_it_is_a_minute_old() -> None:
    clock = ManualClock()
    queue = await start(LossyFiles(), clock)
    await queue.maintenance.recovering
    assert await counted(queue) == 0
    await queue.enqueue(plain_mail())

    clock.jump(FRESH)
    assert await counted(queue) == 0
    clock.jump(timedelta(seconds=1))
    assert await counted(queue) == 1
    await queue.close()
