"""Archived partitions as lines of the lake's table `slices`, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from postroad.domain.queues.entries import PurgeWatermark
from postroad.domain.queues.slices import Partition
from postroad.domain.values.instants import instant, optional_instant
from postroad.pipeline.archive.planning import ArchivedPartition
from postroad.ports.marks import PartitionStamp

_SECOND = timedelta(seconds=1)


def line_of(archived: ArchivedPartition) -> tuple[Any, ...]:
    """Return a partition as a line, in the order of the table's columns."""
    stamp = archived.stamp
    return (
        *archived.partition,
        archived.window // _SECOND,
        _text(stamp.purged),
        None if stamp.watermark is None else stamp.watermark.at,
        _text(stamp.blobs_deleted_through),
        stamp.delivered,
        stamp.ended,
        archived.is_settled,
        archived.is_over,
        archived.is_final,
        archived.rows,
        archived.undecodable,
    )


def archived_of(line: Mapping[str, Any]) -> ArchivedPartition:
    """Return the partition of a line whose moments are in microseconds."""
    purged_at = line["purged_at"]
    return ArchivedPartition(
        Partition(instant(line["slice_start"]), line["bucket_id"]),
        PartitionStamp(
            None
            if purged_at is None
            else PurgeWatermark(UUID(line["purged_through"]), instant(purged_at)),
            _id(line["blobs_deleted_through"]),
            optional_instant(line["last_delivered"]),
            optional_instant(line["last_ended"]),
        ),
        line["window_seconds"] * _SECOND,
        is_settled=line["is_settled"],
        is_over=line["is_over"],
        is_final=line["is_final"],
        rows=line["row_count"],
        undecodable=line["undecodable_count"],
    )


def _text(identifier: UUID | None) -> str | None:
    return None if identifier is None else str(identifier)


def _id(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)
