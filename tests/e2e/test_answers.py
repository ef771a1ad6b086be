"""Bad input gets a clear error, and makes no pod restart again and again."""

from __future__ import annotations

import base64
import re

import pytest

from support.kubectl import eventually
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]


def test_a_condition_names_a_missing_cluster_and_the_queue_recovers_when_it_appears(
    shared_sandbox: Sandbox,
) -> None:
    sandbox = shared_sandbox
    sandbox.apply(sandbox.mail_queue(clusterRef={"name": "later"}))
    ready = eventually(
        lambda: sandbox.condition("Ready").get("status") == "False" and sandbox.condition("Ready"),
        within_seconds=60,
    )

    assert "later" in ready["message"]

    keyspace = f"{sandbox.keyspace}_later"
    cluster = sandbox.installation.queue_cluster(sandbox.namespace, keyspace, name="later")
    sandbox.apply(cluster)
    sandbox.wait_ready()


def test_a_second_cluster_over_a_keyspace_gets_it_by_the_annotation(sandbox: Sandbox) -> None:
    """The claims stand in Cassandra, RabbitMQ and S3 themselves. Without the annotation a
    QueueCluster counts as gone only after ten minutes."""
    kubectl, namespace = sandbox.kubectl, sandbox.namespace
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(0), intake=sandbox.intake(0)))
    sandbox.wait_ready()
    cluster = sandbox.installation.queue_cluster(namespace, sandbox.keyspace, name="second")
    sandbox.apply(cluster)

    def refused() -> str:
        view = kubectl.condition("queuecluster", "second", namespace, "ViewReady")
        is_refused = view.get("reason") == "ResourceConflict"
        return view["message"] if is_refused and f"{namespace}/main" in view["message"] else ""

    message = eventually(refused, within_seconds=90)
    kubectl("delete", "mailqueue", "outgoing", "-n", namespace)
    kubectl("delete", "queuecluster", "main", "-n", namespace)
    found = re.search(r"postroad\.dev/adopt=[\w-]+", message)
    assert found, message
    kubectl("annotate", "queuecluster", "second", "-n", namespace, found.group())
    sandbox.installation.wait_ready("queuecluster", "second", namespace)
    sandbox.apply(sandbox.mail_queue(clusterRef={"name": "second"}))
    sandbox.wait_ready()


def test_wrong_credentials_give_a_condition_and_one_event(shared_sandbox: Sandbox) -> None:
    sandbox = shared_sandbox
    secret = sandbox.kubectl.get("secret", "cassandra", sandbox.namespace)
    right = secret["data"]["password"]
    wrong = base64.b64encode(b"wrong").decode()
    patch = '{{"data": {{"password": "{}"}}}}'
    arguments = ("patch", "secret", "cassandra", "-n", sandbox.namespace, "-p")
    sandbox.kubectl(*arguments, patch.format(wrong))

    sandbox.apply(sandbox.mail_queue(name="locked"))
    refused = eventually(
        lambda: (
            sandbox.condition("ViewReady", "locked").get("status") == "False"
            and sandbox.condition("ViewReady", "locked")
        ),
        within_seconds=90,
    )
    assert "redential" in refused["reason"] + refused["message"]
    assert "wrong" not in refused["message"]

    sandbox.kubectl(*arguments, patch.format(right))
    sandbox.wait_ready("locked")
    warnings = [
        event
        for event in sandbox.kubectl.list("events", sandbox.namespace)
        if event["type"] == "Warning" and event["involvedObject"]["name"] == "locked"
        and "redential" in event["reason"] + event["message"]
    ]  # fmt: skip
    assert len(warnings) == 1
