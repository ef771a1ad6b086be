"""The fields of a header, as they stand in it."""

import re
from typing import NamedTuple

from postroad.errors import InvalidMail

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_FOLDED = re.compile(rb"\r\n(?![ \t])")


class HeaderField(NamedTuple):
    """One field, without the CRLF at its end. `name` is in lower case."""

    name: str
    octets: bytes

    @property
    def value(self) -> str:
        """Text that stands behind the colon, unfolded."""
        value = self.octets.partition(b":")[2].replace(b"\r\n", b"")
        return value.decode("utf-8", "replace").strip()


def fields_of(header: bytes) -> list[HeaderField]:
    """Return the fields of a header with CRLF at the end of each line, from the top; the blank line
    behind them may be there. Raises: InvalidMail for a line that belongs to no field, at which
    servers differ about where the header ends."""
    found = []
    for octets in _FOLDED.split(header):
        if octets:
            name = _FIELD.match(octets)
            if name is None:
                raise InvalidMail("a line of the header belongs to no field")
            found.append(HeaderField(name[1].decode().lower(), octets))
    return found
