"""The envelope of a mail, as records and spool files hold it: JSON. FORMAT.md 4 and 6. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.domain.mail import DsnOptions, Envelope, Origin, RecipientDsn

LONGEST_DOMAINS = 65_535
"""Bytes; the most that the format can say."""

_compact = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` with separators makes an encoder for each call."""


def domains_of(envelope: Envelope) -> str:
    """Return the destination domains, space separated; of very many, the first that fit."""
    domains = " ".join(each for each in envelope.domains if each)
    if len(domains.encode()) <= LONGEST_DOMAINS:
        return domains
    return domains.encode()[:LONGEST_DOMAINS].rpartition(b" ")[0].decode()


def to_json(content: object) -> bytes:
    """Return compact JSON in ASCII: it holds any string, lone surrogates included."""
    return _compact(content).encode("ascii")


def envelope_json(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope as JSON holds it; what is not there is left out."""
    found: dict[str, Any] = {"sender": envelope.sender, "to": envelope.recipients}
    if envelope.name is not None:
        found["name"] = envelope.name
    if envelope.attributes:
        found["attributes"] = dict(envelope.attributes)
    if (origin := envelope.origin) is not None:
        found["origin"] = [origin.host, origin.address, origin.protocol]
    if (dsn := envelope.dsn) is not None:
        each = {to: [options.notify, options.orcpt] for to, options in dsn.recipients.items()}
        found["dsn"] = [dsn.ret, dsn.envid, each]
    return found


def envelope_from(found: Mapping[str, Any]) -> Envelope:
    """Return the envelope that `envelope_json` wrote."""
    origin, dsn = found.get("origin"), found.get("dsn")
    return Envelope(
        found["sender"],
        tuple(found["to"]),
        found.get("name"),
        found.get("attributes", {}),
        None if origin is None else Origin(*origin),
        None if dsn is None else _dsn_from(*dsn),
    )


def _dsn_from(ret: str | None, envid: str | None, recipients: Mapping[str, Any]) -> DsnOptions:
    each = {to: RecipientDsn(tuple(notify), orcpt) for to, (notify, orcpt) in recipients.items()}
    return DsnOptions(ret, envid, each)
