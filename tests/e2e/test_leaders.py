"""The replica that stood by takes over from a leader whose pod is frozen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from postroad.controller.run.causes import lease_name
from postroad.controller.spec.cluster import DEFAULT_CLASS
from support.installation import OPERATOR_NAMESPACE
from support.kubectl import Manifest, eventually
from support.pod_programs import programs_of, restarts
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

TAKEOVER_SECONDS = 20


def leader(sandbox: Sandbox) -> str:
    """Return the name of the pod that holds the Lease; empty when none does."""
    lease = sandbox.kubectl.get("lease", lease_name(DEFAULT_CLASS), OPERATOR_NAMESPACE)
    holder: str = lease["spec"].get("holderIdentity") or ""
    return holder.partition("_")[0]


def pod_of(sandbox: Sandbox, name: str) -> Manifest:
    return sandbox.kubectl.get("pod", name, OPERATOR_NAMESPACE)


@contextmanager
def frozen(pod: Manifest) -> Iterator[None]:
    """Suspend the programs of a pod."""
    programs = programs_of(pod)
    for each in programs:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in programs:
            os.kill(each, signal.SIGCONT)


def test_the_other_replica_takes_over_and_the_former_ends(sandbox: Sandbox) -> None:
    eventually(lambda: leader(sandbox) != "", within_seconds=60)
    before = leader(sandbox)
    pod = pod_of(sandbox, before)

    with frozen(pod):
        eventually(lambda: leader(sandbox) not in ("", before), within_seconds=TAKEOVER_SECONDS)

    eventually(lambda: restarts(pod_of(sandbox, before)) > restarts(pod), within_seconds=60)
    ended = pod_of(sandbox, before)["status"]["containerStatuses"][0]["lastState"]
    assert ended["terminated"]["exitCode"] == 75

    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
