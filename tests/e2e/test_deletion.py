"""What deleting a MailQueue keeps, what it removes, and that it always ends."""

from __future__ import annotations

import time

import pytest

from support.kubectl import eventually
from support.place import Place
from support.senders import Letter, Sender
from support.servers import broker_object, cql, object_keys

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600),
]

LETTER = Letter("a@origin.example", ["b@inn.example"], b"Subject: stays\r\n\r\nhere\r\n")


def with_a_waiting_mail(place: Place, policy: str) -> None:
    place.apply(place.mail_queue(workers=place.workers(0), deletionPolicy=policy))
    place.wait_ready()
    with place.smtp() as port:
        assert Sender("127.0.0.1", port).send_all([LETTER])[0].code == 250


def rows(place: Place, table: str) -> int:
    found = cql(f"SELECT count(*) AS n FROM {place.keyspace}.{table}")
    return int(found[0].n)


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
    assert rows(place, "configuration_events") == 1
    eventually(lambda: not place.pods("intake"), within_seconds=60)


def test_delete_removes_queue_rows_bytes_and_history(place: Place) -> None:
    with_a_waiting_mail(place, "Delete")

    delete(place)

    assert broker_object("queues", f"postroad.{place.namespace}.outgoing.work") is None
    assert broker_object("queues", f"postroad.{place.namespace}.outgoing.delay.1") is None
    assert broker_object("exchanges", f"postroad.{place.namespace}.outgoing") is None
    assert rows(place, "enqueued_mails") == 0
    assert rows(place, "configuration_events") == 0
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
