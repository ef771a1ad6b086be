"""Files of recipients: the addresses that a domain has."""

from collections.abc import Iterable

from postroad.errors import InvalidInput


def local_parts(lines: Iterable[str], domain: str) -> frozenset[str]:
    """Read the recipients of a domain: an address or a local part in each line, `#` begins a
    comment. Raises: InvalidInput for an address of another domain, or where there is none, as while
    the file is being written: all mail would bounce."""
    found = set[str]()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        local, at, of = text.rpartition("@")
        if at and of.lower() != domain:
            raise InvalidInput(f"line {number}: the address is not of {domain}")
        found.add((local if at else of).lower())
    if not found:
        raise InvalidInput("none is listed: leave the domain out to take none")
    return frozenset(found)
