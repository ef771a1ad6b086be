"""Envelopes as JSON and back, for all that store and send them: bodies of the broker, spool files
and the log (FORMAT.md 4), the socket. What is not given is left out. Source: ADR 0030.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.domain.mail.mail import DsnOptions, Envelope, Origin, RecipientDsn

FIELDS = frozenset(("sender", "to", "name", "attributes", "origin", "dsn", "priority"))
"""All that an envelope may have."""


def envelope_value(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope as JSON has it."""
    found: dict[str, Any] = {"sender": envelope.sender, "to": envelope.recipients}
    if envelope.name is not None:
        found["name"] = envelope.name
    if envelope.attributes:
        found["attributes"] = dict(envelope.attributes)
    if envelope.origin is not None:
        origin = envelope.origin
        found["origin"] = [origin.host, origin.address, origin.protocol]
    if (dsn := envelope.dsn) is not None:
        each = {to: [options.notify, options.orcpt] for to, options in dsn.recipients.items()}
        found["dsn"] = [dsn.ret, dsn.envid, each]
    if envelope.priority:
        found["priority"] = envelope.priority
    return found


def envelope_of(found: Mapping[str, Any]) -> Envelope:
    """Return the envelope that `envelope_value` wrote; passes over fields that it does not know.
    Raises: ValueError, LookupError, TypeError, AttributeError, InvalidInput for what that cannot
    have written."""
    origin, dsn = found.get("origin"), found.get("dsn")
    return Envelope(
        found["sender"],
        found["to"],
        found.get("name"),
        found.get("attributes", {}),
        None if origin is None else Origin(*origin),
        None if dsn is None else _brief_dsn(*dsn),
        found.get("priority", 0),
    )


def _brief_dsn(ret: str | None, envid: str | None, recipients: Mapping[str, Any]) -> DsnOptions:
    each = {to: RecipientDsn(tuple(notify), orcpt) for to, (notify, orcpt) in recipients.items()}
    return DsnOptions(ret, envid, each)
