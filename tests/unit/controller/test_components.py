"""What is refused of the workers has no effect on the intake, and the other way round."""

from __future__ import annotations

from typing import Any

from postroad.controller.kubernetes.api import APPLIED_HASH, CONFIG_MAP, DEPLOYMENT
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.resources import intake, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

MALFORMED: dict[str, Any] = {
    "spec": {"containers": [{"name": "worker", "securityContext": {"capabilities": []}}]}
}


def concurrency(operator: RunningController) -> str:
    data: dict[str, str] = operator.found(CONFIG_MAP, "outgoing-queue")["data"]
    return data["POSTROAD_WORKER_CONCURRENCY"]


def test_a_malformed_template_of_the_workers_keeps_no_intake_from_being_made() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            change = {"workers": {"template": MALFORMED, "concurrency": 7}, "intake": intake()}
            await operator.change(change)
            await move(5)

            assert operator.condition("WorkersReady")["reason"] == "InvalidSpec"
            assert operator.condition("IntakeReady")["status"] == "True"
            assert operator.condition("Stalled")["reason"] == "InvalidSpec"
            assert operator.found(DEPLOYMENT, "outgoing-intake")
            assert operator.found(DEPLOYMENT, "outgoing-worker"), "what ran before goes on"
            assert concurrency(operator) == "7"

    run(scene())


def test_an_intake_that_is_no_longer_declared_goes_beside_malformed_workers() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), intake=intake())
            await operator.change({"workers": {"template": MALFORMED}, "intake": None})
            await move(5)

            assert operator.at("deployments", "mail", "outgoing-intake") is None
            assert operator.at("services", "mail", "outgoing-intake") is None
            assert operator.found(DEPLOYMENT, "outgoing-worker")
            assert operator.condition("IntakeReady")["status"] is None

    run(scene())


def test_what_stops_both_is_named_at_both() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), intake=intake())
            theirs: Object = {
                "metadata": {"ownerReferences": [], "annotations": {APPLIED_HASH: None}}
            }
            await operator.user.patch(CONFIG_MAP, NAMESPACE, "outgoing-queue", theirs)
            await operator.change({"retry": {"maxAge": "48h"}})
            await move(5)

            for each in ("WorkersReady", "IntakeReady"):
                assert operator.condition(each)["reason"] == "NameTaken"

    run(scene())
