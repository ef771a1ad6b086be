"""Internationalised domain names: their ASCII form, for servers that know no SMTPUTF8."""

from __future__ import annotations

import idna


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
