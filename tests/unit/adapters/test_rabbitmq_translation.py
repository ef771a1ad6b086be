"""What RabbitMQ's driver raises becomes an error of ours that names the cause."""

from __future__ import annotations

import pytest
from pika import exceptions
from pika.adapters.utils import connection_workflow as workflow

from postroad.adapters.rabbitmq.translation import translated
from postroad.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CredentialsRefused,
    ServerError,
    Unroutable,
)


def test_connection_that_fails_is_reported_by_its_cause_without_the_drivers_wrapping() -> None:
    cause = ConnectionRefusedError(111, "Connection refused")
    phase = workflow.AMQPConnectorSocketConnectError(cause)
    failed = workflow.AMQPConnectionWorkflowFailed([TimeoutError(), phase])

    found = translated(exceptions.AMQPConnectionError(failed))

    assert type(found) is BrokerUnavailable
    assert str(found).endswith("reached: ConnectionRefusedError: [Errno 111] Connection refused")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.ConnectionClosedByBroker(403, "login refused"), CredentialsRefused),
        (exceptions.ConnectionClosedByBroker(530, "vhost is gone"), BrokerRefused),
        (exceptions.ConnectionClosedByBroker(320, "shutdown"), BrokerUnavailable),
        (exceptions.ChannelClosedByBroker(404, "no exchange"), Unroutable),
        (exceptions.ChannelClosedByBroker(406, "inequivalent arg"), BrokerRefused),
        (exceptions.ChannelClosedByBroker(406, "delivery acknowledgement on"), BrokerUnavailable),
        (exceptions.ChannelClosedByBroker(403, "read access refused"), BrokerRefused),
        (exceptions.ChannelClosedByBroker(541, "internal error"), BrokerUnavailable),
        (None, BrokerUnavailable),
    ],
)
def test_reply_codes_of_the_broker(error: Exception | None, expected: type[ServerError]) -> None:
    assert type(translated(error)) is expected


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        (
            (
                "inequivalent arg 'x-delivery-limit' for queue 'postroad.a.b.work' in vhost '/': "
                "received the value '20' of type 'signedint' but current is none"
            ),
            "queue 'postroad.a.b.work' in vhost '/' has x-delivery-limit none, wanted is 20",
        ),
        (
            (
                "inequivalent arg 'type' for exchange 'postroad.due' in vhost 'a': b': "
                "received 'topic' but current is 'fanout'"
            ),
            "exchange 'postroad.due' in vhost 'a': b' has type fanout, wanted is topic",
        ),
        ("inequivalent arg 'type' for exchange 'e': received 'topic' but current is 'fa...", None),
        ("invalid arg 'x-max-length' for queue 'q' in vhost '/'", None),
    ],
    ids=["no value", "quotes", "cut", "another refusal"],
)
def test_what_was_declared_otherwise_is_refused_by_its_difference(
    text: str, difference: str | None
) -> None:
    refused = translated(exceptions.ChannelClosedByBroker(406, f"PRECONDITION_FAILED - {text}"))

    assert type(refused) is BrokerRefused
    if difference is None:
        assert text in str(refused)
    else:
        assert str(refused) == difference
    assert "restore its value" in refused.hint
