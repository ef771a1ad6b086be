"""The statements on marks, with the reason for the form of each.

A purge's watermark is in static columns, so that the condition of a lightweight transaction on any
mark of the partition reads it. A read of marks by id returns static columns only beside a row that
exists, so a watermark also has a row of its own, under an id after all others."""

from postroad.adapters.cassandra.session import Statement
from postroad.adapters.cassandra.statements import (
    AFTER,
    BETWEEN,
    COUNTED,
    COUNTING,
    ENTRY,
    FIRST_PAGE,
    KEY,
    OF_SLICES,
    PAGE,
    PARTITION,
    count,
    select,
)
from postroad.domain.values.identifiers import LAST

# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound


WATERMARK_ID = LAST
"""The id of a watermark's own row."""

TRAIT_COLUMNS = ("domains", "due_at", "held")
"""Values that a mark repeats of its row."""

MARK_COLUMNS = (
    "delivered_at",
    "ending",
    "ended_at",
    "replaced_by",
    "replaced_by_slice",
    "replaced_by_bucket",
    "published",
    "remaining",
    "new_due_at",
    "new_held",
    "new_attempt",
    "new_last_error",
    "new_previous",
)
"""The way in which the entry ended."""

OUTCOME_COLUMNS = ("outcomes", "seconds")
"""Facts of the attempt that the mark ends. No read of marks selects them, because no decision
depends on them."""

WATERMARK_COLUMNS = ("purged_through", "purged_at")
"""The point to which a partition was purged, and when."""

_OWN = f"{AFTER} AND enqueue_id < {WATERMARK_ID}"

# Marks


def _mark_delivered(columns: tuple[str, ...]) -> str:
    named = (*KEY, *TRAIT_COLUMNS, "delivered_at", *columns)
    return (
        f"INSERT INTO {{keyspace}}.deleted_mails ({', '.join(named)}, was_delivered)"
        f" VALUES ({', '.join('?' * len(named))}, true)"
    )


def _end(columns: tuple[str, ...]) -> str:
    named = (*TRAIT_COLUMNS, *MARK_COLUMNS[1:], *columns)
    return (
        f"UPDATE {{keyspace}}.deleted_mails SET {', '.join(f'{each} = ?' for each in named)},"
        f" was_ended = true WHERE {ENTRY}"
        " IF ending = null AND delivered_at = null AND purged_through = ?"
    )


MARK_DELIVERED = Statement(_mark_delivered(()))
"""Plain: the hot path of `done`. It can stand beside an ending without contradicting it."""

MARK_DELIVERED_KEEPING = Statement(_mark_delivered(OUTCOME_COLUMNS))
"""The same, with what is kept of the attempt."""

END = Statement(_end(()))
"""The first ending wins. Refused also where only `delivered_at` is set, because the mail is
delivered; and after a watermark that the caller does not know, because it may have ended the
entry."""

END_KEEPING = Statement(_end(OUTCOME_COLUMNS))
"""The same, with what is kept of the attempt. Where two consumers attempted an entry, and one
ending stands beside a delivery, the outcomes are those of either: one is a transaction's write."""

SELECT_MARK = Statement(
    select(
        "deleted_mails",
        ("enqueue_id", *MARK_COLUMNS, *WATERMARK_COLUMNS),
        f"{PARTITION} AND enqueue_id IN (?, {WATERMARK_ID})",
    )
)
"""The one read of a dequeue. Not serial: it may miss an ending whose writer has no answer yet,
which may as well come a moment later."""

SELECT_MARKED = Statement(
    select(
        "deleted_mails",
        ("enqueue_id", *MARK_COLUMNS, *WATERMARK_COLUMNS),
        f"{PARTITION} AND enqueue_id IN ?",
    )
)
"""As `SELECT_MARK`, for several entries of one partition that are dequeued at the same time."""

SELECT_MARKS = Statement(
    select("deleted_mails", ("enqueue_id", *MARK_COLUMNS), _OWN),
    page_size=PAGE,
    first_page=FIRST_PAGE,
)
"""A partition's marks, to be joined with its rows by id."""

SELECT_MARKED_IDS = Statement(
    select("deleted_mails", ("enqueue_id", "published"), BETWEEN), page_size=2000
)
"""The entries that have a mark, and which of them are being replaced (`published` is false only
there). Filtered here, because the server would read the whole partition for one answer.
`through` is before a watermark's own row."""

