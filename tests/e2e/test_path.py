"""The main job, as an administrator and a client do it: apply, send, receive."""

from __future__ import annotations

import json

import pytest

from support.kubectl import eventually
from support.mails import samples
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender
from support.servers import broker_object, cql, object_keys

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

MAILS = 200


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox) -> Sandbox:
    """A sandbox with a MailQueue that is ready, for all tests of the module."""
    shared_sandbox.apply(shared_sandbox.mail_queue(workers=shared_sandbox.workers(2)))
    shared_sandbox.wait_ready()
    return shared_sandbox


def test_every_mail_of_many_shapes_arrives_once_with_its_bytes(sandbox: Sandbox) -> None:
    mails = list(samples(MAILS, seed=1))
    recipients = [recipient for mail in mails for recipient in mail.recipients]

    with sandbox.smtp() as port:
        sent = [SampleMail(mail.sender, mail.recipients, mail.sent) for mail in mails]
        replies = Sender("127.0.0.1", port).send_all(sent)

    assert [str(reply) for reply in replies if reply.code != 250] == []
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=180)
    eventually(lambda: sandbox.size() == 0, within_seconds=60)
    arrived = sandbox.sink.contents()
    for mail in mails:
        for recipient in mail.recipients:
            came = arrived[recipient]
            assert len(came) == 1, f"{mail.shape}: {len(came)} times"
            assert came[0].endswith(mail.sent), f"{mail.shape}: other bytes"
            assert came[0].removesuffix(mail.sent).startswith(b"Received: ")
    bucket = f"postroad-{sandbox.namespace}-outgoing"
    # The consumer deletes the bytes after it wrote the mark.
    eventually(lambda: object_keys(bucket) == [], within_seconds=30)
    assert eventually(lambda: sandbox.status()["size"] == 0, within_seconds=90)


def test_a_ready_queue_is_really_built_as_declared(sandbox: Sandbox) -> None:
    queue = f"postroad.{sandbox.namespace}.outgoing"

    work = broker_object("queues", f"{queue}.work")
    dead = broker_object("queues", f"{queue}.dead")
    step = broker_object("queues", "postroad.delay.64")
    table = cql(
        "SELECT compaction, default_time_to_live, gc_grace_seconds FROM system_schema.tables "
        "WHERE keyspace_name = %s AND table_name = 'enqueued_mails'",
        sandbox.keyspace,
    )[0]

    assert work is not None
    assert work["arguments"]["x-queue-type"] == "quorum"
    assert work["arguments"]["x-delivery-limit"] == 20
    assert work["arguments"]["x-dead-letter-exchange"] == queue
    assert dead is not None
    assert dead["arguments"]["x-queue-type"] == "quorum"
    assert step is not None
    assert step["arguments"]["x-message-ttl"] == 64_000
    assert step["arguments"]["x-dead-letter-exchange"] == "postroad.due"
    assert table.compaction["class"].endswith("TimeWindowCompactionStrategy")
    assert table.default_time_to_live == 14 * 86400
    assert window_seconds(table.compaction) == pytest.approx(14 * 86400 / 30, rel=0.1)
    assert 0 < table.gc_grace_seconds < 10 * 86400
    assert object_keys(f"postroad-{sandbox.namespace}-outgoing") == []
    blobs = sandbox.condition("BlobsReady")
    assert blobs["status"] == "True"
    assert "LifecycleUnsupported" in blobs["reason"] + blobs["message"]
    workers = sandbox.pods("worker")
    assert [pod["status"]["phase"] for pod in workers] == ["Running", "Running"]
    assert workers[0]["status"]["containerStatuses"][0]["containerID"].startswith("containerd://")


def window_seconds(compaction: dict[str, str]) -> int:
    """Return the length of a compaction window from a table's options."""
    units = {"MINUTES": 60, "HOURS": 3600, "DAYS": 86400}
    return int(compaction["compaction_window_size"]) * units[compaction["compaction_window_unit"]]


def test_a_temporary_failure_is_tried_again_and_a_permanent_one_kept_as_a_dead_letter(
    sandbox: Sandbox,
) -> None:
    again, never = "greylisted@inn.example", "unknown@inn.example"
    mails = [
        SampleMail("a@origin.example", [again], b"Subject: again\r\n\r\n"),
        SampleMail("a@origin.example", [never], b"Subject: never\r\n\r\n"),
    ]

    with sandbox.smtp() as port:
        replies = Sender("127.0.0.1", port).send_all(mails)

    assert [reply.code for reply in replies] == [250, 250]
    eventually(lambda: sandbox.sink.has_all([again]), within_seconds=60)
    eventually(lambda: sandbox.size() == 0, within_seconds=30)
    dead = [json.loads(line) for line in sandbox.postroad("dead-letters", "--json").splitlines()]
    assert [(each["recipients"], "550" in each["reason"]) for each in dead] == [([never], True)]
    assert eventually(lambda: sandbox.status()["deadLetters"] == 1, within_seconds=90)


def test_a_message_over_the_limit_and_a_malformed_address_get_permanent_answers(
    sandbox: Sandbox,
) -> None:
    large = SampleMail("a@origin.example", ["b@inn.example"], b"Subject: x\r\n\r\n", 10**9)
    malformed = SampleMail("a@origin.example", ["b@@inn@"], b"Subject: x\r\n\r\n")

    with sandbox.smtp() as port:
        replies = Sender("127.0.0.1", port).send_all([large, malformed])

    assert replies[0].code == 552
    assert replies[1].code in {501, 553}
    assert sandbox.size() == 0


def test_a_queue_shows_itself_in_columns(sandbox: Sandbox) -> None:
    def shown() -> bool:
        status = sandbox.status()
        header, row = sandbox.kubectl("get", "mq", "-n", sandbox.namespace).splitlines()
        assert header.split() == (
            ["NAME", "READY", "WORKERS", "DESIRED", "SIZE", "DEAD", "REASON", "AGE"]
        )
        numbers = [str(status[each]) for each in ("size", "deadLetters")]
        assert row.split()[:-1] == ["outgoing", "True", "2", "2", *numbers, "AsDeclared"]
        return True

    eventually(shown, within_seconds=30)  # a status may be written between the two
