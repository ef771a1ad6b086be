# ruff: noqa: S608  # what is put together here are constants of this file; values are always bound
"""Every statement of the view, with the reason for its form.

A partition is (queue, slice_start, bucket_id) in `enqueued_mails` and `deleted_mails` alike.
What is written plainly is stamped as `timestamps` says.
"""

from __future__ import annotations

from datetime import timedelta

from postroad.adapters.cassandra.session import Statement

COUNTING = timedelta(seconds=60)
"""A count reads a whole partition on the server, page by page."""

COUNTED = 10_000
"""Rows of such a page: nothing of it travels."""

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
    "blob_key",
    "size_bytes",
    "header_size",
    "accepted_at",
    "enqueued_at",
    "due_at",
    "held",
    "attempt",
    "last_error",
    "previous",
)
"""What a row says of a turn, in the order in which it is bound."""

TRAIT_COLUMNS = ("domains", "due_at", "held")
"""What a mark repeats of its row."""

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
"""What a mark says of how its turn ended."""

LETTER_COLUMNS = ("queue", "month", "died_at", "reason", "body", "requeued_as", *ROW_COLUMNS)

_KEY = ("queue", "slice_start", "bucket_id", "enqueue_id")
_PARTITION = "queue = ? AND slice_start = ? AND bucket_id = ?"
_TURN = f"{_PARTITION} AND enqueue_id = ?"


