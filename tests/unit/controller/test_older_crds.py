"""An operator over CRDs of an earlier release writes no status that the API server shortens."""

from __future__ import annotations

import asyncio

from support.manual_loop import ManualLoop, move, run
from support.resources import workers
from support.running_controller import RunningController, running_controller

HOUR = 3600


def writes(operator: RunningController) -> int:
    return sum(each.startswith("update") for each in operator.calls)


def full_reconciles(operator: RunningController) -> int:
    return sum(each.operation == "declare" for each in operator.faults.steps)


def test_a_field_that_the_crd_lacks_causes_no_writes() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            operator.kubernetes.pruned = {"specHash", "held", "tables"}
            await operator.declare(workers=workers())
            await move(400)
            before = writes(operator), full_reconciles(operator)

            await move(900)
            assert writes(operator) - before[0] <= 2, "at most one for each resource and hour"
            assert full_reconciles(operator) - before[1] <= 4, "one in five minutes"

            operator.kubernetes.pruned = set()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ManualLoop)
            loop.moment += HOUR
            await move(40)
            assert {"specHash", "held"} <= operator.found()["status"].keys()

    run(scene())
