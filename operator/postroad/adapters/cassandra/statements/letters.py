# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound
"""The statements on dead letters, with the reason for the form of each."""

from __future__ import annotations

from postroad.adapters.cassandra.connection.session import Statement
from postroad.adapters.cassandra.statements.cql import COUNTED, COUNTING, insert, select
from postroad.adapters.cassandra.statements.entries import ROW_COLUMNS
from postroad.domain.queues.lifetimes import DEAD_LETTER_MEMORY

LETTER_COLUMNS = ("queue", "month", "died_at", "reason", "body", "requeued_as", *ROW_COLUMNS)

LETTERS = "queue = ? AND month = ? AND enqueue_id > ? AND enqueue_id <= ?"

WRITE_LETTER = Statement(insert("dead_letters", LETTER_COLUMNS))
"""Plain, because the same letter again changes nothing, and lightweight transactions on a month,
which is one partition, would wait for one another."""

REWRITE_LETTER = Statement(insert("dead_letters", LETTER_COLUMNS) + " USING TIMESTAMP ?")
"""With the timestamp after the one that was read: a later letter stays, and so does the tombstone
of one."""

SELECT_LETTER = Statement(
    select(
        "dead_letters",
        (*LETTER_COLUMNS, "writetime(reason) AS written"),
        "queue = ? AND month IN ? AND enqueue_id = ?",
    )
)
"""One letter, with the entry that another process may have given it and its write time, and the
note that it was deleted (`NOTE_GONE`)."""

NOTE_GONE = Statement(
    insert("dead_letters", ("queue", "month", "enqueue_id"))
    + f" USING TTL {round(DEAD_LETTER_MEMORY.total_seconds())}"
)
"""In a month of its own, which no list of months has, so that no reader takes it for a letter. A
row and no tombstone, so that a node that was away for long cannot undo it."""

NOTE_MONTH = Statement(insert("dead_letter_months", ("queue", "month")))
"""Written before the letter, so that every letter is listed."""

SELECT_MONTHS = Statement(select("dead_letter_months", ("month",), "queue = ?"))
"""In order of time, because a month is text with all digits (2026-01)."""

SELECT_LETTERS = Statement(select("dead_letters", LETTER_COLUMNS, LETTERS), page_size=200)
"""A range of one month."""

COUNT_LETTERS = Statement(
    f"SELECT count(*) AS count FROM {{keyspace}}.dead_letters WHERE {LETTERS}", COUNTING, COUNTED
)
"""Counted on the server, in a range of one month."""

SELECT_WRITTEN_AT = Statement(
    "SELECT writetime(reason) AS written FROM {keyspace}.dead_letters"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""The timestamp of a letter's last write."""

DELETE_LETTER = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ?"
    " WHERE queue = ? AND month = ? AND enqueue_id = ?"
)
"""One letter, as it was last read, with the timestamp of a `REWRITE_LETTER` that read the same: of
the two the deletion wins. A process that writes the letter anew meanwhile loses nothing, and a
clock that was ahead when the letter was written does not keep it."""

# Erasing

DELETE_LETTERS_THROUGH = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ?"
    " WHERE queue = ? AND month = ? AND enqueue_id <= ?"
)
"""The first letters of a month."""

DELETE_LETTERS = Statement(
    "DELETE FROM {keyspace}.dead_letters USING TIMESTAMP ? WHERE queue = ? AND month = ?"
)
"""One month's letters."""

SELECT_LETTER_IDS = Statement(
    select("dead_letters", ("enqueue_id",), "queue = ? AND month = ?"), page_size=1000
)
"""The letters that an erasure left."""

DELETE_MONTHS = Statement(
    "DELETE FROM {keyspace}.dead_letter_months USING TIMESTAMP ? WHERE queue = ?"
)
"""All months with earlier timestamps; one that was noted just now has no letters yet."""
