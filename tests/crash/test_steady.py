"""72 hours of steady load: the log stays as small as what waits, and nothing in it grows old.

Source: LQ-24 to LQ-27, SP-16, SP-18; FORMAT.md 10.
"""

from __future__ import annotations

from datetime import timedelta

from crash.steady import ATTEMPT, MINUTE, OPTIONS, steady
from postroad.domain.delivery.retries import RetryPlan
from postroad.embedded.store.owner import OwnedQueue

HOUR = timedelta(hours=1)
PLAN = RetryPlan(max_age=12 * HOUR)
MAX_WAIT = max(PLAN.lanes) * (1 + PLAN.jitter) + ATTEMPT + MINUTE
"""The longest lane and the longest attempt, on a clock that goes by minutes."""


async def oldest(queue: OwnedQueue) -> timedelta:
    """Return the age of the oldest record that is still needed."""
    engine = queue.engine
    entries = [await engine.reader.read(entry) for entry in engine.index.walk()]
    begun = min((entry_number.enqueued_us for entry_number in entries), default=engine.now_us())
    return timedelta(microseconds=engine.now_us() - begun)


async def test_72_hours_leave_a_log_as_small_as_what_waits_and_nothing_old_in_it() -> None:
    files, queue, load = await steady(PLAN, OPTIONS)
    sizes, oldest_seen = dict[int, int](), timedelta(0)
    async for minute in load.minutes(72 * 60, mails_a_minute=1):
        if minute % 15 == 0:
            await queue.maintenance.round()
        if minute % 60 == 0:
            sizes[minute // 60] = files.bytes_in("log")
            oldest_seen = max(oldest_seen, await oldest(queue))
    await queue.close()

    assert oldest_seen <= MAX_WAIT
    assert load.started > 8_000, "most of what was written is garbage by now"
    lanes = len(PLAN.lanes) + 1
    assert max(sizes.values()) < 2 * lanes * OPTIONS.segment_bytes
    assert max(list(sizes.values())[48:]) <= 1.1 * max(list(sizes.values())[24:48])
