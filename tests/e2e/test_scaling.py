"""Workers follow the mail that is due, on real servers and pods; an HPA that is there decides."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.kubectl import Manifest, eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

MAILS = int(os.environ.get("POSTROAD_TEST_SCALED_MAILS", "2000"))
SESSIONS = 8
REPLY_SECONDS = 300
"""Half of what RFC 5321 gives a server: this machine does all at once."""

PATIENCE_SECONDS = 240 + MAILS // 25
"""Until all are delivered."""

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(900 + 3 * PATIENCE_SECONDS, func_only=True),
]


def autoscaled(sandbox: Sandbox, most: int = 2) -> Manifest:
    rules = {"minReplicas": 0, "maxReplicas": most, "mailsPerWorker": 100, "scaleDownAfter": "1m"}
    return {**sandbox.workers(0), "autoscaling": rules}


def wanted(sandbox: Sandbox) -> int:
    found = sandbox.kubectl.get("deployment", "outgoing-worker", sandbox.namespace)
    number: int = found["spec"]["replicas"]
    return number


def send(sandbox: Sandbox, *recipients: str) -> None:
    content = b"Subject: scaled\r\n\r\nhello\r\n"
    mails = [SampleMail("sender@example.org", (each,), content) for each in recipients]
    with sandbox.smtp() as port, ThreadPoolExecutor(SESSIONS) as sessions:
        senders = [Sender("127.0.0.1", port, REPLY_SECONDS) for _ in range(SESSIONS)]
        shares = [mails[number::SESSIONS] for number in range(SESSIONS)]
        done = list(sessions.map(Sender.send_all, senders, shares))
    assert [str(each) for replies in done for each in replies if each.code != 250] == []


def test_mail_wakes_workers_from_none_and_nothing_is_lost_up_and_down(sandbox: Sandbox) -> None:
    sandbox.apply(sandbox.mail_queue(workers=autoscaled(sandbox)))
    sandbox.wait_ready()
    assert sandbox.pods("worker") == []
    generation = sandbox.kubectl.get("mailqueue", "outgoing", sandbox.namespace)["metadata"]

    send(sandbox, "first@example.net")
    began = time.monotonic()
    eventually(lambda: sandbox.sink.has_all(["first@example.net"]), within_seconds=120)
    print(f"the first mail was delivered {time.monotonic() - began:.1f} s after its acceptance")
    assert wanted(sandbox) == 1
    eventually(lambda: wanted(sandbox) == 0, within_seconds=240)

    pause = '{"spec": {"paused": %s}}'
    patch = ("patch", "mailqueue", "outgoing", "-n", sandbox.namespace, "--type=merge", "-p")
    sandbox.kubectl(*patch, pause % "true")
    many = [f"many-{number}@example.net" for number in range(MAILS)]
    send(sandbox, *many)
    assert wanted(sandbox) == 0
    sandbox.kubectl(*patch, pause % "false")
    eventually(lambda: wanted(sandbox) == 2, within_seconds=60)
    eventually(lambda: sandbox.sink.has_all(many), within_seconds=PATIENCE_SECONDS)
    eventually(lambda: wanted(sandbox) == 0, within_seconds=300)

    contents = sandbox.sink.contents()
    assert [each for each in many if len(contents[each]) != 1] == []
    assert sandbox.size() == 0
    reasons = [each["message"] for each in sandbox.events("Scaled")]
    assert any("from 0 to 2 workers" in each for each in reasons), reasons
    after = sandbox.kubectl.get("mailqueue", "outgoing", sandbox.namespace)
    assert after["spec"]["workers"]["replicas"] == 0
    assert after["metadata"]["generation"] == generation["generation"] + 2, "paused twice"


def test_spec_rules_again_soon_after_an_autoscaler_is_deleted(sandbox: Sandbox) -> None:
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "outgoing-worker"}
    resource = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    sandbox.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "outgoing", "namespace": sandbox.namespace},
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": 2,
                "maxReplicas": 3,
                "metrics": [{"type": "Resource", "resource": resource}],
            },
        }
    )
    eventually(lambda: wanted(sandbox) == 2, within_seconds=90)
    eventually(lambda: "postroad.dev/autoscaled" in notes(sandbox), within_seconds=60)

    sandbox.kubectl("delete", "hpa", "outgoing", "-n", sandbox.namespace)
    began = time.monotonic()
    eventually(lambda: wanted(sandbox) == 1, within_seconds=120)
    print(f"the spec ruled {time.monotonic() - began:.1f} s after the autoscaler was deleted")


def notes(sandbox: Sandbox) -> Manifest:
    found = sandbox.kubectl.get("deployment", "outgoing-worker", sandbox.namespace)
    given: Manifest = found["metadata"].get("annotations", {})
    return given
