"""The envelope of a mail, as records and spool files hold it: JSON. FORMAT.md 4 and 6. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.domain.mail import DsnOptions, Envelope, Origin, RecipientDsn, check_address
from postroad.errors import InvalidMail, StoreDamaged

LONGEST_DOMAINS = 65_535
"""Bytes; the most that the format can say."""

NUMBERS = 1 << 32
"""Recipients have numbers below this."""

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, InvalidMail, RecursionError)
"""What reading raises where the checksum is right and the bytes are not ours: another program wrote
them."""

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


class Unreadable(StoreDamaged):
    """The checksum is right, and what it covers cannot be read: another program wrote it."""


def read_envelope(data: bytes) -> tuple[Envelope, dict[str, Any]]:
    """Read an envelope from its JSON, and return all that the JSON says as well: records and spool
    files keep more in it. What is returned can be written again. Raises: Unreadable."""
    try:
        found = json.loads(data)
        _check_types(found)
        return envelope_from(found), found
    except UNREADABLE as error:
        raise Unreadable("an envelope cannot be read") from error


def _check_types(found: dict[str, Any]) -> None:
    """Refuse what an envelope would take as it is. Raises: TypeError, KeyError."""
    if not isinstance(found["to"], list) or not all(isinstance(to, str) for to in found["to"]):
        raise TypeError("the recipients are a list of addresses")
    if not isinstance(found.get("name"), str | None):
        raise TypeError("a name is text")
    if not isinstance(found.get("attributes", {}), dict):
        raise TypeError("attributes have names")


def numbers_in(rest: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Return the numbers of so many recipients. Raises: ValueError, TypeError."""
    if rest.get("numbers") is None:
        return tuple(range(count))
    numbers = tuple(rest["numbers"])
    if not all(type(each) is int and 0 <= each < NUMBERS for each in numbers):
        raise TypeError("recipients have numbers")
    if len(numbers) != count or len(set(numbers)) != count:
        raise ValueError("each recipient has a number of its own")
    return numbers


def failures_in(rest: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return who failed, and why. Raises: ValueError, TypeError, InvalidMail."""
    failures: dict[int, tuple[str, str]] = {}
    for number, (to, text) in rest.get("failures", {}).items():
        check_address(to)
        if not isinstance(text, str):
            raise TypeError("a reason is text")
        failures[int(number)] = (to, text)
    return failures


def _dsn_from(ret: str | None, envid: str | None, recipients: Mapping[str, Any]) -> DsnOptions:
    each = {to: RecipientDsn(tuple(notify), orcpt) for to, (notify, orcpt) in recipients.items()}
    return DsnOptions(ret, envid, each)
