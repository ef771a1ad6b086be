"""Internationalised domain names: their ASCII form, for servers that know no SMTPUTF8."""

from __future__ import annotations

import re
from functools import lru_cache

import idna

from postroad.errors import InvalidInput

_LABELS = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")

LONGEST_NAME = 253
"""Characters of a name in DNS, without the final dot. Source: RFC 1035 2.3.4."""


def ascii_address(address: str) -> str:
    """Return an address with its domain in A-labels; unchanged where that cannot be done, so that
    it stays not ASCII. The local part has no ASCII form. Source: RFC 5890; RFC 6531 3.2.

    >>> ascii_address("post@bücher.example")
    'post@xn--bcher-kva.example'
    """
    if address.isascii():
        return address
    local, _, domain = address.rpartition("@")
    try:
        return f"{local}@{idna.encode(domain, uts46=True).decode()}"
    except idna.IDNAError:
        return address


def same_domain(domain: str) -> str:
    """Return what all spellings of a domain have in common: A-labels in lower case; of what has
    none, its lower case."""
    return ascii_address(f"@{domain.lower()}").removeprefix("@").lower()


def spellings(domain: str) -> frozenset[str]:
    """Return a domain in lower case as it is written here, in A-labels and in U-labels.

    >>> sorted(spellings("xn--bcher-kva.Example"))
    ['bücher.example', 'xn--bcher-kva.example']
    """
    found = {domain.lower(), same_domain(domain)}
    try:
        found.add(idna.decode(same_domain(domain)))
    except (idna.IDNAError, UnicodeError):
        pass  # an address literal, or no name
    return frozenset(found)


@lru_cache(maxsize=4096)
def ascii_domain(domain: str) -> str:
    """Return a domain as DNS has it: A-labels in lower case, without a final dot. What is ASCII
    already is not decoded: DNS knows whether it is there. Raises: InvalidInput.
    Source: RFC 5891 5; RFC 1035 2.3.1, 2.3.4 (underscores and hyphens anywhere are let through).

    >>> ascii_domain("BÜCHER.Example.")
    'xn--bcher-kva.example'
    """
    name = domain.lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode()
        except idna.IDNAError as error:
            raise InvalidInput(f"{domain} is no domain name: {error}") from error
    name = name.removesuffix(".")
    if len(name) > LONGEST_NAME or not _LABELS.fullmatch(name):
        raise InvalidInput(f"{domain} is no domain name")
    return name
