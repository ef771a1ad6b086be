"""Reads the real servers, without postroad: what they still have of a queue."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import UUID

from chaos.drain import Remains
from chaos.opening import NAMESPACE
from chaos.pace import QUICK
from postroad.adapters.cassandra.view.rows import month_of_gone
from postroad.distributed.maintenance import audit, row_maintenance
from postroad.distributed.maintenance.row_maintenance import REPAIRER
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.domain.values.identifiers import moment_of
from support.servers import cql, store_client

_log = logging.getLogger("chaos.remains")

AHEAD = 30.0
"""Seconds, longer than an enqueue and its withdrawal take."""

TIMETABLES = frozenset((audit.CLAIM_ID, row_maintenance.CLAIM_ID, REPAIRER))
"""Claims that maintenance keeps between its rounds; they belong to no mail."""


def management(path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Any:
    """Ask RabbitMQ's management API; `{vhost}` in a path is that of the URI."""
    broker = urlsplit(os.environ["POSTROAD_RABBITMQ_URI"])
    base = urlsplit(os.environ["POSTROAD_RABBITMQ_MANAGEMENT_URL"])
    vhost = quote(unquote(broker.path[1:]), safe="")
    url = f"http://{base.hostname}:{base.port}/api/{path.format(vhost=vhost)}"
    request = Request(url, None if body is None else json.dumps(body).encode(), method=method)
    login = f"{unquote(broker.username or '')}:{unquote(broker.password or '')}"
    request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=15) as answer:
        found = answer.read()
    return json.loads(found) if found else None


def user() -> str:
    """Return RabbitMQ's user."""
    return unquote(urlsplit(os.environ["POSTROAD_RABBITMQ_URI"]).username or "guest")


def is_stamped_late(enqueue_id: UUID, stamp: float) -> bool:
    """Return whether a row was stamped, in seconds since 1970, long after its id was made: by a
    host with a clock far ahead, or for a machine that had been paused. The tombstone of a cleaned
    partition does not cover such a row. The row stays, with its mark, until its lifetime is
    over."""
    return stamp - moment_of(enqueue_id).timestamp() > AHEAD


def is_note_of_gone(month: str) -> bool:
    """Return whether a row of dead letters is the note that a dead letter was requeued or
    discarded, which stays for the lifetime of a dead letter."""
    return month == month_of_gone(month.partition(" ")[0])


def sleeps_long(queue: str) -> bool:
    """Return whether a broker's queue delays messages for longer than any mail of the workload. A
    process whose clock is minutes behind sends references there. The drain flushes their mails;
    when the old messages come, consumers acknowledge them, because their entries have no rows and
    are over."""
    delay = queue.rpartition(".delay.")[2]
    return delay.isdecimal() and int(delay) > QUICK.timing.longest_wait.total_seconds()


def outlives(seconds: int | None) -> bool:
    """Return whether a claim is in force for longer than any claim is: a Cassandra host whose clock
    was far ahead has written it, and it lapses when the other clocks have come so far."""
    return (seconds or 0) > QUICK.timing.claim.total_seconds()


def messages_left(queues: list[dict[str, Any]], channels: list[dict[str, Any]]) -> list[str]:
    """Return the queues that have messages, but for those that RabbitMQ strands: leased to a
    consumer that was cancelled before its node went down, and that no channel has any more.
    RabbitMQ returns them when the queue gets another leader, and maintenance gives their mails
    other messages before."""
    in_flight = sum(each.get("messages_unacknowledged", 0) for each in channels)
    left = []
    for each in queues:
        found, leased = each.get("messages", 0), each.get("messages_unacknowledged", 0)
        stranded = 0 if in_flight else leased
        if stranded:
            _log.warning("%s: %d messages are stranded", each["name"], stranded)
        if found > stranded and not sleeps_long(each["name"]):
            left.append(f"{each['name']}: {found}")
    return left


async def remains(queue: str, bucket: str) -> Remains:
    """Return what is left of a queue. Raises: whatever a server answers with."""
    return await asyncio.to_thread(_remains, f"{NAMESPACE}.{queue}", bucket)


def _remains(name: str, bucket: str) -> Remains:
    tables = os.environ["POSTROAD_CASSANDRA_KEYSPACE"]
    keys = "slice_start, bucket_id, enqueue_id"
    stored = [
        each
        for each in cql(
            f"SELECT queue, {keys}, WRITETIME(mail_id) AS stamp FROM {tables}.enqueued_mails"
        )
        if each.queue == name
    ]
    rows = {(each.slice_start, each.bucket_id, each.enqueue_id) for each in stored}
    late = {
        (each.slice_start, each.bucket_id, each.enqueue_id)
        for each in stored
        if is_stamped_late(each.enqueue_id, each.stamp / 1e6)
    }
    starts = [
        each.content_start
        for each in cql(f"SELECT queue, content_start FROM {tables}.limits")
        if each.queue == name and each.content_start is not None
    ]
    start = max(starts, default=datetime.min.replace(tzinfo=UTC)).replace(tzinfo=None)
    marks = [
        (each.slice_start, each.bucket_id, each.enqueue_id)
        for each in cql(f"SELECT queue, {keys}, ending, delivered_at FROM {tables}.deleted_mails")
        if each.queue == name and each.enqueue_id is not None
    ]
    claims = cql(f"SELECT queue, enqueue_id, TTL(owner) AS seconds FROM {tables}.claims")
    dead_letters = cql(f"SELECT queue, month, enqueue_id FROM {tables}.dead_letters")
    kept = {each for each in marks if each in late and each[0] < start}
    client = store_client()
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{name}/")
        objects = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    finally:
        client.close()
    return {
        "rows": [str(each) for each in rows - kept],
        "marks": [str(each) for each in set(marks) - kept if each in rows or each[0] >= start],
        "claims": [
            str(each.enqueue_id)
            for each in claims
            if each.queue == name
            and each.enqueue_id not in TIMETABLES
            and not outlives(each.seconds)
        ],
        "dead_letters": [
            str(each.enqueue_id)
            for each in dead_letters
            if each.queue == name and not is_note_of_gone(each.month)
        ],
        "messages": messages_left(
            management("queues/{vhost}"), management("vhosts/{vhost}/channels")
        ),
        "objects": [each for each in objects if each != key_of_owner(QueueName.parse(name))],
    }


def drop_bucket(bucket: str) -> None:
    """Delete a bucket and all that is in it."""
    client = store_client()
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for entry in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=entry["Key"])
        client.delete_bucket(Bucket=bucket)
    finally:
        client.close()
