"""Each process is killed once while mail flows: nothing acknowledged is lost, and all recovers by
itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from support.installation import OPERATOR_NAMESPACE
from support.kubectl import eventually
from support.mail_flow import duplicates, flowing
from support.pod_programs import programs_of, restarts
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(900, func_only=True),
]

STEADY_SECONDS = 4


def kill_program(sandbox: Sandbox, namespace: str, selector: str) -> None:
    """Kill a pod's program with SIGKILL, and check that it died of it. A deletion of the pod, even
    by force, would ask the program to end first."""
    pod = next(
        each
        for each in sandbox.kubectl.list("pods", namespace, selector)
        if "deletionTimestamp" not in each["metadata"]
    )
    before = restarts(pod)
    for pid in programs_of(pod):
        os.kill(pid, signal.SIGKILL)
    name = pod["metadata"]["name"]
    eventually(
        lambda: restarts(sandbox.kubectl.get("pod", name, namespace)) > before, within_seconds=60
    )


def kill_component(name: str) -> Callable[[Sandbox], None]:
    selector = f"app.kubernetes.io/instance=outgoing,app.kubernetes.io/component={name}"
    return lambda sandbox: kill_program(sandbox, sandbox.namespace, selector)


def kill_server(name: str) -> Callable[[Sandbox], None]:
    def kill(sandbox: Sandbox) -> None:
        sandbox.stack.server(name).kill()
        time.sleep(STEADY_SECONDS)
        sandbox.stack.up([name])

    return kill


FAULTS: dict[str, tuple[Callable[[Sandbox], None], int]] = {
    "rabbitmq": (kill_server("rabbitmq"), 20),
    "cassandra": (kill_server("cassandra"), 20),
    "s3": (kill_server("s3"), 20),
    "worker": (kill_component("worker"), 20),
    "intake": (kill_component("intake"), 0),
    "operator": (
        lambda sandbox: kill_program(
            sandbox, OPERATOR_NAMESPACE, "app.kubernetes.io/component=operator"
        ),
        0,
    ),
}
"""The process that is killed, and how many mails were in flight at most: only these may come
twice."""


SERVERS = ("rabbitmq", "cassandra", "s3")


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox) -> Sandbox:
    """A sandbox with a MailQueue that is ready, for all tests of the module."""
    shared_sandbox.apply(shared_sandbox.mail_queue())
    shared_sandbox.wait_ready()
    return shared_sandbox


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(each, marks=pytest.mark.kills_servers if each in SERVERS else ())
        for each in FAULTS
    ],
)
def test_nothing_acknowledged_is_lost_when_it_is_killed(sandbox: Sandbox, victim: str) -> None:
    kill, in_flight = FAULTS[victim]

    with flowing(sandbox, victim) as flow:
        kill(sandbox)

    assert duplicates(sandbox, flow) <= in_flight
    sandbox.wait_ready(within_seconds=120)
