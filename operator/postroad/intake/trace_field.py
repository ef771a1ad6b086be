"""Trace fields: the intake adds a `Received:` field, and finds mail loops by counting them.

Source: RFC 5321 4.4 (trace), 6.3 (loops); RFC 3848 (protocols); RFC 5322 3.3 (date).
"""

from __future__ import annotations

from datetime import datetime
from email.utils import format_datetime
from functools import lru_cache

from postroad.domain.mail.mail import Origin
from postroad.domain.smtp.next_hops import address_literal

MOST_RECEIVED_FIELDS = 100
"""`Received:` fields of a mail that counts as looping. Source: RFC 5321 6.3."""

_FIELD = b"\nreceived:"


def trace_field(origin: Origin, hostname: str, name: str, moment: datetime) -> bytes:
    """Return the field, folded, with its line end.

    `name` is the mail's name: an administrator finds the mail in the queue by it. The dialogue
    checked the client's name, so it cannot break out of the field.
    """
    literal = address_literal(origin.address or "unknown")
    return (
        f"Received: from {origin.host or 'unknown'} ({literal})\r\n"
        f"\tby {hostname} with {origin.protocol} id {name};\r\n"
        f"\t{_date(moment.replace(microsecond=0))}\r\n"
    ).encode()


@lru_cache(maxsize=1)
def _date(second: datetime) -> str:
    return format_datetime(second)


class HopCounter:
    """Counts `Received:` fields in a header that arrives in chunks."""

    def __init__(self) -> None:
        self.hops = 0
        self._tail = b"\n"  # the first line begins like any other
        self._is_over = False

    def feed(self, chunk: bytes) -> None:
        """Count in the next octets of the mail; those after the header are skipped."""
        if self._is_over or not chunk:
            return
        data = self._tail + chunk
        end = data.find(b"\n\r\n")
        self._is_over = end >= 0
        if self._is_over:
            data = data[: end + 1]
        self.hops += data.lower().count(_FIELD)
        self._tail = data[1 - len(_FIELD) :]  # one octet longer, and a field would count twice
