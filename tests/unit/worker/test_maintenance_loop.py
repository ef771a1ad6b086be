import asyncio
from datetime import timedelta

import pytest

from postroad.cli.processes.long_running import run_maintenance
from postroad.errors import ViewUnavailable
from support.memory.clock import ManualClock, SeededRandomness


class Maintained:
    """A queue that counts rounds, and fails in the first."""

    name = "mail.outgoing"
    rounds = 0

    async def maintain(self) -> None:
        self.rounds += 1
        if self.rounds == 1:
            raise ViewUnavailable


async def test_maintenance_goes_on_after_a_round_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, clock = Maintained(), ManualClock()
    task = asyncio.create_task(
        run_maintenance(queue, clock, SeededRandomness(1), timedelta(seconds=10))  # type: ignore[arg-type]
    )

    for _ in range(40):
        await clock.advance(timedelta(seconds=1))
    task.cancel()

    assert 2 <= queue.rounds <= 8
    assert [record.message for record in caplog.records] == ["a round of maintenance failed"]