SELECT_VERSION = Statement(
    select(
        "deleted_mails",
        (
            *WATERMARK_COLUMNS,
            "swept_through",
            "writetime(was_delivered) AS delivered",
            "writetime(was_ended) AS ended",
        ),
        PARTITION,
    )
    + " LIMIT 1"
)
"""Static columns only. Of the last two only the write times count. They cannot be compared with
each other, because plain writes set the one and lightweight transactions the other."""

COUNT_MARKS = Statement(
    count("deleted_mails", _OWN, ", count(seconds) AS attempted"), COUNTING, COUNTED
)
"""As `COUNT_ROWS`, from which this is subtracted. A mark has `seconds` with the outcomes of an
attempt, and none otherwise."""

COUNT_LATER_MARKS = Statement(
    count("deleted_mails", f"{_OWN} AND due_at > ? ALLOW FILTERING"), COUNTING, COUNTED
)
"""As `COUNT_LATER_ROWS`."""

SELECT_WITHDRAWN = Statement(
    select(
        "deleted_mails",
        ("enqueue_id", *TRAIT_COLUMNS),
        f"{_OWN} AND ending = 'withdrawn' ALLOW FILTERING",
    ),
    COUNTING,
    page_size=PAGE,
)
"""Few of a partition, which is counted anyway. Sent only where entries ended otherwise than by
delivery."""

SELECT_UNFINISHED = Statement(
    select(
        "deleted_mails",
        ("enqueue_id", *TRAIT_COLUMNS, *MARK_COLUMNS),
        f"{_OWN} AND published = false ALLOW FILTERING",
    ),
    COUNTING,
    page_size=PAGE,
)
"""As `SELECT_WITHDRAWN`. `published` is false only of replacements under way."""

SET_WATERMARK = Statement(
    "UPDATE {keyspace}.deleted_mails SET purged_through = ?, purged_at = ?, ended_at = ?"
    f" WHERE {PARTITION} AND enqueue_id = {WATERMARK_ID} IF purged_through = ?"
)
"""A lightweight transaction, as all endings are, so that it is before or after each of them.
`ended_at` creates the watermark's own row."""

MARK_BLOBS_DELETED = Statement(
    f"UPDATE {{keyspace}}.deleted_mails SET swept_through = ? WHERE {PARTITION}"
)
"""Plain: each writer has deleted all bytes up to a watermark that was set. If the older of two is
written last, maintenance deletes some bytes again."""

MARK_PUBLISHED = Statement(
    f"UPDATE {{keyspace}}.deleted_mails SET published = true WHERE {ENTRY} IF replaced_by = ?"
)
"""A lightweight transaction, as the ending that it completes is: a plain write could have an older
timestamp and be lost."""

CHANGE_SUCCESSOR = Statement(
    "UPDATE {keyspace}.deleted_mails"
    " SET replaced_by = ?, replaced_by_slice = ?, replaced_by_bucket = ?, new_previous = ?"
    f" WHERE {ENTRY} IF replaced_by = ? AND published = false"
)
"""Only one of several processes gives an unfinished replacement its new successor."""

DELETE_MARKS = Statement(f"DELETE FROM {{keyspace}}.deleted_mails WHERE {PARTITION}")
"""One tombstone for the partition; written only after its rows are deleted."""

ERASE_MARKS = Statement(
    f"DELETE FROM {{keyspace}}.deleted_mails USING TIMESTAMP ? WHERE {PARTITION}"
)
"""As `DELETE_MARKS`, for marks with earlier timestamps."""

DELETE_MARK = Statement(f"DELETE FROM {{keyspace}}.deleted_mails USING TIMESTAMP ? WHERE {ENTRY}")
"""One mark, or a watermark's own row; for erasing only."""

DELETE_VERSION = Statement(
    f"DELETE {', '.join(WATERMARK_COLUMNS)}, swept_through, was_delivered, was_ended"
    f" FROM {{keyspace}}.deleted_mails WHERE {PARTITION}"
)
"""The static columns, for erasing only."""

SELECT_OCCUPIED_MARKS = Statement(
    select("deleted_mails", ("slice_start", "bucket_id"), OF_SLICES) + " PER PARTITION LIMIT 1",
    page_size=1000,
)
"""The ones of many partitions that have marks; for erasing only: an entry that was withdrawn may
have a mark and no row."""

SELECT_MARK_IDS = Statement(select("deleted_mails", ("enqueue_id",), PARTITION), page_size=1000)
"""The marks that an erasure left."""
