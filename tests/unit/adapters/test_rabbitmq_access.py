"""What an AMQP URI means, and how the driver is set up."""

from __future__ import annotations

import pika
import pytest

from postroad.adapters.rabbitmq.connection import Access, parameters_of
from postroad.errors import InvalidSettings


@pytest.mark.parametrize(
    ("uri", "host", "port", "vhost", "user", "encrypted"),
    [
        ("amqp://broker", "broker", 5672, "/", ("guest", "guest"), False),
        ("amqps://broker", "broker", 5671, "/", ("guest", "guest"), True),
        ("amqp://broker:99/", "broker", 99, "/", ("guest", "guest"), False),
        ("amqp://broker/mail", "broker", 5672, "mail", ("guest", "guest"), False),
        ("amqp://u%40x:p%2Fw@broker/a%2Fb", "broker", 5672, "a/b", ("u@x", "p/w"), False),
    ],
)
def test_a_uri_has_the_defaults_of_amqp_and_escapes(
    uri: str, host: str, port: int, vhost: str, user: tuple[str, str], encrypted: bool
) -> None:
    found = Access.from_uri(uri)

    assert (found.host, found.port, found.vhost, found.encrypted) == (host, port, vhost, encrypted)
    assert (found.username, found.password) == user


def test_a_name_and_a_password_of_their_own_go_before_those_of_the_uri() -> None:
    found = Access.from_uri("amqp://a:b@broker", username="c", password="")

    assert (found.username, found.password) == ("c", "")


@pytest.mark.parametrize("uri", ["http://broker", "amqp://", "amqp://secret@broker:port", "broker"])
def test_what_is_no_uri_of_amqp_is_refused_and_not_quoted(uri: str) -> None:
    with pytest.raises(InvalidSettings, match="AMQP URI") as refused:
        Access.from_uri(uri)

    assert "secret" not in str(refused.value)


def test_no_repr_has_a_password() -> None:
    found = Access.from_uri("amqp://user:hidden@broker", management_url="http://user:hidden@broker")

    assert "hidden" not in repr(found)
    assert found.management_url == "http://user:hidden@broker"


def test_a_connection_notices_a_hanging_server_and_says_whose_it_is() -> None:
    plain = parameters_of(Access.from_uri("amqp://u:p@broker:99/mail"), "publisher")

    assert (plain.host, plain.port, plain.virtual_host) == ("broker", 99, "mail")
    assert plain.credentials == pika.PlainCredentials("u", "p")
    assert (plain.heartbeat, plain.blocked_connection_timeout) == (8, 60)
    assert (plain.socket_timeout, plain.stack_timeout, plain.connection_attempts) == (5, 5, 1)
    assert plain.client_properties == {"connection_name": "postroad publisher"}
    assert plain.ssl_options is None


def test_an_encrypted_connection_checks_the_name_of_the_host() -> None:
    options = parameters_of(Access.from_uri("amqps://broker"), "consumer").ssl_options

    assert options.server_hostname == "broker"
    assert options.context.check_hostname
