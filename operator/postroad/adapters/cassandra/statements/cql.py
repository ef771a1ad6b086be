# ruff: noqa: S608  # the statements are built from constants; values are always bound
"""The parts of the statements.

A partition is (queue, slice_start, bucket_id) in `enqueued_mails` and `deleted_mails` alike.
"""

from __future__ import annotations

from datetime import timedelta

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
    """Return an INSERT of these columns."""
    values = ", ".join("?" * len(columns))
    return f"INSERT INTO {{keyspace}}.{table} ({', '.join(columns)}) VALUES ({values})"


def select(table: str, columns: tuple[str, ...], where: str) -> str:
    """Return a SELECT of these columns."""
    return f"SELECT {', '.join(columns)} FROM {{keyspace}}.{table} WHERE {where}"


def count(table: str, where: str) -> str:
    """Return a SELECT that counts rows and held ones: `held` is true or absent."""
    return f"SELECT count(*) AS total, count(held) AS held FROM {{keyspace}}.{table} WHERE {where}"
