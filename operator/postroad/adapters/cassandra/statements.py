"""The statements of the view but those on marks (`mark_statements`), with the reason for the form
of each. Plain writes have the timestamps of `clocks`.

A partition is (queue, slice_start, bucket_id) in `enqueued_mails` and `deleted_mails` alike."""

from datetime import timedelta

from postroad.adapters.cassandra.session import Statement
from postroad.domain.queues.lifetimes import DEAD_LETTER_MEMORY

# ruff: noqa: S608  # the statements are built from constants; values are always bound


COUNTING = timedelta(seconds=60)
"""A count reads a whole partition on the server, page by page."""

COUNTED = 10_000
"""Rows of such a page, which the server does not send."""

PAGE = 500
"""Rows or marks of a page: a megabyte when every mail has dozens of recipients. Larger pages save
little on either side."""

FIRST_PAGE = 100
"""Enough for a reader of the head of a queue."""

KEY = ("queue", "slice_start", "bucket_id", "enqueue_id")
PARTITION = "queue = ? AND slice_start = ? AND bucket_id = ?"
OF_SLICES = "queue = ? AND slice_start IN ? AND bucket_id IN ?"
ENTRY = f"{PARTITION} AND enqueue_id = ?"
AFTER = f"{PARTITION} AND enqueue_id > ?"
BETWEEN = f"{PARTITION} AND enqueue_id > ? AND enqueue_id <= ?"


