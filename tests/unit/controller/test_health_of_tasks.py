"""Argo CD's health of MailQueueTasks, by the script of `manifests/gitops` over the states that the
operator writes; `tests/e2e/test_health_of_resources.py` has Argo CD itself."""

from __future__ import annotations

import subprocess

import pytest

from gitops.health import SCRIPTS, lua
from postroad.controller.kubernetes.api import MAIL_QUEUE_TASK
from support.manual_loop import move, run
from support.resources import task
from support.running_controller import NAMESPACE, RunningController
from unit.controller.test_conditions import kstatus
from unit.controller.test_tasks import SPAM, declared, only

pytestmark = pytest.mark.needs("lua5.4")

AS_KSTATUS = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}
ASKED = """
local function health(obj)
%s
end
print(health(%s).status)
"""


def health(operator: RunningController, name: str) -> str:
    """Return the health of a task; where no `paused` overrides it, it must be what kstatus says."""
    found = operator.found(MAIL_QUEUE_TASK, name)
    program = ASKED % ((SCRIPTS / "health.lua").read_text(), lua(found))
    done = subprocess.run(
        ["lua5.4", "-"], input=program, capture_output=True, text=True, check=True
    )
    told = done.stdout.strip()
    conditions = found.get("status", {}).get("conditions", [])
    assert told in ("Suspended", AS_KSTATUS[kstatus(conditions)])
    return told


def test_a_task_is_progressing_until_it_is_healthy_or_degraded() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.change({"paused": True})
            await operator.create(task(NAMESPACE, "done", **SPAM))
            await move(20)
            assert health(operator, "done") == "Progressing", "its queue is paused"
            await operator.change({"paused": False})
            await move(20)
            assert health(operator, "done") == "Progressing", "it runs"
            await pods.begin(only(pods.jobs()), count='{"matched": 1}', task='{"done": 1}')
            await pods.end(only(pods.jobs()))
            await move(3)
            assert health(operator, "done") == "Healthy"

            await operator.create(task(NAMESPACE, "failed", **SPAM))
            await move(3)
            job = only([each for each in pods.jobs() if "status" not in each])
            await pods.begin(job)
            await pods.end(job, "Failed", "it reached the backoff limit")
            await move(3)
            assert health(operator, "failed") == "Degraded"

    run(scene())


def test_a_schedule_is_healthy_suspended_while_paused_and_degraded_when_bad() -> None:
    async def scene() -> None:
        async with declared() as (operator, _):
            await operator.create(task(NAMESPACE, "daily", schedule="@daily", **SPAM))
            await operator.create(task(NAMESPACE, "off", schedule="@daily", paused=True, **SPAM))
            await operator.create(task(NAMESPACE, "bad", schedule="0 25 * * *", **SPAM))
            await move(3)
            assert health(operator, "daily") == "Healthy"
            assert health(operator, "off") == "Suspended"
            assert health(operator, "bad") == "Degraded"

    run(scene())
