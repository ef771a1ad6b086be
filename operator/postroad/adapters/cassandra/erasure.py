"""Erasing everything that a queue has in the keyspace.

Which partitions a queue has follows from its configurations over time; erasing does not trust them
and asks the tables. Rows go before marks, so that a crash between leaves no mail that looks live.
Claims are left: they end by themselves within minutes.
"""

from __future__ import annotations

import asyncio

from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import Session

AT_ONCE = 32
"""Deletions on their way at the same time."""

_DELETE = {
    "enqueued_mails": statements.DELETE_ROWS,
    "deleted_mails": mark_statements.DELETE_MARKS,
    "deliveries": statements.DELETE_RECORDS,
    "dead_letters": statements.DELETE_LETTERS,
}


async def erase_queue(session: Session, queue: str) -> None:
    """Delete all of a queue's partitions, then its limits. Idempotent. Raises: ViewError."""
    for table, deletion in _DELETE.items():
        async for page in session.pages(statements.PARTITIONS[table], (queue,)):
            keys = [tuple(row.values()) for row in page]
            for start in range(0, len(keys), AT_ONCE):
                batch = keys[start : start + AT_ONCE]
                await asyncio.gather(*(session.execute(deletion, key) for key in batch))
    for statement in statements.ERASE_BY_QUEUE:
        await session.execute(statement, (queue,))
    for row in await session.execute(statements.SELECT_LIMITS, (queue,)):
        await session.execute(statements.FORGET_LIMITS, (queue, row["incarnation"]))
