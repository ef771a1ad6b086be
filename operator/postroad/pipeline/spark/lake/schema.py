"""The tables of the lake: their columns, and the version of what these mean. Source: ADR 0047."""

from collections.abc import Mapping
from typing import NamedTuple

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning, or goes. A new column changes nothing of the others."""

VERSION_PROPERTY = "postroad.schema-version"
FOLDER_PROPERTY = "postroad.folder"
"""The folder of the queue's lake, by which a catalog tells queues apart."""

OUTCOMES = (
    "array<struct<domain:string,site:string,kind:string,code:int,reason:string,words:string,"
    "count:int>>"
)
"""`domain.attempts.OutcomeCount`, as a type of Spark."""

Columns = Mapping[str, tuple[str, str]]
"""Name → type of Spark, and meaning."""

_PLACE: Columns = {
    "slice_start": ("timestamp", "start of the slice"),
    "bucket_id": ("int", "bucket of the slice"),
}


class LakeTable(NamedTuple):
    """Columns; the transform by whose values Iceberg cuts the files, empty: not cut; the columns of
    which it keeps no bounds."""

    columns: Columns
    cut_by: str = ""
    unbounded: tuple[str, ...] = ()

    @property
    def schema(self) -> str:
        """The columns as Spark reads a schema."""
        return ", ".join(f"{name} {kind}" for name, (kind, _) in self.columns.items())


ENTRIES = LakeTable(
    {
        **_PLACE,
        "enqueue_id": ("string", "id of the entry"),
        "mail_id": ("string", "id of its mail, the same in all entries of the mail"),
        "sender": ("string", "reverse-path by the setting for addresses; empty: the null one"),
        "sender_domain": ("string", "its domain; empty: none"),
        "recipients": ("array<string>", "those left, by the setting for addresses"),
        "recipient_count": ("int", "their number"),
        "domains": ("array<string>", "their domains, each once, sorted"),
        "domain_counts": ("array<int>", "how many recipients each of the domains has"),
        "size_bytes": ("bigint", "size of the content"),
        "attempt": ("int", "attempts that were made before this entry"),
        "held": ("boolean", "whether the entry was held"),
        "accepted_at": ("timestamp", "acceptance of the mail"),
        "enqueued_at": ("timestamp", "when the entry was made"),
        "due_at": ("timestamp", "until when it was delayed; null: due at once"),
        "state": ("string", "what became of it: waiting, delivered or its ending"),
        "is_final": ("boolean", "whether nothing more comes of it"),
        "delivered_at": ("timestamp", "end of the delivery; null: none"),
        "ending": ("string", "ending; null: none"),
        "ended_at": ("timestamp", "when it was written, or the purge"),
        "successor": ("string", "id of the entry that replaced it"),
        "outcomes": (OUTCOMES, "outcomes of the attempt that ended it, counted; null: not kept"),
        "seconds": ("float", "duration of that attempt"),
    },
    cut_by="hours(slice_start)",
    unbounded=("sender", "recipients.element"),
)

SLICES = LakeTable(
    {
        **_PLACE,
        "window_seconds": ("bigint", "length of the slice"),
        "purged_through": ("string", "version: id of the purge watermark"),
        "purged_at": ("timestamp", "version: moment of the purge"),
        "blobs_deleted_through": ("string", "version: up to which id the purged blobs are deleted"),
        "last_delivered": ("timestamp", "version: when a delivery was last written"),
        "last_ended": ("timestamp", "version: when another ending was last written"),
        "is_settled": ("boolean", "the entries are the same while the version is"),
        "is_over": ("boolean", "each entry had a final mark"),
        "is_final": ("boolean", "not read again"),
        "row_count": ("bigint", "rows that were read"),
        "undecodable_count": ("bigint", "those of them that are in no table: undecodable"),
    },
    cut_by="days(slice_start)",
)

GAPS = LakeTable(
    {
        "first": ("timestamp", "first slice start that is missing"),
        "before": ("timestamp", "slice start before which the gap ends"),
        "reason": ("string", "`cleaned`: cleanup came before the archive"),
    }
)

RUNS = LakeTable(
    {
        "run_id": ("string", "id of the run"),
        "job": ("string", "what ran"),
        "began_at": ("timestamp", "begin"),
        "ended_at": ("timestamp", "end of what it read and wrote"),
        "release": ("string", "release of postroad"),
        "counts": ("map<string,bigint>", "what it read and wrote, by name"),
    }
)

LAKE_TABLES: Mapping[str, LakeTable] = {
    "entries": ENTRIES,
    "slices": SLICES,
    "gaps": GAPS,
    "runs": RUNS,
}

PARTS = LakeTable(
    {
        "mail_id": ("string", "id of the mail; empty: about a segment"),
        "entry_number": ("int", "which envelope of the mail it is about"),
        "kind": ("string", "what it is: envelope, outcomes, finish, segment"),
        "salt": ("string", "names the segment that has it"),
        "since": ("timestamp", "when this segment was begun"),
        "place": ("string", "lane and position of an envelope"),
        "before": ("string", "place of the envelope before it, or that ended; null: none"),
        **{
            name: ENTRIES.columns[name]
            for name in (
                *("enqueue_id", "sender", "sender_domain", "recipients", "domains"),
                *("domain_counts", "size_bytes", "attempt", "held"),
            )
        },
        "is_dead": ("boolean", "whether it is the envelope of a dead letter"),
        **{
            name: ENTRIES.columns[name]
            for name in ("accepted_at", "enqueued_at", "due_at", "outcomes", "seconds")
        },
        "at": ("timestamp", "end of the attempt"),
        "is_removed": ("boolean", "whether the mail was removed; else it was delivered"),
        "end": ("bigint", "offset up to which the segment was read"),
    },
    unbounded=("sender", "recipients.element"),
)

STORE_TABLES: Mapping[str, LakeTable] = {**LAKE_TABLES, "parts": PARTS}
"""Those of the lake of an embedded queue."""