def _insert(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join("?" * len(columns))
    return f"INSERT INTO {{keyspace}}.{table} ({', '.join(columns)}) VALUES ({values})"


def _select(table: str, columns: tuple[str, ...], where: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {{keyspace}}.{table} WHERE {where}"


def _count(table: str, where: str) -> str:
    return f"SELECT count(*) AS total, count(held) AS held FROM {{keyspace}}.{table} WHERE {where}"


# Rows

INSERT_ROW = Statement(_insert("enqueued_mails", ("queue", *ROW_COLUMNS)))
"""Plain, since an id is never used twice for different rows; repeating it changes nothing."""

SELECT_ROW = Statement(_select("enqueued_mails", ROW_COLUMNS, _TURN))
"""One row, by its whole key."""

SELECT_ROWS = Statement(
    _select(
        "enqueued_mails",
        (*ROW_COLUMNS, "TTL(mail_id) AS remaining_seconds"),
        f"{_PARTITION} AND enqueue_id > ?",
    ),
    page_size=200,
)
"""A partition in pages that hold some hundred kilobytes even when envelopes are long. Every row has
a mail id, so its time to live is the row's."""

COUNT_ROWS = Statement(_count("enqueued_mails", _PARTITION), COUNTING, COUNTED)
"""On the server, so that a size costs no transfer. `held` is true or absent."""

COUNT_LATER_ROWS = Statement(
    _count("enqueued_mails", f"{_PARTITION} AND due_at > ? ALLOW FILTERING"), COUNTING, COUNTED
)
"""Rows due later. The filtering is within one partition, which is counted anyway."""

DELETE_ROWS = Statement(f"DELETE FROM {{keyspace}}.enqueued_mails WHERE {_PARTITION}")
"""One tombstone for the partition, however many rows it has."""

# Marks

MARK_DELIVERED = Statement(
    _insert(
        "deleted_mails",
        (*_KEY, *TRAIT_COLUMNS, "delivered_at"),
    )
)
"""Plain: the hot path of `done`. It can stand beside an ending, which it never contradicts."""

END = Statement(
    _insert(
        "deleted_mails",
        (*_KEY, *TRAIT_COLUMNS, *MARK_COLUMNS[1:]),
    )
    + " IF NOT EXISTS"
)
"""The first ending wins, and who comes second is told what stood there. Refused also when only
`delivered_at` stands there: the mail is gone."""

SELECT_MARK = Statement(_select("deleted_mails", MARK_COLUMNS, _TURN))
"""The one read that a dequeue costs. Not serial: an ending whose writer was not yet answered may be
missed, as it may come a moment later anyway."""

SELECT_MARKED = Statement(
    _select("deleted_mails", ("enqueue_id", *MARK_COLUMNS), f"{_PARTITION} AND enqueue_id IN ?")
)
"""As `SELECT_MARK`, for several turns of one partition that are dequeued at the same time."""

SELECT_MARKS = Statement(
    _select("deleted_mails", ("enqueue_id", *MARK_COLUMNS), f"{_PARTITION} AND enqueue_id > ?"),
    page_size=500,
)
"""A partition's marks, to be joined with its rows by id."""

COUNT_MARKS = Statement(_count("deleted_mails", _PARTITION), COUNTING, COUNTED)
"""As the rows, from which they are subtracted."""

COUNT_LATER_MARKS = Statement(
    _count("deleted_mails", f"{_PARTITION} AND due_at > ? ALLOW FILTERING"), COUNTING, COUNTED
)
"""As the rows."""

MARK_PUBLISHED = Statement(
    f"UPDATE {{keyspace}}.deleted_mails SET published = true WHERE {_TURN} IF replaced_by = ?"
)
"""A lightweight transaction like the ending it completes: a plain write's timestamp could be older
than the transaction's and be lost."""

CHANGE_SUCCESSOR = Statement(
    "UPDATE {keyspace}.deleted_mails"
    " SET replaced_by = ?, replaced_by_slice = ?, replaced_by_bucket = ?"
    f" WHERE {_TURN} IF replaced_by = ? AND published = false"
)
"""Only one of several finishers gives an unfinished replacement its new successor."""

DELETE_MARKS = Statement(f"DELETE FROM {{keyspace}}.deleted_mails WHERE {_PARTITION}")
"""One tombstone for the partition; written only after its rows are deleted."""

# Claims and delivery records

CLAIM = Statement(
    "INSERT INTO {keyspace}.claims (queue, enqueue_id, owner) VALUES (?, ?, ?)"
    " IF NOT EXISTS USING TTL ?"
)
"""One owner at a time; a claim whose owner died ends by itself."""

RENEW_CLAIM = Statement(
    "UPDATE {keyspace}.claims USING TTL ? SET owner = ? WHERE queue = ? AND enqueue_id = ?"
    " IF owner = ?"
)
"""For its owner only."""

RELEASE_CLAIM = Statement(
    "DELETE FROM {keyspace}.claims WHERE queue = ? AND enqueue_id = ? IF owner = ?"
)
"""Never another owner's, who may have it since this one's ended."""

RECORD = Statement(
    _insert("deliveries", ("queue", "mail_id", "recipient", "outcome", "reply", "recorded_at"))
)
"""Plain: the same recipient has one worker at a time, and its last outcome wins, by the view's
clock: the attempt after a requeue outlives what the requeue wrote."""

SELECT_RECORDS = Statement(
    _select(
        "deliveries", ("recipient", "outcome", "reply", "recorded_at"), "queue = ? AND mail_id = ?"
    )
)
"""All recipients of a mail: one partition."""

# Limits and slices

SELECT_LIMITS = Statement(
    _select("limits", ("incarnation", "browse_start", "content_start"), "queue = ?")
)
"""Both limits in one read; nearly always one row."""

ADVANCE_BROWSE_START = Statement(
    "UPDATE {keyspace}.limits USING TIMESTAMP ? SET browse_start = ?"
    " WHERE queue = ? AND incarnation = ?"
)
"""The write's timestamp is the value's own, in microseconds: the latest value wins, whoever writes
it and whenever, without a lightweight transaction."""

ADVANCE_CONTENT_START = Statement(
    "UPDATE {keyspace}.limits USING TIMESTAMP ? SET content_start = ?"
    " WHERE queue = ? AND incarnation = ?"
)
"""As browse start."""

FORGET_LIMITS = Statement("DELETE FROM {keyspace}.limits WHERE queue = ? AND incarnation = ?")
"""Never the partition: its tombstone, younger than any limit, would swallow the limits of a queue
that is made anew under this name."""

CLOSE_SLICE = Statement(
    _insert(
        "slices", ("queue", "slice_start", "window_seconds", "rows_by_bucket", "live_by_domain")
    )
    + " IF NOT EXISTS"
)
"""The first close stands: it counted what every later reader joins against."""

MARK_DRAINED = Statement(
    "UPDATE {keyspace}.slices SET drained = true WHERE queue = ? AND slice_start = ? IF EXISTS"
)
"""Only on a slice that is there: a plain write would bring back a forgotten one without counts."""

SELECT_SLICES = Statement(
    _select(
        "slices",
        ("slice_start", "window_seconds", "rows_by_bucket", "live_by_domain", "drained"),
        "queue = ? AND slice_start >= ?",
    )
)
"""From a slice on, so that the tombstones of forgotten ones are not read."""

FORGET_SLICE = Statement(
    "DELETE FROM {keyspace}.slices WHERE queue = ? AND slice_start = ? IF EXISTS"
)
"""A lightweight transaction like the writes before it, so that their timestamps are in order."""

# Dead letters

BURY = Statement(_insert("dead_letters", LETTER_COLUMNS))
"""Plain: the same letter again changes nothing. Not a lightweight transaction, for a month is one
partition, and its transactions would wait for one another."""

SELECT_LETTER = Statement(
    _select("dead_letters", LETTER_COLUMNS, "queue = ? AND month = ? AND enqueue_id = ?")
)
"""One letter, to see whether somebody else already gave it a new turn."""

NOTE_MONTH = Statement(_insert("dead_letter_months", ("queue", "month")))
"""Before the letter, so that no letter is ever unlisted."""

SELECT_MONTHS = Statement(_select("dead_letter_months", ("month",), "queue = ?"))
"""In order, for a month is written as year and month with all digits."""

SELECT_LETTERS = Statement(
    _select("dead_letters", LETTER_COLUMNS, "queue = ? AND month = ?"), page_size=200
)
"""One month."""

COUNT_LETTERS = Statement(
    "SELECT count(*) AS count FROM {keyspace}.dead_letters WHERE queue = ? AND month = ?", COUNTING
)
"""On the server, one month."""

SELECT_BURIED_AT = Statement(
    "SELECT writetime(reason) AS written FROM {keyspace}.dead_letters"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""The timestamp of a letter's last writing."""

UNBURY = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ?"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""One letter, as it was last read: whoever buries it anew meanwhile loses nothing, and no clock
that was ahead when it was written keeps it."""

# The whole

PARTITIONS = {
    table: Statement(
        f"SELECT DISTINCT {', '.join(key)} FROM {{keyspace}}.{table}"
        " WHERE queue = ? ALLOW FILTERING",
        COUNTING,
    )
    for table, key in {
        "enqueued_mails": ("queue", "slice_start", "bucket_id"),
        "deleted_mails": ("queue", "slice_start", "bucket_id"),
        "deliveries": ("queue", "mail_id"),
        "dead_letters": ("queue", "month"),
    }.items()
}
"""The partitions that a queue really has, whatever its history says: a scan over partition keys,
for erasing only."""

DELETE_RECORDS = Statement("DELETE FROM {keyspace}.deliveries WHERE queue = ? AND mail_id = ?")
"""One mail's records."""

DELETE_LETTERS = Statement("DELETE FROM {keyspace}.dead_letters WHERE queue = ? AND month = ?")
"""One month's letters."""

ERASE_BY_QUEUE = tuple(
    Statement(f"DELETE FROM {{keyspace}}.{table} WHERE queue = ?")
    for table in ("slices", "dead_letter_months")
)
"""Tables with one partition for each queue."""
