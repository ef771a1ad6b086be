# ruff: noqa: S608  # what is put together here are constants of this file; values are always bound
"""The statements of the view, with the reason for the form of each; those on marks are in
`mark_statements`. What is written plainly is stamped as `timestamps` says.
"""

from __future__ import annotations

from postroad.adapters.cassandra.cql import (
    AFTER,
    BETWEEN,
    COUNTED,
    COUNTING,
    ENTRY,
    FIRST_PAGE,
    OF_SLICES,
    PAGE,
    PARTITION,
    count,
    insert,
    select,
)
from postroad.adapters.cassandra.session import Statement
from postroad.domain.lifetimes import DEAD_LETTER_MEMORY

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
"""What a row says of an entry, in the order in which it is bound."""

LETTER_COLUMNS = ("queue", "month", "died_at", "reason", "body", "requeued_as", *ROW_COLUMNS)

# Rows

INSERT_ROW = Statement(insert("enqueued_mails", ("queue", *ROW_COLUMNS)), stamped_by_server=True)
"""Plain, since an id is never used twice for different rows; repeating it changes nothing. Stamped
by the coordinator: a partition's deletion swallows what is stamped before it, and the clock of the
writer may have stood still."""

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
"""A partition. Every row has a mail id, so its time to live is the row's."""

SELECT_AS_STORED = Statement(
    select("enqueued_mails", ("JSON *",), ENTRY),
)
"""All columns of one row, those that a newer release added too, as the server writes them out."""

RENEW_ROW = Statement("INSERT INTO {keyspace}.enqueued_mails JSON ? DEFAULT UNSET")
"""What was read as it is stored goes back unchanged; only its lifetime begins anew."""

COUNT_ROWS = Statement(count("enqueued_mails", AFTER), COUNTING, COUNTED)
"""On the server, so that a size costs no transfer. `held` is true or absent."""

COUNT_LATER_ROWS = Statement(
    count("enqueued_mails", f"{AFTER} AND due_at > ? ALLOW FILTERING"), COUNTING, COUNTED
)
"""Rows due later. The filtering is within one partition, which is counted anyway."""

SELECT_BLOB_KEYS = Statement(
    select("enqueued_mails", ("enqueue_id", "blob_key"), BETWEEN), page_size=1000
)
"""The names of the bytes of many rows at once, and nothing else of them."""

SELECT_OCCUPIED = Statement(
    select("enqueued_mails", ("slice_start", "bucket_id"), OF_SLICES) + " PER PARTITION LIMIT 1",
    page_size=1000,
)
"""Which of many partitions have rows. The coordinator reads each of them, most often by a Bloom
filter alone; one by one they would cost a round trip each."""

DELETE_ROWS = Statement(
    f"DELETE FROM {{keyspace}}.enqueued_mails USING TIMESTAMP ? WHERE {PARTITION}"
)
"""One tombstone for the partition, however many rows it has; of what was written before."""

DELETE_ROW = Statement(f"DELETE FROM {{keyspace}}.enqueued_mails USING TIMESTAMP ? WHERE {ENTRY}")
"""One row, for erasing only."""

SELECT_PRESENT = Statement(
    select("enqueued_mails", ("enqueue_id",), f"{PARTITION} AND enqueue_id IN ?")
)
"""Which of some entries have a row."""

SELECT_ROW_IDS = Statement(select("enqueued_mails", ("enqueue_id",), PARTITION), page_size=1000)
"""Which rows an erasure left."""

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
    insert("deliveries", ("queue", "mail_id", "recipient", "outcome", "reply", "recorded_at"))
)
"""Plain: the same recipient has one worker at a time, and its last outcome wins, by the view's
clock: the attempt after a requeue outlives what the requeue wrote."""

SELECT_RECORDS = Statement(
    select(
        "deliveries", ("recipient", "outcome", "reply", "recorded_at"), "queue = ? AND mail_id = ?"
    )
)
"""All recipients of a mail: one partition."""

