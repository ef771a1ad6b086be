"""The job `trace`: all entries of a mail, or of the mails of an address, from the lake and from the
view, whose lines stand in place of the lake's.

It finds the mails by the few columns that decide, then reads all columns of their entries alone."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Protocol
from uuid import UUID

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.delivery.attempts import OutcomeCount
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.identifiers import moment_of
from postroad.domain.values.instants import optional_instant
from postroad.errors import InvalidInput
from postroad.pipeline.archive.archive import LEEWAY, Versions, near, unarchived, with_view
from postroad.pipeline.archive.planning import Coverage, Stretch
from postroad.pipeline.results.lines import TraceLine
from postroad.pipeline.spark.columns import AddressColumn, is_among
from postroad.pipeline.spark.lake.lake import LakeTables, in_thread, within
from postroad.pipeline.spark.reading import PartitionReader
from postroad.ports.view import View
from postroad.settings.pipeline import AddressKind

FEW = 200
"""Ids that are written into a condition, by which Iceberg leaves files out: it compares no more
with the bounds of a file."""

_MOMENTS = ("accepted_at", "enqueued_at", "due_at", "delivered_at", "ended_at")
_PLAIN = (
    "mail_id", "enqueue_id", "sender", "sender_domain", "size_bytes", "attempt", "state",
    "successor", "seconds",
)  # fmt: skip


def of_mail(identifier: str) -> Column:
    """True if an entry has this mail id, or this enqueue id."""
    return (F.col("mail_id") == identifier) | (F.col("enqueue_id") == identifier)


@dataclass(frozen=True, slots=True)
class TraceSelector:
    """Entries that are asked for. `since`: none of them was queued before; None: it may have been.
    `have_ids_moments`: whether ids tell when entries were queued at the earliest."""

    condition: Column
    since: datetime | None = None
    have_ids_moments: bool = True


def selector_of(
    what: str, kind: AddressKind, key: bytes, *, have_ids_moments: bool = True
) -> TraceSelector:
    """Return what an id or an address asks for. `kind`, `key`: how the lake keeps addresses.
    `have_ids_moments`: not those of an embedded store, whose clock nothing is held against: set
    back, ids go on from where they were. Raises: InvalidInput for what is neither, or not kept."""
    try:
        identifier = UUID(what)
    except ValueError:
        pass
    else:
        since = _since(identifier) if have_ids_moments else None
        return TraceSelector(of_mail(str(identifier)), since, have_ids_moments)
    if kind is AddressKind.NONE:
        raise InvalidInput("the lake keeps no addresses (POSTROAD_PIPELINE_ADDRESSES): give an id")
    if "@" not in what:
        raise InvalidInput(f"{what!r} is neither an id nor an address")
    condition = is_among(what, None if kind is AddressKind.PLAIN else key)
    return TraceSelector(condition, None, have_ids_moments)


class MailEntries(Protocol):
    """Entries beside those of the lake, in whose place they stand."""

    def mails(self, found: TraceSelector) -> set[str]:
        """Return the ids of the mails that have such an entry."""

    def lines(self, mails: Collection[str]) -> list[TraceLine]: ...


def trace(
    entries: Callable[[], DataFrame],
    others: MailEntries | None,
    stretch: Stretch,
    wanted: TraceSelector,
) -> tuple[TraceLine, ...]:
    """Return the entries that were queued in a stretch of time, of every mail that has a wanted one
    among them, mail by mail, the oldest first. `entries` returns those of the lake as it is when it
    is called; it is called last, because what leaves the view meanwhile is in the lake by then."""
    mails = set() if others is None else others.mails(wanted)
    mails |= mails_of(entries(), stretch, wanted)
    if not mails:
        return ()
    newer = [] if others is None else others.lines(mails)
    since = since_of(mails) if wanted.have_ids_moments else None
    archived = lines_of(entries(), stretch, mails, since)
    found = {each.enqueue_id: each for each in (*archived, *newer)}
    return tuple(sorted(found.values(), key=attrgetter("mail_id", "enqueue_id")))


def mails_of(entries: DataFrame, stretch: Stretch, wanted: TraceSelector) -> set[str]:
    """Return the ids of the mails that have a wanted entry in a stretch of time."""
    near = _queued(entries, stretch, wanted.since)
    return {row[0] for row in near.where(wanted.condition).select("mail_id").collect()}


def lines_of(
    entries: DataFrame, stretch: Stretch, mails: Collection[str], since: datetime | None = None
) -> list[TraceLine]:
    """Return the entries of these mails queued in a stretch. `since`: none was before."""
    near = _queued(entries, stretch, since)
    columns = (
        *_PLAIN,
        *("recipients", "domains", "outcomes"),
        *(F.unix_micros(each).alias(each) for each in _MOMENTS),
    )
    return [_line(row) for row in those_of(mails)(near).select(*columns).collect()]


def those_of(mails: Collection[str]) -> Callable[[DataFrame], DataFrame]:
    return partial(_those_of, mails)


def since_of(mails: Collection[str]) -> datetime | None:
    """Return before which moment no entry of these mails was queued, as far as their ids tell."""
    return _since(UUID(min(mails)))


def _those_of(mails: Collection[str], lines: DataFrame) -> DataFrame:
    if len(mails) <= FEW:
        return lines.where(F.col("mail_id").isin(*mails))
    ids = lines.sparkSession.createDataFrame([(each,) for each in mails], "mail_id string")
    return lines.join(F.broadcast(ids), "mail_id", "left_semi")


def _since(identifier: UUID) -> datetime | None:
    try:
        return moment_of(identifier) - LEEWAY
    except OverflowError:  # an id that postroad did not make
        return None


def _queued(entries: DataFrame, stretch: Stretch, since: datetime | None) -> DataFrame:
    first = stretch.first if since is None else max(stretch.first, since)
    return entries.where(within(F.col("enqueued_at"), [Stretch(first, stretch.before)]))


def _line(row: Row) -> TraceLine:
    values: dict[str, Any] = row.asDict()
    values |= {name: optional_instant(row[name]) for name in _MOMENTS}
    values |= {name: tuple(row[name] or ()) for name in ("recipients", "domains")}
    values["outcomes"] = tuple(map(_count, row.outcomes or ()))
    return TraceLine(**values)


def _count(row: Row) -> OutcomeCount:
    reason = None if row.reason is None else BounceClass.known(row.reason)
    kind = OutcomeKind(row.kind)
    return OutcomeCount(row.domain, row.site, kind, row.code, reason, row.words, row["count"])


@dataclass(frozen=True, slots=True)
class ViewTables:
    """The tables of one queue's view, which the session reaches. `reading`: the configurations that
    rows may have been written with."""

    view: View
    reading: Sequence[ViewConfiguration]
    keyspace: str
    queue: str


@dataclass(frozen=True, slots=True)
class UnarchivedEntries:
    """`tracing.MailEntries` of the view, in a stretch of time. `window`: its longest slice's."""

    reader: PartitionReader
    versions: Versions
    stretch: Stretch
    window: timedelta

    def mails(self, found: TraceSelector) -> set[str]:
        versions = self._since(found.since)
        return mails_of(self.reader.rows(versions), self.stretch, found) if versions else set()

    def lines(self, mails: Collection[str]) -> list[TraceLine]:
        versions = self._since(since_of(mails))
        if not versions:
            return []
        return lines_of(self.reader.chosen(versions, those_of(mails)), self.stretch, mails)

    def _since(self, moment: datetime | None) -> Versions:
        first, before = self.stretch
        return near(self.versions, Stretch(max(first, moment or first), before), self.window)


async def unarchived_entries(
    session: SparkSession,
    lake: LakeTables,
    tables: ViewTables,
    kept: AddressColumn,
    coverage: Coverage,
    last: datetime,
) -> tuple[UnarchivedEntries | None, Coverage]:
    """Return the entries that the view has, and the lake has not or has otherwise; and what is
    lacking still. `last`: the latest moment of an entry. Raises: ViewError, JobFailed,
    CredentialsRefused."""
    limits = await tables.view.limits()
    first = limits.content_start or limits.browse_start
    if first is None:
        return None, coverage
    archived = await in_thread(lake.slices, first)
    versions = await unarchived(tables.view, tables.reading, archived, first, last)
    reader = PartitionReader(session, tables.keyspace, tables.queue, kept)
    window = max(each.slice_window for each in tables.reading)
    return (
        UnarchivedEntries(reader, versions, coverage.stretch, window),
        with_view(coverage, limits),
    )
