"""A node is drained while mail flows: pods end in an orderly way, and one worker stays."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.kubectl import eventually
from support.mail_flow import duplicates, flowing
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

DRAIN_SECONDS = 120
REFUSED = "disruption budget"
"""In what kubectl prints when an eviction has to wait."""


@contextmanager
def drained(sandbox: Sandbox, node: str) -> Iterator[subprocess.Popen[str]]:
    """Drain a node of the pods of MailQueue `outgoing`; it takes pods again at the end."""
    command = [
        *sandbox.kubectl_command(),
        *("drain", node, "--pod-selector=app.kubernetes.io/instance=outgoing"),
        *("--delete-emptydir-data", f"--timeout={DRAIN_SECONDS}s"),
    ]
    draining = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield draining
    finally:
        draining.kill()
        draining.communicate()
        sandbox.kubectl("uncordon", node)


def running(sandbox: Sandbox) -> set[str]:
    """Return the names of the workers that are ready."""
    return {
        each["metadata"]["name"]
        for each in sandbox.pods("worker")
        for condition in each["status"].get("conditions", [])
        if (condition["type"], condition["status"]) == ("Ready", "True")
    }


def test_a_drained_node_loses_and_repeats_no_mail(sandbox: Sandbox) -> None:
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(2)))
    sandbox.wait_ready()
    before = running(sandbox)
    assert len(before) == 2
    (node,) = {each["spec"]["nodeName"] for each in sandbox.pods("worker")}

    with flowing(sandbox) as flow, drained(sandbox, node) as draining:
        assert draining.stdout is not None
        for line in draining.stdout:  # the node is the only one, so that no other pod gets ready
            if REFUSED in line:
                break
        kept = running(sandbox)
        assert len(kept) == 1
        assert kept < before

        sandbox.kubectl("uncordon", node)
        assert draining.wait(DRAIN_SECONDS) == 0
        eventually(lambda: len(running(sandbox)) == 2, within_seconds=60)
        assert before.isdisjoint(running(sandbox))

    assert duplicates(sandbox, flow) == 0
    sandbox.wait_ready(within_seconds=60)
