"""Translates the driver's errors into postroad's. An unforeseen one counts as transient."""

from __future__ import annotations

import re

from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    ReadFailure,
    RequestValidationException,
    UnresolvableContactPoints,
    UnsupportedOperation,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown
from cassandra.protocol import RequestValidationException as RequestValidationMessage
from cassandra.protocol import SyntaxException

from postroad.errors import CREATE, CredentialsRefused, ServerError, ViewRefused, ViewUnavailable
from postroad.tls import refusal

NOT_CREATED = f"apply the QueueCluster, or {CREATE}"

_SERVER_MESSAGE = re.compile(r'message="(.*)"', re.DOTALL)

_PERMANENT = (
    RequestValidationException,
    RequestValidationMessage,
    SyntaxException,
    UnsupportedOperation,
)


_TOO_MANY_TOMBSTONES = "READ_TOO_MANY_TOMBSTONES"
"""A replica's reason, a name of Cassandra's `RequestFailureReason`. In version 4 of the protocol it
is only in the text."""


class TooManyTombstones(ViewUnavailable):
    """Cassandra refuses to read across so many tombstones."""

    hint = "Cassandra drops the tombstones after the table's gc_grace_seconds"


def translated(error: Exception) -> ServerError:
    """Return postroad's error for the driver's.

    Where one host refused the request or the credentials, its error is returned, because every host
    would refuse the same.
    """
    if isinstance(error, ServerError):
        return error
    if isinstance(error, NoHostAvailable):
        return _of_all_hosts(error)
    if isinstance(error, UnresolvableContactPoints):
        return ViewUnavailable(
            "no contact point of Cassandra has an address",
            hint="compare their names with DNS, where this process runs",
        )
    if isinstance(error, AuthenticationFailed):
        return CredentialsRefused(f"Cassandra refused the credentials: {_message_of(error)}")
    if isinstance(error, _PERMANENT):
        is_missing = isinstance(error, InvalidRequest) and (
            "unconfigured table" in str(error) or "does not exist" in str(error)
        )
        return ViewRefused(
            f"Cassandra refused the request: {_message_of(error)}",
            hint=NOT_CREATED if is_missing else None,
        )
    if isinstance(error, ReadFailure) and _TOO_MANY_TOMBSTONES in str(error):
        return TooManyTombstones()
    return ViewUnavailable(f"Cassandra did not answer: {type(error).__name__}: {error}")


def _of_all_hosts(error: NoHostAvailable) -> ServerError:
    causes = error.errors
    each = list(causes.values()) if isinstance(causes, dict) else list(causes or ())
    for cause in each:
        if isinstance(cause, (AuthenticationFailed, *_PERMANENT)):
            return translated(cause)
    reasons = sorted({_message_of(cause) for cause in each})
    if (refused := refusal("Cassandra", "; ".join(reasons))) is not None:
        return refused
    is_cut = any(isinstance(cause, ConnectionResetError | ConnectionShutdown) for cause in each)
    return ViewUnavailable(
        "no Cassandra host can be used: " + ("; ".join(reasons) or "all are down"),
        hint="where clients are encrypted, set POSTROAD_CASSANDRA_TLS=verify-full"
        if is_cut
        else None,
    )


def _message_of(error: object) -> str:
    """Return the server's message where the driver wraps it, else the first line."""
    text = str(error)
    quoted = _SERVER_MESSAGE.search(text)
    return quoted[1] if quoted else (text.splitlines() or [type(error).__name__])[0]
