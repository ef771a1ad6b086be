"""An HPA has the workers by the CPU that a real metrics-server reads of their pods, until it is
deleted: then the spec has them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitops import metrics_server
from stack import Stack
from support.installation import Installation
from support.kubectl import Manifest, eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("gitops", "rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(900, func_only=True),
]

CONTENT = b"Subject: scaled\r\n\r\nhello\r\n"
BATCH = 50
TARGET = 25
"""Thousandths of a CPU, more than a worker without mail uses and less than one that delivers."""


@pytest.fixture
def metrics(
    installation: Installation, running_stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("metrics-server")
    with metrics_server.running(running_stack, installation.kubectl, folder):
        yield folder


def autoscaler(namespace: str) -> Manifest:
    cpu = {"name": "cpu", "target": {"type": "AverageValue", "averageValue": f"{TARGET}m"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "outgoing", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": "outgoing-worker",
            },
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{"type": "Resource", "resource": cpu}],
        },
    }


def wanted(sandbox: Sandbox) -> int:
    found = sandbox.kubectl.get("deployment", "outgoing-worker", sandbox.namespace)
    number: int = found["spec"]["replicas"]
    return number


def used(sandbox: Sandbox, pod: str) -> tuple[int, int]:
    """Return thousandths of a CPU, and mebibytes."""
    top = ("top", "pod", pod, "-n", sandbox.namespace, "--no-headers")
    name, cpu, memory = sandbox.kubectl(*top).split()
    assert name == pod
    return int(cpu.removesuffix("m")), int(memory.removesuffix("Mi"))


def test_an_autoscaler_by_cpu_has_the_workers_until_it_is_deleted_and_then_the_spec(
    metrics: Path, sandbox: Sandbox
) -> None:
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    (worker,) = sandbox.pods("worker")

    def at_rest() -> tuple[int, int]:
        cpu, memory = used(sandbox, worker["metadata"]["name"])
        assert cpu < TARGET
        return cpu, memory

    cpu, memory = eventually(at_rest, within_seconds=180)
    assert 20 < memory < 500
    print(f"a worker without mail: {cpu}m, {memory} MiB")
    sandbox.apply(autoscaler(sandbox.namespace))

    def asked() -> list[Manifest]:
        found = sandbox.kubectl.get("hpa", "outgoing", sandbox.namespace)["status"]
        read: list[Manifest] = found["currentMetrics"]
        return read

    eventually(asked, within_seconds=90)
    assert wanted(sandbox) == 1

    sent: list[str] = []
    with sandbox.smtp() as port:
        sender = Sender("127.0.0.1", port)

        def busy() -> bool:
            batch = [f"scaled-{len(sent) + number}@example.net" for number in range(BATCH)]
            mails = [SampleMail("sender@example.org", (each,), CONTENT) for each in batch]
            assert {each.code for each in sender.send_all(mails)} == {250}
            sent.extend(batch)
            return wanted(sandbox) == 2

        eventually(busy, within_seconds=240)
    sandbox.wait_ready()
    assert wanted(sandbox) == 2
    assert sandbox.status()["workers"]["desired"] == 2
    print(f"{len(sent)} mails: {asked()}")

    sandbox.kubectl("delete", "hpa", "outgoing", "-n", sandbox.namespace)
    began = time.monotonic()
    eventually(lambda: wanted(sandbox) == 1, within_seconds=60)
    print(f"the spec ruled {time.monotonic() - began:.1f} s after the autoscaler was deleted")
    eventually(lambda: sandbox.sink.has_all(sent), within_seconds=240)
    assert [each for each in sent if len(sandbox.sink.contents()[each]) != 1] == []
