"""The job `trace`: all entries of a mail, or of the mails of an address."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.attempts import OutcomeCount
from postroad.domain.bounces import BounceClass
from postroad.domain.instants import optional_instant
from postroad.domain.mail import OutcomeKind
from postroad.errors import InvalidInput
from postroad.pipeline.addresses import hashed_address
from postroad.pipeline.coverage import Stretch
from postroad.pipeline.lines import TraceLine
from postroad.pipeline.spark.ranges import within
from postroad.settings.pipeline import AddressKind

_MOMENTS = ("accepted_at", "enqueued_at", "due_at", "delivered_at", "ended_at")
_PLAIN = (
    "mail_id", "enqueue_id", "sender", "sender_domain", "size_bytes", "attempt", "state",
    "successor", "seconds",
)  # fmt: skip


def of_mail(identifier: str) -> Column:
    """Whether an entry has this mail id, or this enqueue id."""
    return (F.col("mail_id") == identifier) | (F.col("enqueue_id") == identifier)


def of_address(kept: str) -> Column:
    """Whether an entry is of a mail from or to this address, as the lake keeps it."""
    return (F.col("sender") == kept) | F.array_contains("recipients", kept)


def wanted_by(what: str, kind: AddressKind, key: bytes) -> Column:
    """Return the condition of an entry that is asked for by an id or an address. `kind`, `key`: how
    the lake keeps addresses. Raises: InvalidInput for what is neither, or not kept."""
    try:
        return of_mail(str(UUID(what)))
    except ValueError:
        pass
    if kind is AddressKind.NONE:
        raise InvalidInput("the lake keeps no addresses (POSTROAD_PIPELINE_ADDRESSES): give an id")
    if "@" not in what:
        raise InvalidInput(f"{what!r} is neither an id nor an address")
    return of_address(what if kind is AddressKind.PLAIN else hashed_address(what, key))


def trace(entries: DataFrame, stretch: Stretch, wanted: Column) -> tuple[TraceLine, ...]:
    """Return the entries that were queued in a stretch of time, of every mail that has a wanted one
    among them, mail by mail, the oldest first."""
    near = entries.where(within(F.col("enqueued_at"), [stretch]))
    mails = near.where(wanted).select("mail_id").distinct()
    found = near.join(mails, "mail_id", "left_semi").select(
        *_PLAIN,
        "recipients",
        "domains",
        "outcomes",
        *(F.unix_micros(each).alias(each) for each in _MOMENTS),
    )
    return tuple(map(_line, found.orderBy("mail_id", "enqueue_id").collect()))


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
