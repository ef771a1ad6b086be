"""The real servers that tests use, from the POSTROAD_* variables; names of their own for each test.

Servers are shared, so nothing here has a fixed name: a keyspace, queue or bucket carries `fresh()`.
"""

from __future__ import annotations

import secrets

from postroad.adapters.cassandra.access import Access
from postroad.adapters.cassandra.session import Session
from postroad.adapters.rabbitmq.access import Access as RabbitMQAccess
from postroad.settings import Settings, from_environment


def fresh() -> str:
    """Return a word that no other test uses."""
    return f"t{secrets.token_hex(5)}"


def settings() -> Settings:
    """Return the settings that the environment gives."""
    return from_environment()


def cassandra(keyspace: str) -> Access:
    """Return the access to a keyspace of the running Cassandra."""
    given = settings().cassandra
    return Access(
        contact_points=given.contact_points,
        port=given.port,
        local_datacenter=given.local_datacenter,
        keyspace=keyspace,
        username=given.username,
        password=given.password.get_secret_value() if given.password else None,
        tls=given.tls,
        ca_file=settings().ca_file,
    )


def rabbitmq() -> RabbitMQAccess:
    """Return the access to the running RabbitMQ."""
    given = settings().rabbitmq
    return RabbitMQAccess.from_uri(
        given.uri.get_secret_value(),
        username=given.username,
        password=given.password.get_secret_value() if given.password else None,
        ca_file=settings().ca_file,
        management_url=given.management_url,
    )


def session(keyspace: str) -> Session:
    """Return a session on a keyspace of the running Cassandra."""
    return Session(cassandra(keyspace))
