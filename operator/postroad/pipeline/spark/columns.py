"""Rules of the domain as Spark columns. Tests hold each to the function that it repeats.

Ids are text (as the connector reads `uuid`), moments are timestamps of a session in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import chain

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.queues.ages import AGES
from postroad.domain.queues.entries import EndingKind
from postroad.pipeline.states import ENDINGS, STATES

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
    """How many of the recipients each of `domains_of` has."""
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
