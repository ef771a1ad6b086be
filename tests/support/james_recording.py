"""What a real James 3.8.1 stored for a few mails, and how tests that have none of his jars write it
again: `python -m support.james_recording` (with servers and Maven) records `james_queue.json`.

A row is as `SELECT JSON` shows it, a message as the broker has it, a blob in Base64."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import servers
from bench.bare_clients import BareRabbitMQ
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.rabbitmq.connection import parameters_of
from postroad.adapters.rabbitmq.transfers import Transfers
from postroad.adapters.s3.objects import Objects
from postroad.bootstrap.cluster import s3_access
from postroad.james.hiding import EVENT_TYPE
from postroad.james.migration import WORK_QUEUE
from postroad.james.tables import AGGREGATE, JamesTables
from support.james import Place, fresh_place, listed

RECORD = Path(__file__).with_name("james_queue.json")
MAILS, MAX_BODY = 4, 1_000
NAME = "recorded"

_PLACE = "queuename text, timerangestart timestamp, bucketid int, enqueueid uuid"
SCHEMA = tuple(
    f"CREATE TABLE {{keyspace}}.{each}"
    for each in (
        (
            f"enqueuedmailsv4 ({_PLACE}, enqueuedtime timestamp, name text, state text,"
            " headerblobid text, bodyblobid text, attributes frozen<map<text, blob>>,"
            " errormessage text, sender text, recipients frozen<list<text>>, remotehost text,"
            " remoteaddr text, lastupdated timestamp, perrecipientspecificheaders"
            " frozen<list<frozen<tuple<text, text, text>>>>,"
            " PRIMARY KEY ((queuename, timerangestart, bucketid), enqueueid))"
        ),
        "deletedmailsv2 (queuename text, enqueueid uuid, PRIMARY KEY ((queuename, enqueueid)))",
        "browsestart (queuename text PRIMARY KEY, browsestart timestamp)",
        (
            "eventstore (aggregateid text, eventid int, event text, snapshot int static,"
            " PRIMARY KEY (aggregateid, eventid))"
        ),
        "blobs (id text PRIMARY KEY, position int)",
        "blobparts (id text, chunknumber int, data blob, PRIMARY KEY (id, chunknumber))",
    )
)
"""His tables, but contentStart, which no migration reads.

Source: Apache James, CassandraMailQueueViewModule and two like it."""

_BROWSE_START = Statement("INSERT INTO {keyspace}.browsestart JSON ?")
_ROW = Statement("INSERT INTO {keyspace}.enqueuedmailsv4 JSON ?")
_EVENT = Statement("INSERT INTO {keyspace}.eventstore JSON ?")


@dataclass
class WrittenQueue:
    """A queue as James would have left it. `mails` as his own browse describes them, `rows` by the
    name of a mail."""

    place: Place
    session: Session
    mails: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def plant(self, name: str, like: str, **changed: object) -> str:
        """Write a row like that of another mail, which has no message; return its enqueue id."""
        enqueue_id = str(uuid4())
        row = {**self.rows[like], "name": name, "enqueueid": enqueue_id, **changed}
        await self.session.execute(_ROW, (json.dumps(row),))
        return enqueue_id

    async def register(self, **configuration: object) -> None:
        """Write the event of a further configuration, after those recorded."""
        event = {"type": EVENT_TYPE, "updateBrowseStartPace": 1000, **configuration}
        stored = {"aggregateid": AGGREGATE, "eventid": 1, "event": json.dumps(event)}
        await self.session.execute(_EVENT, (json.dumps(stored),))

    async def mark(self, name: str) -> None:
        """Mark a mail as deleted, as his WebAdmin does."""
        await JamesTables(self.session, self.place.name).mark(UUID(self.rows[name]["enqueueid"]))


@asynccontextmanager
async def written(place: Place, count: int) -> AsyncIterator[WrittenQueue]:
    """Write mails like the recorded ones, each with an id, a name and blobs of its own."""
    record = json.loads(RECORD.read_text())
    work = WORK_QUEUE + place.name
    async with place.session() as session, a_broker() as broker:
        made = WrittenQueue(place, session)
        transfers = Transfers(servers.rabbitmq())
        await transfers.declare(work)
        await transfers.close()
        for table in SCHEMA:
            await session.run(table)
        for event in record["events"]:
            await session.execute(_EVENT, (json.dumps(event),))
        start = {**record["browse_start"], "queuename": place.name}
        await session.execute(_BROWSE_START, (json.dumps(start),))
        for number in range(count):
            like = record["mails"][number % len(record["mails"])]
            name, enqueue_id = f"mail-{number}", str(uuid4())
            row = {**like["row"], "queuename": place.name, "name": name, "enqueueid": enqueue_id}
            message = {**json.loads(like["message"]), "name": name, "enqueueId": enqueue_id}
            for part in ("header", "body"):
                blob_id = f"{part}-{enqueue_id}"
                await _objects(place).put(blob_id, base64.b64decode(like[part]))
                row[f"{part}blobid"] = message[f"{part}BlobId"] = blob_id
            await session.execute(_ROW, (json.dumps(row),))
            await broker.publish("", work, json.dumps(message).encode())
            made.mails.append({**like["described"], "name": name})
            made.rows[name] = row
        made.mails.sort(key=lambda each: str(each["name"]))
        yield made


def _objects(place: Place) -> Objects:
    return Objects(s3_access(place.settings), place.where.bucket)


@asynccontextmanager
async def a_broker() -> AsyncIterator[BareRabbitMQ]:
    """A connection that publishes and consumes."""
    broker = BareRabbitMQ(parameters_of(servers.rabbitmq(), "test"))
    await broker.ready()
    try:
        yield broker
    finally:
        await broker.close()


async def record(folder: Path) -> None:
    async with fresh_place(folder) as place:
        place.name = NAME
        async with (
            place.james(JAMES_SLICE="PT1H", JAMES_BUCKETS="2") as james,
            place.session() as session,
        ):
            await james.ask("register")
            await james.ask("fill", 0, MAILS, MAX_BODY)
            described = listed(await james.ask("list"))
            rows = await _json(session, "enqueuedmailsv4")
            transfers = Transfers(servers.rabbitmq())
            bodies = [each.body.decode() for each in await transfers.get(WORK_QUEUE + NAME, MAILS)]
            await transfers.close()
            messages = {json.loads(each)["name"]: each for each in bodies}
            store = _objects(place)
            mails = []
            for row in sorted(rows, key=lambda each: str(each["name"])):
                blobs = [await store.get(row[f"{part}blobid"]) for part in ("header", "body")]
                (one,) = [each for each in described if each["name"] == row["name"]]
                assert one["sha256"] == hashlib.sha256(b"".join(blobs)).hexdigest()
                header, body = (base64.b64encode(each).decode() for each in blobs)
                stored = {"row": row, "message": messages[row["name"]]}
                mails.append({**stored, "header": header, "body": body, "described": one})
            events = await _json(session, "eventstore")
            (start,) = await _json(session, "browsestart")
            await james.ask("drop")
    found = {"events": events, "browse_start": start, "mails": mails}
    RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(mails)} mails in {RECORD}")


async def _json(session: Session, table: str) -> list[dict[str, Any]]:
    found = await session.run(f"SELECT JSON * FROM {{keyspace}}.{table}")
    return [json.loads(text) for row in found for text in row.values()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(record(Path(made)))
