"""The JSON of envelopes in records and spool files. FORMAT.md 4 and 6. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.domain.mail.envelope_documents import envelope_of
from postroad.domain.mail.mail import Envelope, check_address
from postroad.errors import InvalidInput, StoreDamaged

LONGEST_DOMAINS = 65_535
"""Bytes; the format counts them in 16 bits."""

NUMBERS = 1 << 32
"""Recipients have numbers below this."""

UNDECODED = (ValueError, LookupError, TypeError, AttributeError, InvalidInput, RecursionError)
"""What decoding raises where the checksum is right: another program wrote these bytes."""


def domains_of(envelope: Envelope) -> str:
    """Return the destination domains, space separated, as many as LONGEST_DOMAINS allows."""
    domains = " ".join(filter(None, envelope.domains))
    if len(domains.encode()) <= LONGEST_DOMAINS:
        return domains
    return domains.encode()[:LONGEST_DOMAINS].rpartition(b" ")[0].decode()


class Unreadable(StoreDamaged):
    """The checksum is right and the record cannot be decoded: another program wrote it."""


def read_envelope(data: bytes) -> tuple[Envelope, dict[str, Any]]:
    """Read an envelope, and return all keys of its JSON too, because records keep more in it.
    Both can be written again. Raises: Unreadable."""
    try:
        found = json.loads(data)
        return envelope_of(found), found
    except UNDECODED as error:
        raise Unreadable("an envelope cannot be read") from error


def numbers_in(rest: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Return the numbers of `count` recipients. Raises: ValueError, TypeError."""
    if rest.get("numbers") is None:
        return tuple(range(count))
    numbers = tuple(rest["numbers"])
    if not all(type(each) is int and 0 <= each < NUMBERS for each in numbers):
        raise TypeError("`numbers` must be recipient numbers")
    if len(numbers) != count or len(set(numbers)) != count:
        raise ValueError("`numbers` must differ, one for each recipient")
    return numbers


def failures_in(rest: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return failed recipients and reasons. Raises: ValueError, TypeError, InvalidMail."""
    failures: dict[int, tuple[str, str]] = {}
    for number, (to, text) in rest.get("failures", {}).items():
        check_address(to)
        if not isinstance(text, str):
            raise TypeError("a reason must be text")
        failures[int(number)] = (to, text)
    return failures
