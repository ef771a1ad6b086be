"""Each column says of every value what the domain says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.mail import Envelope, domain_of
from postroad.domain.queues.entries import EndingKind, bucket_of, slice_of
from postroad.domain.queues.selection import AGES
from postroad.domain.values.identifiers import EPOCH, id_at, moment_of
from postroad.pipeline.spark import columns
from postroad.pipeline.states import STATES, EntryFlags

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

few_jobs = settings(
    max_examples=3,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
"""Each example is a job of Spark, over hundreds of values: too slow to be shrunk."""

MICROSECOND, MINUTE = timedelta(microseconds=1), timedelta(minutes=1)


def many(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=100, max_size=300)


def answers(
    spark: SparkSession, schema: str, values: Sequence[tuple[Any, ...]], *wanted: Column
) -> list[tuple[Any, ...]]:
    """What Spark makes of these rows, in their order."""
    rows = spark.createDataFrame(list(values), schema)
    return [tuple(row) for row in rows.select(*wanted).collect()]


MILLISECOND = timedelta(milliseconds=1)
LATEST = datetime(2105, 12, 31, tzinfo=UTC)
moments = st.integers(0, (LATEST - EPOCH) // MILLISECOND).map(lambda ms: EPOCH + ms * MILLISECOND)
ids = st.builds(id_at, moments, st.integers(0, 0xFFF), st.integers(0, (1 << 62) - 1))


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


@few_jobs
@given(of=many(moments), seconds=st.sampled_from([1, 7, 60, 600, 3600, 86400, 604800]))
def test_the_slice_of_a_moment(spark: SparkSession, of: list[datetime], seconds: int) -> None:
    window = timedelta(seconds=seconds)
    found = columns.slice_of(F.timestamp_micros("at"), window)

    assert answers(spark, "at long", [(micros(each),) for each in of], F.unix_micros(found)) == [
        (micros(slice_of(each, window)),) for each in of
    ]


@few_jobs
@given(of=many(ids | st.uuids(version=4)), count=st.integers(1, 1 << 20))
def test_the_bucket_and_the_moment_of_an_id(
    spark: SparkSession, of: list[UUID], count: int
) -> None:
    found = answers(
        spark,
        "id string",
        [(str(each),) for each in of],
        columns.bucket_of(F.col("id"), count),
        F.unix_millis(columns.moment_of(F.col("id"))),
    )

    assert [bucket for bucket, _ in found] == [bucket_of(each, count) for each in of]
    times = [(each, at) for each, (_, at) in zip(of, found, strict=True) if each.version == 7]
    assert [EPOCH + at * MILLISECOND for _, at in times] == [moment_of(each) for each, _ in times]


letters = st.characters(max_codepoint=0x52F, categories=("L", "Nd"))
names = st.text(letters, min_size=1, max_size=8)
addresses = st.just("Postmaster") | st.builds(
    lambda local, *domain: f"{local}@{'.'.join(domain)}",
    st.sampled_from(["a", '"a@b"', "A.B+c"]), names, names,
)  # fmt: skip


@few_jobs
@given(of=many(st.lists(addresses, min_size=1, max_size=7)))
def test_the_domain_of_an_address_and_the_domains_of_an_envelope(
    spark: SparkSession, of: list[list[str]]
) -> None:
    found = answers(
        spark,
        "recipients array<string>",
        [(each,) for each in of],
        columns.domain_of(F.col("recipients")[0]),
        columns.domains_of(F.col("recipients")),
        columns.domain_counts_of(F.col("recipients")),
    )

    assert [(domain, tuple(domains)) for domain, domains, _ in found] == [
        (domain_of(each[0]), Envelope(None, tuple(each)).domains) for each in of
    ]
    assert [dict(zip(domains, counts, strict=True)) for _, domains, counts in found] == [
        Counter(map(domain_of, each)) for each in of
    ]


LIMITS = [limit // MICROSECOND for limit in AGES[:-1]]


@few_jobs
@given(
    of=many(
        st.integers(0, 2 * LIMITS[-1])
        | st.builds(lambda limit, off: limit + off, st.sampled_from(LIMITS), st.integers(-1, 1))
    )
)
def test_the_first_limit_that_an_age_is_below(spark: SparkSession, of: list[int]) -> None:
    now = 10 * LIMITS[-1]
    found = columns.age_limit_of(F.timestamp_micros("at"), F.timestamp_micros(F.lit(now)))

    expected = [next(each for each in AGES if age * MICROSECOND < each) for age in of]
    assert answers(spark, "at long", [(now - age,) for age in of], found) == [
        (None if limit == AGES[-1] else limit // MINUTE,) for limit in expected
    ]


CELLS = ("ending", "delivered", "published", "purged")
MARK = "ending string, delivered long, published boolean, purged boolean"


def stored(flags: EntryFlags) -> tuple[Any, ...]:
    """The cells of a mark with these flags: what is false may be null."""
    ending = None if flags.ending is None else flags.ending.value
    return ending, 1 if flags.delivered else None, flags.published or None, flags.purged


def test_the_state_of_every_combination_of_flags(spark: SparkSession) -> None:
    found = answers(
        spark,
        MARK,
        [stored(flags) for flags in STATES],
        columns.state_of(*(F.col(each) for each in CELLS)),
    )

    assert [tuple(state) for (state,) in found] == [tuple(state) for state in STATES.values()]


def test_an_ending_of_a_later_release_is_unknown(spark: SparkSession) -> None:
    unknown = EntryFlags(EndingKind.UNKNOWN, delivered=False, published=False, purged=False)
    (found,) = answers(
        spark,
        MARK,
        [("forwarded", None, None, None)],
        columns.state_of(*(F.col(each) for each in CELLS)),
    )

    assert tuple(found[0]) == tuple(STATES[unknown])
