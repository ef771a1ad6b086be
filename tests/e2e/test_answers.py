"""Bad input gets a clear answer, and no crash loop."""

from __future__ import annotations

import base64
import time

import pytest

from support.kubectl import eventually
from support.place import Place
from support.senders import Letter, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600),
]


def test_a_queue_whose_cluster_does_not_exist_says_so_and_recovers_when_it_appears(
    place: Place,
) -> None:
    place.apply(place.mail_queue(clusterRef={"name": "later"}))
    ready = eventually(
        lambda: place.condition("Ready").get("status") == "False" and place.condition("Ready"),
        within_seconds=60,
    )

    assert "later" in ready["message"]

    cluster = place.installation.queue_cluster(place.namespace, place.keyspace, name="later")
    place.apply(cluster)
    place.wait_ready()


def test_wrong_credentials_give_a_condition_and_one_event(place: Place) -> None:
    secret = place.kubectl.get("secret", "cassandra", place.namespace)
    right = secret["data"]["password"]
    wrong = base64.b64encode(b"wrong").decode()
    patch = '{{"data": {{"password": "{}"}}}}'
    arguments = ("patch", "secret", "cassandra", "-n", place.namespace, "-p")
    place.kubectl(*arguments, patch.format(wrong))

    place.apply(place.mail_queue(name="locked"))
    refused = eventually(
        lambda: (
            place.condition("ViewReady", "locked").get("status") == "False"
            and place.condition("ViewReady", "locked")
        ),
        within_seconds=90,
    )
    time.sleep(20)
    warnings = [
        event
        for event in place.kubectl.list("events", place.namespace)
        if event["type"] == "Warning" and event["involvedObject"]["name"] == "locked"
        and "redential" in event["reason"] + event["message"]
    ]  # fmt: skip

    assert "redential" in refused["reason"] + refused["message"]
    assert "wrong" not in refused["message"]
    assert len(warnings) == 1
    place.kubectl(*arguments, patch.format(right))
    place.wait_ready("locked")


def test_a_message_over_the_limit_and_a_malformed_address_get_permanent_answers(
    place: Place,
) -> None:
    place.apply(place.mail_queue())
    place.wait_ready()
    large = Letter("a@origin.example", ["b@inn.example"], b"Subject: x\r\n\r\n", 10**9)
    malformed = Letter("a@origin.example", ["b@@inn@"], b"Subject: x\r\n\r\n")

    with place.smtp() as port:
        sender = Sender("127.0.0.1", port)
        replies = sender.send_all([large, malformed])

    assert replies[0].code == 552
    assert replies[1].code in {501, 553}
    assert place.size() == 0


def test_cassandra_away_at_enqueue_is_451_and_later_250(place: Place) -> None:
    place.apply(place.mail_queue(workers=place.workers(0)))
    place.wait_ready()
    letter = Letter("a@origin.example", ["b@inn.example"], b"Subject: x\r\n\r\n")

    with place.smtp() as port:
        sender = Sender("127.0.0.1", port, timeout_seconds=120)
        place.stack.cassandra.kill()
        try:
            away = sender.send(letter)
        finally:
            place.stack.up(["cassandra"])

        def accepted() -> bool:
            return sender.send(letter).code == 250

        eventually(accepted, within_seconds=90)
        sender.close()

    assert away.code == 451
    assert "cassandra" not in away.text.lower()
