"""One audit of a queue: messages, objects, dead letters, rows and marks are read in this order, and
compared; where it shall repair, the engine acts on what was found. Source: ADR 0020, 0047.

Lists the objects of a queue's mails, by days and ranges of mail ids, side by side."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from postroad.distributed.administration.administration import EntryChange
from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.engine.timing import Timing
from postroad.distributed.entries.live_slices import occupied
from postroad.domain.queues.entries import EntryKey, Partition, slice_of, slices_between
from postroad.domain.queues.lost_messages import MessageCount, Messages
from postroad.domain.queues.names import QueueName, mail_of_bytes
from postroad.domain.queues.references import decode
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import EPOCH, id_at, moment_of
from postroad.errors import UnreadableReference
from postroad.pipeline.archive.archive import read_versions
from postroad.pipeline.results.findings import (
    YOUNG,
    AuditTimes,
    FindingKind,
    FindingLine,
    vanished_rows,
)
from postroad.pipeline.spark.columns import nothing
from postroad.pipeline.spark.jobs import auditing
from postroad.pipeline.spark.jobs.tracing import ViewTables
from postroad.pipeline.spark.lake.lake import in_thread
from postroad.pipeline.spark.reading import PartitionReader
from postroad.pipeline.spark.session import kept
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.clock import Clock
from postroad.ports.view import FOREVER, ClosedSlice

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


@dataclass(frozen=True, slots=True)
class AuditedQueue:
    """Queue that is audited. `lister`: lists ranges of the bucket's keys, on executors too."""

    name: QueueName
    tables: ViewTables
    broker: Broker
    blobs: Blobs
    row_lifetime: timedelta
    lister: Lister


