"""What deleting a MailQueue keeps, what it removes, and that it always ends."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from support.kubectl import eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender
from support.servers import broker_object, cql, object_keys

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

WAITING = [f"waits-{number}@inn.example" for number in range(20)]


def with_waiting_mails(sandbox: Sandbox, recipients: Sequence[str] = WAITING, **spec: str) -> None:
    sandbox.apply(sandbox.mail_queue("outgoing", workers=sandbox.workers(0), **spec))
    sandbox.wait_ready()
    content = b"Subject: stays\r\n\r\nhere\r\n"
    mails = [SampleMail("a@origin.example", [each], content) for each in recipients]
    with sandbox.smtp() as port:
        assert {reply.code for reply in Sender("127.0.0.1", port).send_all(mails)} == {250}


def browsed(sandbox: Sandbox) -> list[str]:
    """Return the recipients of the mails that wait, oldest first."""
    lines = sandbox.postroad("browse", "--json").splitlines()
    return [each for line in lines for each in json.loads(line)["recipients"]]


def rows(sandbox: Sandbox, table: str) -> int:
    found = cql(f"SELECT count(*) AS n FROM {sandbox.keyspace}.{table}")
    return int(found[0].n)


def events(sandbox: Sandbox) -> int:
    """Count the events of the queue's history; the table also has the home of the keyspace."""
    statement = (
        f"SELECT count(*) AS n FROM {sandbox.keyspace}.configuration_events WHERE queue = %s"
    )
    return int(cql(statement, f"{sandbox.namespace}.outgoing")[0].n)


def delete(sandbox: Sandbox) -> None:
    sandbox.kubectl(
        *(
            "delete",
            "mailqueue",
            "outgoing",
            "-n",
            sandbox.namespace,
            "--timeout=240s",
            "--ignore-not-found",
        ),
        timeout=250,
    )


def annotate(sandbox: Sandbox, annotation: str) -> None:
    sandbox.kubectl(
        *("annotate", "mailqueue", "outgoing", "-n", sandbox.namespace),
        f"postroad.dev/{annotation}=outgoing",
    )


def test_delete_removes_queue_rows_bytes_and_history(sandbox: Sandbox) -> None:
    with_waiting_mails(sandbox, WAITING[:1], deletionPolicy="Delete")
    sandbox.kubectl("delete", "mailqueue", "outgoing", "-n", sandbox.namespace, "--wait=false")
    asked = eventually(
        lambda: (
            sandbox.condition("Ready").get("reason") == "ConfirmationNeeded"
            and sandbox.condition("Ready")
        ),
        within_seconds=60,
    )
    assert "1 mail waits" in asked["message"]
    assert rows(sandbox, "enqueued_mails") == 1

    annotate(sandbox, "confirm-deletion")
    delete(sandbox)

    assert broker_object("queues", f"postroad.{sandbox.namespace}.outgoing.work") is None
    assert broker_object("queues", f"postroad.{sandbox.namespace}.outgoing.dead") is None
    assert broker_object("exchanges", f"postroad.{sandbox.namespace}.outgoing") is None
    assert rows(sandbox, "enqueued_mails") == 0
    assert events(sandbox) == 0
    assert object_keys(f"postroad-{sandbox.namespace}-outgoing") is None


def test_retained_data_keep_their_rules_against_a_resource_that_is_made_anew(
    sandbox: Sandbox,
) -> None:
    """The API server accepts it, because it compares a new resource with nothing; the history
    refuses it."""
    with_waiting_mails(sandbox, deletionPolicy="Retain")
    delete(sandbox)

    work = broker_object("queues", f"postroad.{sandbox.namespace}.outgoing.work")
    assert work is not None
    assert rows(sandbox, "enqueued_mails") == len(WAITING)
    assert len(object_keys(f"postroad-{sandbox.namespace}-outgoing") or []) == len(WAITING)
    assert events(sandbox) == 1
    eventually(lambda: not sandbox.pods("intake"), within_seconds=60)

    forbidden, reason = {"sliceWindow": "2h", "bucketCount": 3}, "SliceWindowGrows"
    anew = sandbox.mail_queue(view=forbidden, workers=sandbox.workers(0))
    assert "outgoing" in sandbox.kubectl.apply(anew)

    refused = eventually(
        lambda: (
            sandbox.condition("ConfigurationAccepted").get("status") == "False"
            and sandbox.condition("ConfigurationAccepted")
        ),
        within_seconds=90,
    )
    eventually(lambda: sandbox.pods("intake"), within_seconds=60)
    eventually(lambda: sandbox.size() == len(WAITING), within_seconds=90)
    assert refused["reason"] == reason
    assert sandbox.condition("Stalled")["status"] == "True"
    assert (sandbox.condition("Ready")["status"], sandbox.condition("Ready")["reason"]) == (
        "False",
        reason,
    )
    status = sandbox.status()
    assert status["configuration"]["sliceWindow"] == "1h"
    assert status["configuration"]["bucketCount"] == 3
    assert [each["type"] for each in status["history"]] == [
        "ConfigurationCreated",
        "ConfigurationRefused",
    ]
    assert [event["type"] for event in sandbox.events(reason)] == ["Warning"]
    assert browsed(sandbox) == WAITING
    eventually(lambda: sandbox.status()["size"] == len(WAITING), within_seconds=90)

    sandbox.apply(sandbox.mail_queue(view={"sliceWindow": "30m", "bucketCount": 4}))

    sandbox.wait_ready()
    eventually(lambda: sandbox.sink.has_all(WAITING), within_seconds=90)
    eventually(lambda: sandbox.size() == 0, within_seconds=60)
    assert {name: len(came) for name, came in sandbox.sink.contents().items()} == dict.fromkeys(
        WAITING, 1
    )
    assert sandbox.condition("ConfigurationAccepted")["status"] == "True"
    assert not sandbox.condition("Stalled")
    mended = sandbox.status()
    assert [each["type"] for each in mended["history"]][2:] == ["ConfigurationChanged"]
    assert mended["configuration"]["sliceWindow"] == "30m"
    assert len(sandbox.events(reason)) == 1
