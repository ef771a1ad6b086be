"""The real servers that tests use, from the POSTROAD_* variables; names of their own for each test.

Servers are shared, so nothing here has a fixed name: a keyspace, queue or bucket carries `fresh()`.
"""

from __future__ import annotations

import os
import secrets

from postroad.adapters.cassandra.connection import Access
from postroad.adapters.cassandra.session import Session
from postroad.adapters.rabbitmq.connection import Access as RabbitMQAccess
from postroad.bootstrap.cluster import rabbitmq_access
from postroad.settings import Settings, from_environment
from support.access import cassandra_of


def fresh() -> str:
    """Return a word that no other test uses."""
    return f"t{secrets.token_hex(5)}"


def settings() -> Settings:
    """Return the settings that the environment gives."""
    return from_environment()


def cassandra(keyspace: str) -> Access:
    """Return the access to a keyspace of the running Cassandra."""
    return cassandra_of(os.environ, keyspace)


def rabbitmq() -> RabbitMQAccess:
    """Return the access to the running RabbitMQ."""
    return rabbitmq_access(settings())


def session(keyspace: str) -> Session:
    """Return a session on a keyspace of the running Cassandra."""
    return Session(cassandra(keyspace))
