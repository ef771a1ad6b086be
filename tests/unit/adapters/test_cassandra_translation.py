"""Which of our errors each of the driver's errors becomes."""

from __future__ import annotations

import pytest
from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException, ConnectionShutdown

from postroad.adapters.cassandra.connection import NOT_CREATED, Access, translated
from postroad.errors import CredentialsRefused, ServerError, ViewRefused, ViewUnavailable


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OperationTimedOut(), ViewUnavailable),
        (ReadTimeout("late"), ViewUnavailable),
        (WriteTimeout("late", write_type=0), ViewUnavailable),
        (Unavailable("one of two replicas"), ViewUnavailable),
        (ConnectionShutdown("gone"), ViewUnavailable),
        (ConnectionException("gone"), ViewUnavailable),
        (UnresolvableContactPoints({}), ViewUnavailable),
        (NoHostAvailable("none", {}), ViewUnavailable),
        (NoHostAvailable("none", {"10.0.0.1": OSError("refused")}), ViewUnavailable),
        (NoHostAvailable("none", {"10.0.0.1": AuthenticationFailed("no")}), CredentialsRefused),
        (NoHostAvailable("none", {"10.0.0.1": Unauthorized("no")}), ViewRefused),
        (AuthenticationFailed("no"), CredentialsRefused),
        (Unauthorized("no"), ViewRefused),
        (InvalidRequest("no"), ViewRefused),
        (RuntimeError("unexpected"), ViewUnavailable),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_a_drivers_error_becomes_ours(error: Exception, expected: type[ServerError]) -> None:
    assert type(translated(error)) is expected


def test_a_missing_table_says_how_it_is_made() -> None:
    refused = translated(InvalidRequest('code=2200 message="table mails does not exist"'))

    assert str(refused) == "Cassandra refused the request: table mails does not exist"
    assert refused.hint == NOT_CREATED


def test_the_password_is_in_no_repr() -> None:
    access = Access(("cassandra",), 9042, "dc1", "postroad", "postroad", "a-secret")

    assert "a-secret" not in f"{access!r} {access}"
