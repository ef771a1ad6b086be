"""Forms of addresses in the lake: as keyed hashes, plain, or not at all. Pure.

A keyed hash joins what an address sent and got, and names it to those only who have the key.
Source: RFC 2104; ADR 0047."""

import hmac
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from postroad.domain.mail.seven_bits import ascii_address, spellings
from postroad.settings.pipeline import AddressKind

DIGITS = 32
"""Hexadecimal digits that are kept of a hash: as many as two addresses of one queue never share."""

BLOCK = 64
"""Bytes of a block of SHA-256."""


def pads(key: bytes) -> tuple[bytes, bytes]:
    """Return what HMAC puts before the inner and before the outer hash. Source: RFC 2104 2."""
    block = (key if len(key) <= BLOCK else sha256(key).digest()).ljust(BLOCK, b"\0")
    return bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)


def hashed_address(address: str, key: bytes) -> str:
    """Return the keyed hash of an address. The case of its domain makes no difference; the null
    reverse-path names no one, and stays."""
    if not address:
        return ""
    local, at, domain = address.rpartition("@")
    spelt = f"{local}@{domain.lower()}" if at else address
    return hmac.digest(key, spelt.encode(), "sha256").hex()[:DIGITS]


def spelt(address: str) -> frozenset[str]:
    """Return an address with each spelling of its domain."""
    local, at, domain = address.rpartition("@")
    return (
        frozenset(f"{local}@{each}" for each in spellings(domain)) if at else frozenset([address])
    )


def hashes_of(address: str, key: bytes) -> list[str]:
    """Return the keyed hashes that a lake may have of an address, however its domain is spelt."""
    return sorted({hashed_address(each, key) for each in spelt(address)})


KeptAddress = Callable[[str], str | None]
"""Makes an address what the lake has of it."""


def kept_address(kind: AddressKind, key: bytes) -> KeptAddress:
    """Return what makes an address what the lake has of it, by the setting."""
    if kind is AddressKind.HASHED:
        return partial(_hashed, key=key)
    return _plain if kind is AddressKind.PLAIN else _nothing


def _hashed(address: str, key: bytes) -> str:
    return hashed_address(ascii_address(address), key)


def _plain(address: str) -> str:
    return address


def _nothing(_: str) -> None:
    return None
