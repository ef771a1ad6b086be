"""Accesses to servers that a test's own variables name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from postroad.adapters.cassandra.connection import Access
from postroad.bootstrap.cluster import cassandra_access
from postroad.settings import from_environment


def cassandra_of(variables: Mapping[str, str], keyspace: str) -> Access:
    """Return the access to a keyspace of the Cassandra that variables name."""
    return replace(cassandra_access(from_environment(variables)), keyspace=keyspace)
