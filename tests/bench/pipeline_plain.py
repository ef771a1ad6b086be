"""The peer of the pipeline: one plain Python process, which keeps turns as lines of JSON.

`python -m bench.pipeline_plain KEYSPACE QUEUE FILE archive` reads rows and marks of the closed
slices; `… traffic` and `… trace` answer from the file. It knows no purges, changed configurations,
repeated runs, undecodable rows or gaps.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import servers
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.statements import PARTITION, select
from postroad.adapters.cassandra.store import CassandraViewStore

PAGE = 1000
"""Rows of a page, as the connector asks for."""

_ROW = (
    *("enqueue_id", "mail_id", "sender", "recipients", "size_bytes", "accepted_at"),
    *("enqueued_at", "due_at", "held", "attempt"),
)
_MARK = ("enqueue_id", "delivered_at", "ending", "ended_at", "replaced_by", "outcomes", "seconds")
ROWS = Statement(select("enqueued_mails", _ROW, PARTITION), page_size=PAGE)
MARKS = Statement(select("deleted_mails", _MARK, PARTITION), page_size=PAGE)


async def archive(keyspace: str, queue: str, file: Path) -> int:
    """Write the turns of closed slices; return how many."""
    session, written = Session(servers.cassandra(keyspace)), 0
    view = CassandraViewStore(session).view(queue)
    start = (await view.limits()).content_start
    assert start is not None
    with gzip.open(file, "wt", compresslevel=1) as out:
        async for closed in view.closed_slices(start):
            for bucket in closed.rows:
                place = (queue, closed.slice_start, bucket)
                marks = {
                    each["enqueue_id"]: each
                    async for page in session.pages(MARKS, place)
                    for each in page
                }
                async for page in session.pages(ROWS, place):
                    for row in page:
                        out.write(json.dumps(turn(row, marks.get(row["enqueue_id"])), default=str))
                        out.write("\n")
                        written += 1
    await session.close()
    return written


def turn(row: Mapping[str, Any], mark: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row with what became of it."""
    if mark is None:
        return {**row, "state": "waiting"}
    is_delivered = mark["delivered_at"] is not None
    return {**row, **mark, "state": "delivered" if is_delivered else mark["ending"]}


def traffic(file: Path) -> int:
    """Count recipients by hour, domains and state; return how many counts there are."""
    counts: Counter[tuple[str, ...]] = Counter()
    with gzip.open(file, "rt") as lines:
        for line in lines:
            each = json.loads(line)
            sender = (each["sender"] or "").rpartition("@")[2].lower()
            for recipient in each["recipients"]:
                domain = recipient.rpartition("@")[2].lower()
                counts[each["accepted_at"][:13], sender, domain, each["state"]] += 1
    return len(counts)


def trace(file: Path, address: str) -> int:
    """Return how many turns an address has."""
    with gzip.open(file, "rt") as lines:
        return sum(address in json.loads(each)["recipients"] for each in lines)


def main(keyspace: str, queue: str, file: str, job: str, *address: str) -> None:
    """Do a job, and print its count."""
    if job == "archive":
        print(asyncio.run(archive(keyspace, queue, Path(file))))
    elif job == "traffic":
        print(traffic(Path(file)))
    else:
        print(trace(Path(file), *address))


if __name__ == "__main__":
    main(*sys.argv[1:])
