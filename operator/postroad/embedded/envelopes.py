"""The envelope of a mail, as records and spool files hold it: JSON. FORMAT.md 4 and 6. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.domain.documents import envelope_of_brief
from postroad.domain.mail import Envelope, check_address
from postroad.errors import InvalidMail, StoreDamaged

LONGEST_DOMAINS = 65_535
"""Bytes; the most that the format can say."""

NUMBERS = 1 << 32
"""Recipients have numbers below this."""

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, InvalidMail, RecursionError)
"""What reading raises where the checksum is right and the bytes are not ours: another program wrote
them."""


def domains_of(envelope: Envelope) -> str:
    """Return the destination domains, space separated; of very many, the first that fit."""
    domains = " ".join(each for each in envelope.domains if each)
    if len(domains.encode()) <= LONGEST_DOMAINS:
        return domains
    return domains.encode()[:LONGEST_DOMAINS].rpartition(b" ")[0].decode()


class Unreadable(StoreDamaged):
    """The checksum is right, and what it covers cannot be read: another program wrote it."""


def read_envelope(data: bytes) -> tuple[Envelope, dict[str, Any]]:
    """Read an envelope from its JSON, and return all that the JSON says as well: records and spool
    files keep more in it. What is returned can be written again. Raises: Unreadable."""
    try:
        found = json.loads(data)
        _check_types(found)
        return envelope_of_brief(found), found
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
