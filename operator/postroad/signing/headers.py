"""The fields of a header as signatures name them, and whose mail it is."""

from __future__ import annotations

import re
from typing import NamedTuple

from postroad.domain.mail.address_lists import addresses_in
from postroad.domain.mail.mail import domain_of
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.errors import InvalidInput, InvalidMail

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_FOLDED = re.compile(rb"\r\n(?![ \t])")


class HeaderField(NamedTuple):
    """One field, without the CRLF at its end. `name` is in lower case."""

    name: str
    octets: bytes

    @property
    def value(self) -> str:
        """What stands behind the colon, unfolded."""
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


def author_domain(fields: list[HeaderField]) -> str:
    """Return the domain of the author, in A-labels: of the one field From, whose addresses share
    it. Raises: InvalidMail. Source: RFC 5322 3.6.2; RFC 6376 5.4, 8.15."""
    values = [each.value for each in fields if each.name == "from"]
    if len(values) != 1:
        raise InvalidMail(f"a mail has one field From, and this one has {len(values)}")
    try:
        domains = {ascii_domain(domain_of(address)) for address in addresses_in(values[0])}
    except InvalidInput as error:
        raise InvalidMail("an address of From cannot be read, or has no domain name") from error
    if len(domains) != 1:
        raise InvalidMail("the addresses of From share no domain")
    return domains.pop()
