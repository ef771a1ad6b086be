"""Rules of the domain, and addresses as the lake keeps them, as Spark columns. Tests hold each to
the function that it repeats.

Ids are text (as the connector reads `uuid`), moments are timestamps of a session in UTC."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import chain

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.seven_bits import spellings
from postroad.domain.queues.entries import EndingKind
from postroad.domain.queues.selection import AGES
from postroad.pipeline.addresses import DIGITS, hashes_of, pads
from postroad.pipeline.states import ENDINGS, STATES
from postroad.settings.pipeline import AddressKind

_MICROSECOND = timedelta(microseconds=1)


def slice_of(moment: Column, window: timedelta) -> Column:
    """`domain.slices.slice_of`."""
    micros = F.unix_micros(moment)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(window // _MICROSECOND)))


def moment_of(identifier: Column) -> Column:
    """`domain.identifiers.moment_of`."""
    milliseconds = F.concat(F.substring(identifier, 1, 8), F.substring(identifier, 10, 4))
    return F.timestamp_millis(_number(milliseconds))


def bucket_of(identifier: Column, bucket_count: int) -> Column:
    """`domain.slices.bucket_of`: the remainder of the low 62 bits. The two highest bits of the last
    sixteen digits are cleared first, so that the number fits into a signed one."""
    first = _number(F.substring(identifier, 20, 1)).bitwiseAND(F.lit(3))
    others = F.concat(F.substring(identifier, 21, 3), F.substring(identifier, 25, 12))
    low = F.shiftleft(first, 60) + _number(others)
    return F.pmod(low, F.lit(bucket_count)).cast("int")


def domain_of(address: Column) -> Column:
    """`domain.mail.domain_of`, as far as Java's lower case is Python's."""
    has_domain = F.instr(address, "@") > 0
    return F.when(has_domain, F.lower(F.substring_index(address, "@", -1))).otherwise(F.lit(""))


def domains_of(recipients: Column) -> Column:
    """`Envelope.domains`."""
    return F.array_sort(F.array_distinct(F.transform(recipients, domain_of)))


def domain_counts_of(recipients: Column) -> Column:
    """Number of the recipients for each of `domains_of`."""
    domains = F.transform(recipients, domain_of)

    def count(domain: Column) -> Column:
        return F.size(F.filter(domains, lambda each: each == domain))

    return F.transform(domains_of(recipients), count)


def age_limit_of(accepted_at: Column, now: Column) -> Column:
    """The first limit of AGES that an age is below, in minutes; null for what is older than all."""
    age = F.unix_micros(now) - F.unix_micros(accepted_at)
    limit = F.lit(None).cast("int")
    for each in reversed(AGES[:-1]):
        minutes = F.lit(each // timedelta(minutes=1))
        limit = F.when(age < F.lit(each // _MICROSECOND), minutes).otherwise(limit)
    return limit


def state_of(ending: Column, delivered_at: Column, published: Column, purged: Column) -> Column:
    """`states.STATES`, as a struct with the fields of `EntryState`. All four come from the mark, as
    it is stored: `published` and `purged` may be null for false, and an ending that this release
    does not know is UNKNOWN."""
    bits = (
        F.when(delivered_at.isNotNull(), 4).otherwise(0)
        + F.when(published, 2).otherwise(0)
        + F.when(purged, 1).otherwise(0)
    )
    return _states()[F.shiftleft(_ending_number(ending), 3) + bits]


def _ending_number(ending: Column) -> Column:
    numbers = {kind.value: number for number, kind in enumerate(ENDINGS) if kind is not None}
    known = _literal_map((F.lit(value), F.lit(number)) for value, number in numbers.items())
    unknown = F.lit(ENDINGS.index(EndingKind.UNKNOWN))
    return F.when(ending.isNull(), F.lit(0)).otherwise(F.coalesce(known[ending], unknown))


def _states() -> Column:
    return _literal_map(
        (
            F.lit(flags.code),
            F.struct(*(F.lit(value).alias(name) for name, value in state._asdict().items())),
        )
        for flags, state in STATES.items()
    )


def _literal_map(pairs: Iterable[tuple[Column, Column]]) -> Column:
    return F.create_map(*chain.from_iterable(pairs))


def _number(digits: Column) -> Column:
    """The number of at most fifteen hexadecimal digits."""
    return F.conv(digits, 16, 10).cast("long")


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
    """True if what is kept of an address is this one, however its domain is spelt: plain, or as the
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
    """True if an entry is of a mail from or to this address."""
    return is_address(F.col("sender"), address, key) | F.exists(
        "recipients", lambda each: is_address(each, address, key)
    )


def column_of(kind: AddressKind, key: bytes) -> AddressColumn:
    """Return what makes an address what the lake has of it."""
    columns = {AddressKind.HASHED: hashed(key), AddressKind.PLAIN: plain, AddressKind.NONE: nothing}
    return columns[kind]


def _hash(pad: bytes, message: Column) -> Column:
    return F.sha2(F.concat(F.lit(bytearray(pad)), message), 256)
