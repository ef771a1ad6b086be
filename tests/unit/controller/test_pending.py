"""A MailQueue whose first reconcile takes longer than a moment is `Pending` meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.controller.mailqueue.queues import PENDING_SECONDS
from support.manual_loop import move, run
from support.memory.fault_injection import Step
from support.resources import mail_queue, queue_cluster, secrets
from support.running_controller import NAMESPACE, RunningController, running_controller


class Slow:
    """A Cassandra that answers when a test lets it."""

    def __init__(self, operator: RunningController) -> None:
        self.answers = asyncio.Event()
        operator.faults.before = self._wait

    async def _wait(self, step: Step) -> None:
        if step.operation == "limits":
            await self.answers.wait()


async def declare_slowly(operator: RunningController, **spec: Any) -> Slow:
    """Declare a queue, and wait until its reconcile has waited for Cassandra for a moment."""
    for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
        await operator.create(each)
    await move(10)
    slow = Slow(operator)
    await operator.create(mail_queue(NAMESPACE, **spec))
    await move(PENDING_SECONDS - 0.5)
    assert "conditions" not in operator.found()["status"], "most take no longer, and need no write"
    await move(1.5)
    return slow


def shown(operator: RunningController) -> tuple[str, str]:
    ready = operator.condition("Ready")
    return ready["status"], ready["reason"]


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_it_is_pending_until_the_servers_have_answered(policy: str) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            slow = await declare_slowly(operator, deletionPolicy=policy)
            assert shown(operator) == ("Unknown", "Pending")

            slow.answers.set()
            await move(3)

            assert shown(operator) == ("True", "AsDeclared")
            assert len(operator.events("Ready")) == 2, "of the cluster and of the queue"

    run(scene())


def test_a_change_meanwhile_is_carried_out_too() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            slow = await declare_slowly(operator)
            assert shown(operator) == ("Unknown", "Pending")

            await operator.change({"view": {"bucketCount": 5}})
            slow.answers.set()
            await move(3)

            assert shown(operator) == ("True", "AsDeclared")
            assert operator.found()["status"]["configuration"]["bucketCount"] == 5
            assert operator.found()["status"]["observedGeneration"] == 2

    run(scene())


def test_a_pending_status_that_the_api_server_refuses_ends_no_reconcile() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
                await operator.create(each)
            await move(10)
            slow = Slow(operator)
            await operator.create(mail_queue(NAMESPACE))
            await move(PENDING_SECONDS - 0.5)
            await operator.change({"view": {"bucketCount": 5}})  # its version is not the read one

            await move(1.5)
            assert "conditions" not in operator.found()["status"]
            slow.answers.set()
            await move(3)

            assert shown(operator) == ("True", "AsDeclared")

    run(scene())


def test_a_queue_that_is_deleted_meanwhile_is_gone() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            slow = await declare_slowly(operator)

            await operator.delete(MAIL_QUEUE, "outgoing")
            slow.answers.set()
            await move(3)

            assert operator.at(MAIL_QUEUE.plural, NAMESPACE, "outgoing") is None

    run(scene())
