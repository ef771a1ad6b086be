"""How much the operator asks of the API server at rest."""

from __future__ import annotations

from support.manual_loop import move, run
from support.resources import mail_queue, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

QUEUES, MINUTES = 20, 5


def requests(operator: RunningController, kind: str) -> int:
    return sum(f" {kind} " in each for each in operator.calls)


def test_secrets_are_read_for_each_cluster_and_not_for_each_queue() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            for number in range(QUEUES):
                await operator.create(mail_queue(NAMESPACE, f"queue-{number}"))
            await move(120)
            before = requests(operator, "secrets")

            await move(60 * MINUTES)

            assert requests(operator, "secrets") - before <= 3 * (MINUTES + 1)

    run(scene())