class RepairingQueue(Protocol):
    """The operations of the engine that repair."""

    async def delete_orphans(self, keys: Iterable[str]) -> int: ...

    async def change_found(
        self, change: EntryChange, keys: Iterable[EntryKey], selector: Selector
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class Audited:
    """Findings of an audit. `first`: the start of what was read. `is_counted`: whether the broker
    counted its messages. `waiting`: where mail waits, if messages are lost."""

    times: AuditTimes
    first: datetime
    findings: tuple[FindingLine, ...]
    is_counted: bool = True
    waiting: tuple[EntryKey, ...] = ()


class Audit:
    def __init__(
        self, session: SparkSession, queue: AuditedQueue, clock: Clock, timing: Timing
    ) -> None:
        self._session = session
        self._queue = queue
        self._clock = clock
        self._timing = timing

    async def run(self) -> Audited:
        """Find what is wrong. Raises: ServerError, ClockSkew, JobFailed."""
        queue, timing = self._queue, self._timing
        await LimitsCache(queue.tables.view, self._clock, timing).check_clock()
        times = self._times()
        counted = await self._messages(times.began)
        first_object = await self._first_object()
        wanted = all_ranges(queue.name, first_object, times.began)
        objects = await in_thread(listed, self._session, queue.name, wanted, queue.lister)
        dead_letter_keys, spared = await self._dead_letters()
        limits = await queue.tables.view.limits()
        if limits.content_start is None:
            return Audited(times, times.began, ())  # no mail ever came
        first = self._first_slice(first_object, limits.content_start, times.began)
        closed = [each async for each in queue.tables.view.closed_slices(limits.content_start)]
        versions = await read_versions(queue.tables.view, await self._partitions(first, closed))
        reader = PartitionReader(self._session, queue.tables.keyspace, queue.tables.queue, nothing)
        states = await reader.states(versions)
        browse_start = (
            await queue.tables.view.limits()
        ).browse_start  # what cleanup may have begun
        present = await in_thread(auditing.present, states, queue.tables.reading)
        left = (each for each in closed if not browse_start or each.slice_start >= browse_start)
        vanished = vanished_rows(left, present)
        spared += (each.slice_start + each.window for each in closed if _lacks(each, vanished))
        orphans = await in_thread(auditing.without_a_mail, objects, states, dead_letter_keys, times)
        found = [
            *await self._orphans(orphans, states, spared),
            *await in_thread(auditing.without_bytes, states, objects, times),
            *await in_thread(
                auditing.marks_without_rows, states, times, browse_start, queue.row_lifetime
            ),
            *await in_thread(auditing.misplaced, states, queue.tables.reading, times),
            *vanished,
        ]
        lost = (await in_thread(auditing.count_waiting, states, counted)).missing
        if not lost:
            return Audited(times, first, tuple(found), counted.messages is not None)
        found.append(FindingLine(FindingKind.LOST_MESSAGES, None, count=lost))
        waiting = await in_thread(auditing.waiting_keys, states, counted)
        return Audited(times, first, tuple(found), waiting=waiting)

    def _times(self) -> AuditTimes:
        began, timing = self._clock.now(), self._timing
        return AuditTimes(
            began=began,
            young=began - YOUNG,
            unsettled=began - timing.deadline - timing.skew,
            uploaded=began - timing.upload - timing.grace,
        )

    async def _messages(self, began: datetime) -> MessageCount:
        """Count messages before mails, as `domain.queues.lost_messages` has it."""
        depths = await self._queue.broker.depths()
        messages = None
        if depths.leased is not None:
            messages = Messages(depths.work + depths.dead, depths.delayed, depths.leased)
        return MessageCount(messages, began - self._timing.deadline - self._timing.grace)

    async def _first_object(self) -> datetime | None:
        """Return the day of the first object: keys are in this order, those of no mail apart."""
        queue = self._queue
        async for key in queue.blobs.keys(f"{queue.name}/"):
            if mail_of_bytes(queue.name, key) and (day := day_of(queue.name, key)):
                return day
            if key > f"{queue.name}/:":  # behind all that begin with a digit
                return None
        return None

    async def _dead_letters(self) -> tuple[list[str], list[datetime]]:
        """Return the keys that dead letters name, and until when mails were accepted that dead
        letters which cannot be decoded may be of."""
        keys: list[str] = []
        spared: list[datetime] = []
        async for dead_letter in self._queue.tables.view.dead_letters():
            if dead_letter.entry is not None:
                keys.append(dead_letter.entry.blob_key)
            elif not dead_letter.is_decoded:
                spared.append(moment_of(dead_letter.enqueue_id))
            else:
                try:
                    keys.append(decode(dead_letter.body or b"").blob_key)
                except UnreadableReference:
                    pass  # the row counts, which has no mark
        return keys, spared

    def _first_slice(
        self, first_object: datetime | None, content_start: datetime, began: datetime
    ) -> datetime:
        """Return from when on rows are read: a late one may lie before content start."""
        oldest = min(first_object or content_start, content_start)
        return max(
            oldest, began - min(2 * min(self._queue.row_lifetime, FOREVER / 4), began - EPOCH)
        )

    async def _partitions(self, first: datetime, closed: Sequence[ClosedSlice]) -> list[Partition]:
        """Return the partitions that have rows, and those that had some when they were closed."""
        queue, last = self._queue, self._clock.now() + self._timing.skew
        found = {
            each async for each in occupied(queue.tables.view, queue.tables.reading, first, last)
        }
        found |= {Partition(each.slice_start, bucket) for each in closed for bucket in each.rows}
        return sorted(found)

    async def _orphans(
        self, orphans: DataFrame, states: DataFrame, spared: list[datetime]
    ) -> list[FindingLine]:
        """Return the objects without a mail that are still there: the bytes of a dead letter that
        was discarded go after it. What rows or dead letters may need that name nothing is left
        out."""
        queue = self._queue
        undecodable = await in_thread(auditing.undecodable_until, states)
        until = max([*spared, *([undecodable] if undecodable else [])], default=None)
        found = await in_thread(auditing.orphan_lines, orphans, until)
        if not found:
            return []
        again = beside(each.blob_key for each in found if each.blob_key is not None)
        objects = await in_thread(listed, self._session, queue.name, again, queue.lister)
        there = set(await in_thread(_keys, objects.join(orphans, "blob_key", "left_semi")))
        return [each for each in found if each.blob_key in there]


async def repair(queue: RepairingQueue, audited: Audited) -> Mapping[FindingKind, int]:
    """Let the engine repair what it can: it reads rows, marks and letters again. Returns how many
    of each kind were repaired. Raises: ServerError, ClockSkew, ConfigurationStale."""
    kinds: dict[FindingKind, list[FindingLine]] = {kind: [] for kind in FindingKind}
    for each in audited.findings:
        kinds[each.kind].append(each)
    repaired: dict[FindingKind, int] = {}
    if orphans := kinds[FindingKind.ORPHAN]:
        keys = [each.blob_key for each in orphans if each.blob_key is not None]
        repaired[FindingKind.ORPHAN] = await queue.delete_orphans(keys)
    if lacking := kinds[FindingKind.WITHOUT_BYTES]:
        repaired[FindingKind.WITHOUT_BYTES] = await queue.change_found(
            EntryChange.GIVE_UP_WITHOUT_BYTES, map(_key, lacking), Selector.all()
        )
    if lost := kinds[FindingKind.LOST_MESSAGES]:
        # Which mails lack one is not known: a mail that has one is only replaced.
        changed = await queue.change_found(EntryChange.REPUBLISH, audited.waiting, Selector.all())
        repaired[FindingKind.LOST_MESSAGES] = min(changed, lost[0].count)
    return repaired


def _keys(objects: DataFrame) -> list[str]:
    return [row.blob_key for row in objects.select("blob_key").collect()]


def _key(line: FindingLine) -> EntryKey:
    assert line.slice_start is not None
    assert line.bucket_id is not None
    assert line.enqueue_id is not None
    return EntryKey(line.slice_start, line.bucket_id, UUID(line.enqueue_id))


def _lacks(closed: ClosedSlice, vanished: Iterable[FindingLine]) -> bool:
    return any(each.slice_start == closed.slice_start for each in vanished)
