"""Addresses as the lake keeps them, as Spark columns."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.pipeline.addresses import DIGITS, pads
from postroad.settings.pipeline import AddressKind

AddressColumn = Callable[[Column], Column]
"""Makes an address what is kept of it."""


def plain(address: Column) -> Column:
    """The address itself."""
    return address


def nothing(_: Column) -> Column:
    """Nothing of it."""
    return F.lit(None).cast("string")


def hashed(key: bytes) -> AddressColumn:
    """`addresses.hashed_address`, as far as Java's lower case is Python's."""
    inner, outer = pads(key)

    def column(address: Column) -> Column:
        domain = F.substring_index(address, "@", -1)
        local = address.substr(F.lit(1), F.length(address) - F.length(domain))
        spelt = F.when(F.instr(address, "@") > 0, F.concat(local, F.lower(domain)))
        message = F.encode(F.coalesce(spelt, address), "UTF-8")
        digest = F.substring(_hash(outer, F.unhex(_hash(inner, message))), 1, DIGITS)
        return F.when(address == "", address).otherwise(digest)

    return column


def column_of(kind: AddressKind, key: bytes) -> AddressColumn:
    """Return what makes an address what the lake has of it."""
    columns = {AddressKind.HASHED: hashed(key), AddressKind.PLAIN: plain, AddressKind.NONE: nothing}
    return columns[kind]


def _hash(pad: bytes, message: Column) -> Column:
    return F.sha2(F.concat(F.lit(bytearray(pad)), message), 256)
