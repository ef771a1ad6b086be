"""Lists the objects of a queue's mails, by days and ranges of mail ids, side by side."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from postroad.domain.queues.entries import slice_of, slices_between
from postroad.domain.queues.names import QueueName, mail_of_bytes
from postroad.domain.values.identifiers import id_at, moment_of
from postroad.pipeline.spark.session import kept

_DAY, _RANGE = timedelta(days=1), timedelta(hours=4)
OBJECTS = "blob_key string, accepted_at timestamp"


class KeyRange(NamedTuple):
    """The keys with a prefix that come after `after`, and not after `through` (None: all)."""

    prefix: str
    after: str
    through: str | None


Lister = Callable[[list[KeyRange]], Iterable[str]]
"""Lists the keys of some ranges, in any process: it is sent to executors."""


def all_ranges(queue: QueueName, first: datetime | None, last: datetime) -> list[KeyRange]:
    """Return ranges that hold all keys of mails. `first`: the day of the first one; `last`: of the
    last, by a clock that may be a day ahead. What is older than a year, or not sorted as expected,
    is one range."""
    day = slice_of(max(first or last, last - 366 * _DAY), _DAY)
    found = [KeyRange(f"{queue}/", "", f"{queue}/{day:%Y/%m/%d}/")]
    for each in slices_between(day, last + _DAY, _DAY):
        found += _ranges_of_day(f"{queue}/{each:%Y/%m/%d}/", each)
    return found


def beside(keys: Iterable[str]) -> list[KeyRange]:
    """Return ranges that hold all keys of the days that these name."""
    return [KeyRange(each, "", None) for each in sorted({f"{_folder(key)}/" for key in keys})]


def day_of(queue: QueueName, key: str) -> datetime | None:
    """Return the day that the key of a mail's object names; None where it is none."""
    try:
        return datetime.strptime(_folder(key), f"{queue}/%Y/%m/%d").replace(tzinfo=UTC)
    except ValueError:
        return None


def _ranges_of_day(prefix: str, day: datetime) -> Iterator[KeyRange]:
    moments = (day + each * _RANGE for each in range(1, _DAY // _RANGE))
    limits = [f"{prefix}{id_at(each, 0, 0)}" for each in moments]
    for after, through in zip(["", *limits], [*limits, None], strict=True):
        yield KeyRange(prefix, after, through)


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


def listed(
    session: SparkSession, queue: QueueName, wanted: list[KeyRange], lister: Lister
) -> DataFrame:
    """Return the objects of the queue's mails in these ranges, with the moments that their mail ids
    were made at. They stay as they were listed."""
    context = session.sparkContext
    parts = max(1, min(len(wanted), 2 * context.defaultParallelism))
    found = context.parallelize(wanted, parts).mapPartitions(partial(_objects, queue, lister))
    return kept(session.createDataFrame(found, OBJECTS))


def _objects(
    queue: QueueName, lister: Lister, wanted: Iterator[KeyRange]
) -> Iterator[tuple[str, datetime]]:
    for key in lister(list(wanted)):
        mail_id = mail_of_bytes(queue, key)
        if mail_id is not None:  # else another program stored it
            yield key, moment_of(mail_id)
