"""Accesses to servers that a test's own variables name."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.adapters.cassandra.access import Access
from postroad.settings import from_environment


def cassandra_of(variables: Mapping[str, str], keyspace: str) -> Access:
    """Return the access to a keyspace of the Cassandra that variables name."""
    given = from_environment(variables).cassandra
    return Access(
        contact_points=given.contact_points,
        port=given.port,
        local_datacenter=given.local_datacenter,
        keyspace=keyspace,
        username=given.username,
        password=given.password.get_secret_value() if given.password else None,
    )
