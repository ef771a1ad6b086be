"""Addresses as the lake keeps them, as Spark columns."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.internationalized import spellings
from postroad.pipeline.addresses import DIGITS, hashes_of, pads
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


def is_address(kept: Column, address: str, key: bytes | None) -> Column:
    """Whether what is kept of an address is this one, however its domain is spelt: plain, or as the
    hash by this key (None: there is none)."""
    local, at, domain = address.rpartition("@")
    spelt = kept == address
    if at:
        domain_of_it = F.substring_index(kept, "@", -1)
        local_of_it = kept.substr(F.lit(1), F.length(kept) - F.length(domain_of_it))
        spelt |= (local_of_it == f"{local}@") & F.lower(domain_of_it).isin(*spellings(domain))
    if key is not None:
        spelt |= kept.isin(*hashes_of(address, key))
    return F.coalesce(spelt, F.lit(False))


def is_among(address: str, key: bytes | None) -> Column:
    """Whether an entry is of a mail from or to this address."""
    return is_address(F.col("sender"), address, key) | F.exists(
        "recipients", lambda each: is_address(each, address, key)
    )


def column_of(kind: AddressKind, key: bytes) -> AddressColumn:
    """Return what makes an address what the lake has of it."""
    columns = {AddressKind.HASHED: hashed(key), AddressKind.PLAIN: plain, AddressKind.NONE: nothing}
    return columns[kind]


def _hash(pad: bytes, message: Column) -> Column:
    return F.sha2(F.concat(F.lit(bytearray(pad)), message), 256)
