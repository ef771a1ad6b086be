"""What deleting a MailQueue keeps, what it removes, and that it always ends."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest

from support.kubectl import Manifest, eventually
from support.place import Place
from support.senders import Letter, Sender
from support.servers import broker_object, cql, object_keys

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600),
]

WAITING = [f"waits-{number}@inn.example" for number in range(20)]


def with_waiting_mails(place: Place, recipients: Sequence[str] = WAITING, **spec: object) -> None:
    place.apply(place.mail_queue("outgoing", workers=place.workers(0), **spec))
    place.wait_ready()
    content = b"Subject: stays\r\n\r\nhere\r\n"
    letters = [Letter("a@origin.example", [each], content) for each in recipients]
    with place.smtp() as port:
        assert {reply.code for reply in Sender("127.0.0.1", port).send_all(letters)} == {250}


def with_a_waiting_mail(place: Place, policy: str) -> None:
    with_waiting_mails(place, WAITING[:1], deletionPolicy=policy)


def browsed(place: Place) -> list[str]:
    """Return the recipients of the mails that wait, oldest first."""
    lines = place.postroad("browse", "--json").splitlines()
    return [each for line in lines for each in json.loads(line)["recipients"]]


def rows(place: Place, table: str) -> int:
    found = cql(f"SELECT count(*) AS n FROM {place.keyspace}.{table}")
    return int(found[0].n)


def events(place: Place) -> int:
    """Count the events of the queue's history; the table also holds the keyspace's home."""
    statement = f"SELECT count(*) AS n FROM {place.keyspace}.configuration_events WHERE queue = %s"
    return int(cql(statement, f"{place.namespace}.outgoing")[0].n)


def delete(place: Place) -> None:
    place.kubectl(
        *("delete", "mailqueue", "outgoing", "-n", place.namespace, "--timeout=240s"), timeout=250
    )


def test_retain_keeps_queue_rows_and_bytes(place: Place) -> None:
    with_a_waiting_mail(place, "Retain")

    delete(place)

    work = broker_object("queues", f"postroad.{place.namespace}.outgoing.work")
    assert work is not None
    assert rows(place, "enqueued_mails") == 1
    assert len(object_keys(f"postroad-{place.namespace}-outgoing") or []) == 1
    assert events(place) == 1
    eventually(lambda: not place.pods("intake"), within_seconds=60)


def test_delete_removes_queue_rows_bytes_and_history(place: Place) -> None:
    with_a_waiting_mail(place, "Delete")

    delete(place)

    assert broker_object("queues", f"postroad.{place.namespace}.outgoing.work") is None
    assert broker_object("queues", f"postroad.{place.namespace}.outgoing.delay.1") is None
    assert broker_object("exchanges", f"postroad.{place.namespace}.outgoing") is None
    assert rows(place, "enqueued_mails") == 0
    assert events(place) == 0
    assert object_keys(f"postroad-{place.namespace}-outgoing") is None


def test_with_a_server_gone_deletion_still_ends_and_says_what_was_left(place: Place) -> None:
    with_a_waiting_mail(place, "Delete")
    place.stack.s3.kill()
    try:
        begin = time.monotonic()
        delete(place)
        took = time.monotonic() - begin
        left = [e for e in place.kubectl.list("events", place.namespace) if e["type"] == "Warning"]
    finally:
        place.stack.up(["s3"])

    assert took < 240
    assert any("postroad-" in event["message"] for event in left), left


@pytest.mark.parametrize(
    ("forbidden", "reason"),
    [
        pytest.param({"sliceWindow": "2h", "bucketCount": 3}, "SliceWindowGrows", id="window"),
        pytest.param({"sliceWindow": "1h", "bucketCount": 2}, "BucketCountShrinks", id="buckets"),
    ],
)
def test_kept_data_keep_their_rules_against_a_resource_that_is_made_anew(
    place: Place, forbidden: Manifest, reason: str
) -> None:
    """The API server takes it, since it compares a new resource with nothing; the history does
    not."""
    with_waiting_mails(place)
    delete(place)

    anew = place.mail_queue(view=forbidden, workers=place.workers(0))
    assert "outgoing" in place.kubectl.apply(anew)

    refused = eventually(
        lambda: (
            place.condition("ConfigurationAccepted").get("status") == "False"
            and place.condition("ConfigurationAccepted")
        ),
        within_seconds=90,
    )
    eventually(lambda: place.pods("intake"), within_seconds=60)
    eventually(lambda: place.size() == len(WAITING), within_seconds=90)
    assert refused["reason"] == reason
    assert place.condition("Stalled")["status"] == "True"
    assert (place.condition("Ready")["status"], place.condition("Ready")["reason"]) == (
        "False",
        reason,
    )
    status = place.status()
    assert status["configuration"]["sliceWindow"] == "1h"
    assert status["configuration"]["bucketCount"] == 3
    assert [each["type"] for each in status["history"]] == [
        "ConfigurationCreated",
        "ConfigurationRefused",
    ]
    assert [event["type"] for event in place.events(reason)] == ["Warning"]
    assert browsed(place) == WAITING
    eventually(lambda: place.status()["size"] == len(WAITING), within_seconds=90)

    place.apply(place.mail_queue(view={"sliceWindow": "30m", "bucketCount": 4}))

    place.wait_ready()
    eventually(lambda: place.sink.has_all(WAITING), within_seconds=90)
    eventually(lambda: place.size() == 0, within_seconds=60)
    assert {name: len(came) for name, came in place.sink.contents().items()} == dict.fromkeys(
        WAITING, 1
    )
    assert place.condition("ConfigurationAccepted")["status"] == "True"
    assert not place.condition("Stalled")
    mended = place.status()
    assert [each["type"] for each in mended["history"]][2:] == ["ConfigurationChanged"]
    assert mended["configuration"]["sliceWindow"] == "30m"
    assert len(place.events(reason)) == 1