def insert(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join("?" * len(columns))
    return f"INSERT INTO {{keyspace}}.{table} ({', '.join(columns)}) VALUES ({values})"


def select(table: str, columns: tuple[str, ...], where: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {{keyspace}}.{table} WHERE {where}"


def count(table: str, where: str, more: str = "") -> str:
    """Return a SELECT that counts rows and held ones: `held` is true or absent."""
    counted = f"count(*) AS total, count(held) AS held{more}"
    return f"SELECT {counted} FROM {{keyspace}}.{table} WHERE {where}"


# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound


ROW_COLUMNS = (
    "slice_start",
    "bucket_id",
    "enqueue_id",
    "mail_id",
    "name",
    "sender",
    "recipients",
    "attributes",
    "origin_host",
    "origin_address",
    "origin_protocol",
    "dsn_ret",
    "dsn_envid",
    "dsn_recipients",
    "priority",
    "shape",
    "blob_key",
    "size_bytes",
    "accepted_at",
    "enqueued_at",
    "due_at",
    "held",
    "attempt",
    "last_error",
    "previous",
)
"""A row's columns, in the order in which they are bound."""

# Rows

INSERT_ROW = Statement(insert("enqueued_mails", ("queue", *ROW_COLUMNS)), stamped_by_server=True)
"""Plain, because an id has one row only, and a repetition changes nothing. With the coordinator's
timestamp: a partition's deletion covers rows with earlier ones, and the writer may have been
paused."""

SELECT_ROW = Statement(select("enqueued_mails", ROW_COLUMNS, ENTRY))
"""One row, by its whole key."""

SELECT_ROWS = Statement(
    select(
        "enqueued_mails",
        (*ROW_COLUMNS, "TTL(mail_id) AS remaining_seconds"),
        AFTER,
    ),
    page_size=PAGE,
    first_page=FIRST_PAGE,
)
"""A partition. Every row has a mail id, so that column's time to live is the row's."""

SELECT_AS_STORED = Statement(
    select("enqueued_mails", ("JSON *",), ENTRY),
)
"""All columns of one row as JSON, those that a newer release added too."""

RENEW_ROW = Statement("INSERT INTO {keyspace}.enqueued_mails JSON ? DEFAULT UNSET")
"""Writes what SELECT_AS_STORED read, so that the row's lifetime begins anew."""

COUNT_ROWS = Statement(count("enqueued_mails", AFTER), COUNTING, COUNTED)
"""Counted on the server, so that a size costs no transfer. `held` is true or absent."""

COUNT_LATER_ROWS = Statement(
    count("enqueued_mails", f"{AFTER} AND due_at > ? ALLOW FILTERING"), COUNTING, COUNTED
)
"""Rows due later. The filtering is within one partition, which is counted anyway."""

SELECT_BLOB_KEYS = Statement(
    select("enqueued_mails", ("enqueue_id", "blob_key"), BETWEEN), page_size=1000
)
"""The blob keys of many rows, without their other columns."""

SELECT_OCCUPIED = Statement(
    select("enqueued_mails", ("slice_start", "bucket_id"), OF_SLICES) + " PER PARTITION LIMIT 1",
    page_size=1000,
)
"""The ones of many partitions that have rows, in one round trip. The coordinator reads each of
them, mostly by a Bloom filter alone."""

DELETE_ROWS = Statement(
    f"DELETE FROM {{keyspace}}.enqueued_mails USING TIMESTAMP ? WHERE {PARTITION}"
)
"""One tombstone for the partition's rows with earlier timestamps, however many."""

DELETE_ROW = Statement(f"DELETE FROM {{keyspace}}.enqueued_mails USING TIMESTAMP ? WHERE {ENTRY}")
"""One row, for erasing only."""

SELECT_PRESENT = Statement(
    select("enqueued_mails", ("enqueue_id",), f"{PARTITION} AND enqueue_id IN ?")
)
"""The ones of some entries that have a row."""

SELECT_ROW_IDS = Statement(select("enqueued_mails", ("enqueue_id",), PARTITION), page_size=1000)
"""The rows that an erasure left."""

# Claims and delivery records

CLAIM = Statement(
    "UPDATE {keyspace}.claims USING TTL ? SET owner = ? WHERE queue = ? AND enqueue_id = ?"
    " IF owner = null"
)
"""One owner at a time. The claim of an owner that died expires. An INSERT would also make a marker
of the row, which outlives the owner by hours where a host with a clock that is ahead writes it."""

RENEW_CLAIM = Statement(
    "UPDATE {keyspace}.claims USING TTL ? SET owner = ? WHERE queue = ? AND enqueue_id = ?"
    " IF owner = ?"
)
"""For its owner only."""

RELEASE_CLAIM = Statement(
    "DELETE FROM {keyspace}.claims WHERE queue = ? AND enqueue_id = ? IF owner = ?"
)
"""For its owner only: after this one's claim expired, another process may have it."""

RECORD = Statement(
    insert("deliveries", ("queue", "mail_id", "recipient", "outcome", "reply", "recorded_at"))
)
"""Plain: a recipient has one worker at a time, and its last outcome wins by the view's time, so
that an attempt after a requeue replaces what the requeue wrote."""

SELECT_RECORDS = Statement(
    select(
        "deliveries", ("recipient", "outcome", "reply", "recorded_at"), "queue = ? AND mail_id = ?"
    )
)
"""All recipients of a mail: one partition."""

# Limits and slices

SELECT_LIMITS = Statement(
    select(
        "limits",
        ("incarnation", "browse_start", "content_start", "archived_through"),
        "queue = ?",
    )
)
"""Of all incarnations: nearly always one row."""

ADVANCE_BROWSE_START = Statement(
    "UPDATE {keyspace}.limits USING TIMESTAMP ? SET browse_start = ?"
    " WHERE queue = ? AND incarnation = ?"
)
"""The timestamp is the value itself, in microseconds: of all writers' values the latest wins,
without a lightweight transaction."""

ADVANCE_CONTENT_START = Statement(
    "UPDATE {keyspace}.limits USING TIMESTAMP ? SET content_start = ?"
    " WHERE queue = ? AND incarnation = ?"
)
"""As browse start."""

ADVANCE_ARCHIVED_THROUGH = Statement(
    "UPDATE {keyspace}.limits USING TIMESTAMP ? SET archived_through = ?"
    " WHERE queue = ? AND incarnation = ?"
)
"""As browse start."""

FORGET_LIMITS = Statement("DELETE FROM {keyspace}.limits WHERE queue = ? AND incarnation = ?")
"""Not the partition: its tombstone, younger than any limit, would cover the limits of a queue that
is created anew under this name."""

SELECT_OWNERSHIP = Statement(select("ownership", ("incarnation", "as_of"), "queue = ?"))
"""Of all incarnations: nearly always one row."""

RAISE_AS_OF = Statement(
    "UPDATE {keyspace}.ownership USING TIMESTAMP ? SET as_of = ?"
    " WHERE queue = ? AND incarnation = ?"
)
"""As browse start."""

FORGET_OWNERSHIP = Statement("DELETE FROM {keyspace}.ownership WHERE queue = ? AND incarnation = ?")
"""As the limits."""

CLOSE_SLICE = Statement(
    insert("slices", ("queue", "slice_start", "window_seconds", "rows_by_bucket"))
    + " IF NOT EXISTS"
)
"""The first close wins, because later readers join against its counts."""

MARK_DRAINED = Statement(
    "UPDATE {keyspace}.slices SET drained = true WHERE queue = ? AND slice_start = ? IF EXISTS"
)
"""Only if the slice exists: a plain write would bring back a forgotten one without counts."""

SELECT_SLICES = Statement(
    select(
        "slices",
        ("slice_start", "window_seconds", "rows_by_bucket", "drained"),
        "queue = ? AND slice_start >= ?",
    )
)
"""From a slice on, so that the tombstones of forgotten ones are not read."""

FORGET_SLICE = Statement(
    "DELETE FROM {keyspace}.slices WHERE queue = ? AND slice_start = ? IF EXISTS"
)
"""A lightweight transaction, as the writes before it are, so that their timestamps are in order."""

# The whole

SELECT_MAILS = Statement(
    select("enqueued_mails", ("enqueue_id", "mail_id"), PARTITION), page_size=1000
)
"""The mails of a partition, whose delivery records go with their rows."""

DELETE_ROWS_THROUGH = Statement(
    f"DELETE FROM {{keyspace}}.enqueued_mails USING TIMESTAMP ?"
    f" WHERE {PARTITION} AND enqueue_id <= ?"
)
"""One tombstone for the first rows of a partition, as `DELETE_ROWS`."""

SELECT_RECORDED = Statement(
    select("deliveries", ("mail_id",), "queue = ? AND mail_id IN ?") + " PER PARTITION LIMIT 1",
    page_size=1000,
)
"""The ones of many mails that have delivery records, as `SELECT_OCCUPIED`."""

DELETE_RECORDS = Statement("DELETE FROM {keyspace}.deliveries WHERE queue = ? AND mail_id = ?")
"""One mail's records."""

DELETE_SLICES = Statement("DELETE FROM {keyspace}.slices WHERE queue = ?")
"""All of a queue. No timestamp: a queue that is created anew closes no slice for longer than clocks
differ."""

SELECT_KEYSPACE_EVENTS = Statement(
    "SELECT sequence, document FROM {keyspace}.configuration_events WHERE queue = ?"
)
"""Facts recorded of a keyspace, its home or its claims, in place of a queue's history."""

APPEND_KEYSPACE_EVENT = Statement(
    "INSERT INTO {keyspace}.configuration_events (queue, sequence, type, at, document)"
    " VALUES (?, ?, ?, ?, ?) IF NOT EXISTS",
    everywhere=True,
)
"""Decided by all data centers, because each could record itself otherwise."""


# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound


DEAD_LETTER_COLUMNS = ("queue", "month", "died_at", "reason", "body", "requeued_as", *ROW_COLUMNS)

DEAD_LETTERS = "queue = ? AND month = ? AND enqueue_id > ? AND enqueue_id <= ?"

WRITE_DEAD_LETTER = Statement(insert("dead_letters", DEAD_LETTER_COLUMNS))
"""Plain, because the same dead letter again changes nothing, and lightweight transactions on a
month, which is one partition, would wait for one another."""

REWRITE_DEAD_LETTER = Statement(insert("dead_letters", DEAD_LETTER_COLUMNS) + " USING TIMESTAMP ?")
"""With the timestamp after the one that was read: a later dead letter stays, and so does the
tombstone of one."""

SELECT_DEAD_LETTER = Statement(
    select(
        "dead_letters",
        (*DEAD_LETTER_COLUMNS, "writetime(reason) AS written"),
        "queue = ? AND month IN ? AND enqueue_id = ?",
    )
)
"""One dead letter, with the entry that another process may have given it and its write time, and
the note that it was deleted (`NOTE_GONE`)."""

NOTE_GONE = Statement(
    insert("dead_letters", ("queue", "month", "enqueue_id"))
    + f" USING TTL {round(DEAD_LETTER_MEMORY.total_seconds())}"
)
"""In a month of its own, which no list of months has, so that no reader takes it for a dead letter.
A row and no tombstone, so that a node that was away for long cannot undo it."""

NOTE_MONTH = Statement(insert("dead_letter_months", ("queue", "month")))
"""Written before the dead letter, so that every dead letter is listed."""

SELECT_MONTHS = Statement(select("dead_letter_months", ("month",), "queue = ?"))
"""In order of time, because a month is text with all digits (2026-01)."""

SELECT_DEAD_LETTERS = Statement(
    select("dead_letters", DEAD_LETTER_COLUMNS, DEAD_LETTERS), page_size=200
)
"""A range of one month."""

COUNT_DEAD_LETTERS = Statement(
    f"SELECT count(*) AS count FROM {{keyspace}}.dead_letters WHERE {DEAD_LETTERS}",
    COUNTING,
    COUNTED,
)
"""Counted on the server, in a range of one month."""

SELECT_WRITTEN_AT = Statement(
    "SELECT writetime(reason) AS written FROM {keyspace}.dead_letters"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""The timestamp of a dead letter's last write."""

DELETE_DEAD_LETTER = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ?"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""One dead letter, as it was last read, with the timestamp of a `REWRITE_DEAD_LETTER` that read the
same: of the two the deletion wins. A process that writes the dead letter anew meanwhile loses
nothing, and a clock that was ahead when the dead letter was written does not keep it."""

# Erasing

DELETE_DEAD_LETTERS_THROUGH = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ?"
    " WHERE queue = ? AND month = ? AND enqueue_id <= ?"
)
"""The first dead letters of a month."""

DELETE_DEAD_LETTERS = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ? WHERE queue = ? AND month = ?"
)
"""One month's dead letters."""

SELECT_DEAD_LETTER_IDS = Statement(
    select("dead_letters", ("enqueue_id",), "queue = ? AND month = ?"), page_size=1000
)
"""The dead letters that an erasure left."""

DELETE_MONTHS = Statement(
    "DELETE FROM {keyspace}.dead_letter_months USING TIMESTAMP ? WHERE queue = ?"
)
"""All months with earlier timestamps; one that was noted just now has no dead letters yet."""