# Limits and slices

SELECT_LIMITS = Statement(
    select("limits", ("incarnation", "browse_start", "content_start"), "queue = ?")
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
"""The first close stands: it counted what every later reader joins against."""

MARK_DRAINED = Statement(
    "UPDATE {keyspace}.slices SET drained = true WHERE queue = ? AND slice_start = ? IF EXISTS"
)
"""Only on a slice that is there: a plain write would bring back a forgotten one without counts."""

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
"""A lightweight transaction like the writes before it, so that their timestamps are in order."""

# Dead letters

LETTERS = "queue = ? AND month = ? AND enqueue_id > ? AND enqueue_id <= ?"

WRITE_LETTER = Statement(insert("dead_letters", LETTER_COLUMNS))
"""Plain: the same letter again changes nothing. Not a lightweight transaction, for a month is one
partition, and its transactions would wait for one another."""

REWRITE_LETTER = Statement(insert("dead_letters", LETTER_COLUMNS) + " USING TIMESTAMP ?")
"""With the timestamp after the one that was read: a later writing stays, and so does the tombstone
of one."""

SELECT_LETTER = Statement(
    select(
        "dead_letters",
        (*LETTER_COLUMNS, "writetime(reason) AS written"),
        "queue = ? AND month IN ? AND enqueue_id = ?",
    )
)
"""One letter, to see whether another process gave it a new entry already; when it was written.
Beside it the note that it was deleted (`NOTE_GONE`)."""

NOTE_GONE = Statement(
    insert("dead_letters", ("queue", "month", "enqueue_id"))
    + f" USING TTL {round(DEAD_LETTER_MEMORY.total_seconds())}"
)
"""In a month of its own, which no list of months names, so that no reader takes it for a letter.
It needs no tombstone, so a node that was away for long cannot undo it."""

NOTE_MONTH = Statement(insert("dead_letter_months", ("queue", "month")))
"""Before the letter, so that no letter is ever unlisted."""

SELECT_MONTHS = Statement(select("dead_letter_months", ("month",), "queue = ?"))
"""In order, for a month is written as year and month with all digits."""

SELECT_LETTERS = Statement(select("dead_letters", LETTER_COLUMNS, LETTERS), page_size=200)
"""A range of one month."""

COUNT_LETTERS = Statement(
    f"SELECT count(*) AS count FROM {{keyspace}}.dead_letters WHERE {LETTERS}", COUNTING, COUNTED
)
"""On the server, a range of one month."""

SELECT_BURIED_AT = Statement(
    "SELECT writetime(reason) AS written FROM {keyspace}.dead_letters"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""The timestamp of a letter's last writing."""

DELETE_LETTER = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ?"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""One letter, as it was last read, with the timestamp of a `REWRITE_LETTER` that read the same: of
the two the deletion wins. A process that writes the letter anew meanwhile loses nothing, and a
clock that was ahead when the letter was written does not keep it."""

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
    }.items()
}
"""The partitions that a queue really has, whatever its history says: a scan over partition keys,
for erasing only."""

DELETE_RECORDS = Statement("DELETE FROM {keyspace}.deliveries WHERE queue = ? AND mail_id = ?")
"""One mail's records."""

DELETE_LETTERS = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ? WHERE queue = ? AND month = ?"
)
"""One month's letters."""

SELECT_LETTER_IDS = Statement(
    select("dead_letters", ("enqueue_id",), "queue = ? AND month = ?"), page_size=1000
)
"""Which letters an erasure left."""

DELETE_MONTHS = Statement(
    "DELETE FROM {keyspace}.dead_letter_months USING TIMESTAMP ? WHERE queue = ?"
)
"""All months but one that was just noted, which is empty then."""

DELETE_SLICES = Statement("DELETE FROM {keyspace}.slices WHERE queue = ?")
"""All of a queue. One made anew closes none for longer than clocks may be apart."""
