"""One log against a lane per retry step: what is read for a mail that is started (LQ-32).

Half a day of steady load on a clock that only moves when told, with a memory that is far smaller
than what waits: on a machine, the backlog would be larger instead. Mails of all steps lie mixed in
one log; in lanes, the next one due is the next one written.
"""

from __future__ import annotations

from datetime import timedelta

from bench.results import Result, compared
from crash.steady import OPTIONS, ForgetfulFiles, Steady, steady
from postroad.domain.delivery.retries import RetryPlan
from postroad.embedded.log import lanes
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.store import engine as store_engine

HOUR = timedelta(hours=1)
PLAN = RetryPlan(max_age=24 * HOUR)
MINUTES, A_MINUTE = 12 * 60, 2
RECENT, BLOCK, BLOCKS = 24, 4096, 4
"""Envelopes kept in memory, octets of a block, and blocks kept."""


async def measure() -> list[Result]:
    """Run the same half day with both."""
    small = (
        (lanes, "RECENT", RECENT),
        (store_engine, "BLOCK", BLOCK),
        (store_engine, "BLOCKS_KEPT", BLOCKS),
    )
    usual = [(module, name, getattr(module, name)) for module, name, _ in small]
    for module, name, value in small:
        setattr(module, name, value)
    try:
        in_lanes = await _half_a_day(PLAN.lanes)
        in_one = await _half_a_day(())
    finally:
        for module, name, value in usual:
            setattr(module, name, value)
    case = f"{A_MINUTE} mails a minute, 12 hours, memory for {RECENT} envelopes and {BLOCKS} blocks"
    return [
        compared(measure, case, unit, [ours], "one log", [theirs], less_is_better=True)
        for measure, unit, ours, theirs in zip(
            ("read for a started mail", "log on disk, at most"), ("octets", "kB"), in_lanes, in_one,
            strict=True,
        )
    ]  # fmt: skip


async def _half_a_day(steps: tuple[timedelta, ...]) -> tuple[float, float]:
    """Return octets read for each started mail, and the largest log in kB."""
    options = StoreOptions(
        OPTIONS.segment_bytes, OPTIONS.segment_envelopes, steps, OPTIONS.checkpoint_every,
        pool_files=OPTIONS.pool_files,
    )  # fmt: skip
    files, queue, load = await steady(PLAN, options)
    largest = await _pass(files, load)
    read = queue.engine.reader.bytes_read / load.started
    await queue.close()
    return read, largest / 1000


async def _pass(files: ForgetfulFiles, load: Steady) -> int:
    largest = 0
    async for minute in load.minutes(MINUTES, A_MINUTE):
        if minute % 15 == 0:
            await load.queue.maintenance.round()
            largest = max(largest, files.bytes_in("log"))
    return largest
