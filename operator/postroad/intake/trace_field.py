"""Trace: the `Received:` field that the intake adds, and the loop that too many of them show.

Source: RFC 5321 4.4 (trace), 6.3 (loops); RFC 3848 (protocols); RFC 5322 3.3 (date).
"""

from __future__ import annotations

from datetime import datetime
from email.utils import format_datetime
from functools import lru_cache

from postroad.domain.mail import Origin
from postroad.domain.next_hops import address_literal

MOST_HOPS = 100
"""`Received:` fields after which a mail is taken to go round in circles. RFC 5321 6.3."""

_FIELD = b"\nreceived:"


def trace_field(origin: Origin, hostname: str, name: str, moment: datetime) -> bytes:
    """Return the field, folded, with its line end.

    `name` is the mail's name: who has the field can find the mail in the queue by it. The client's
    own name was checked by the dialogue, so it cannot break out of the field.
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
        """Take the next octets of the mail; those after the header are not looked at."""
        if self._is_over or not chunk:
            return
        data = self._tail + chunk
        end = data.find(b"\n\r\n")
        self._is_over = end >= 0
        if self._is_over:
            data = data[: end + 1]
        self.hops += data.lower().count(_FIELD)
        self._tail = data[1 - len(_FIELD) :]  # too short to be counted twice
