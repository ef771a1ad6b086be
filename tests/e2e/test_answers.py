"""Bad input gets a clear error, and makes no pod restart again and again."""

from __future__ import annotations

import base64
import re
import time

import pytest

from support.kubectl import eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]


def test_a_condition_names_a_missing_cluster_and_the_queue_recovers_when_it_appears(
    sandbox: Sandbox,
) -> None:
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


def test_wrong_credentials_give_a_condition_and_one_event(sandbox: Sandbox) -> None:
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
    time.sleep(20)
    warnings = [
        event
        for event in sandbox.kubectl.list("events", sandbox.namespace)
        if event["type"] == "Warning" and event["involvedObject"]["name"] == "locked"
        and "redential" in event["reason"] + event["message"]
    ]  # fmt: skip

    assert "redential" in refused["reason"] + refused["message"]
    assert "wrong" not in refused["message"]
    assert len(warnings) == 1
    sandbox.kubectl(*arguments, patch.format(right))
    sandbox.wait_ready("locked")


def test_a_message_over_the_limit_and_a_malformed_address_get_permanent_answers(
    sandbox: Sandbox,
) -> None:
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    large = SampleMail("a@origin.example", ["b@inn.example"], b"Subject: x\r\n\r\n", 10**9)
    malformed = SampleMail("a@origin.example", ["b@@inn@"], b"Subject: x\r\n\r\n")

    with sandbox.smtp() as port:
        sender = Sender("127.0.0.1", port)
        replies = sender.send_all([large, malformed])

    assert replies[0].code == 552
    assert replies[1].code in {501, 553}
    assert sandbox.size() == 0


@pytest.mark.kills_servers
def test_cassandra_away_at_enqueue_is_451_and_later_250(sandbox: Sandbox) -> None:
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(0)))
    sandbox.wait_ready()
    mail = SampleMail("a@origin.example", ["b@inn.example"], b"Subject: x\r\n\r\n")

    with sandbox.smtp() as port:
        sender = Sender("127.0.0.1", port, timeout_seconds=120)
        sandbox.stack.cassandra.kill()
        try:
            away = sender.send(mail)
        finally:
            sandbox.stack.up(["cassandra"])

        def accepted() -> bool:
            return sender.send(mail).code == 250

        eventually(accepted, within_seconds=90)
        sender.close()

    assert away.code == 451
    assert "cassandra" not in away.text.lower()
