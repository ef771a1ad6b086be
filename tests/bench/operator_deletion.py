"""A MailQueue of `MAILS` objects and rows is deleted beside a neighbour with `NEIGHBOUR` rows and
mail that comes and goes: whether anything is left, and the neighbour's latency before and
meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest import mock

from bench.bulk import BUCKETS, Bulk, bulk
from bench.operator_process import operator_on
from bench.operator_setup import THREE, Site, fresh_site
from bench.operator_watch import watching
from bench.queue_setup import BenchServers
from bench.results import Result, compared, percentile
from postroad import Mail, open_queue
from postroad.bootstrap.cluster import ClusterServers
from postroad.controller.kubernetes.api import CONFIRM_DELETION, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.domain.queues.names import QueueName
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from support.resources import mail_queue, view
from support.servers import broker_object, cql, object_keys

MAILS = int(os.environ.get("MAILS", "200000"))
NEIGHBOUR = int(os.environ.get("NEIGHBOUR", "1000000"))
RATE = float(os.environ.get("RATE", "20"))
"""The neighbour's mails a second."""

BEFORE_SECONDS = 60.0
READY_SECONDS, GONE_SECONDS, MAIL_SECONDS = 180.0, 3600.0, 60.0
CONTENT = b"Subject: beside a deletion\r\n\r\n" + b"x" * 2000 + b"\r\n"
BY_SLICE = ("enqueued_mails", "deleted_mails")
BY_QUEUE = ("slices", "limits", "configuration_events", "ownership", "dead_letter_months")


@dataclass
class Traffic:
    """Mails of the neighbour: when each was handed in, and the seconds until it was accepted, and
    until it came out."""

    queue: MailQueue
    accepted: list[tuple[float, float]] = field(default_factory=list)
    delivered: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        """Hand mails in at the rate, whatever becomes of those before, and take them out."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take())
            while True:
                group.create_task(self._hand_in())
                await asyncio.sleep(1 / RATE)

    async def _hand_in(self) -> None:
        began = time.monotonic()
        mail = Mail(
            sender="a@origin.example",
            recipients=("b@dest.example",),
            content=CONTENT,
            name=repr(began),
        )
        async with asyncio.timeout(MAIL_SECONDS):
            await self.queue.enqueue(mail)
        self.accepted.append((began, time.monotonic() - began))

    async def _take(self) -> None:
        async for item in self.queue.dequeue(prefetch=100):
            began = float(item.mail.name or "0")
            await item.done()
            self.delivered.append((began, time.monotonic() - began))

    def within(
        self, figures: Sequence[tuple[float, float]], first: float, last: float
    ) -> list[float]:
        """Return the seconds of mails that were handed in between two instants."""
        return [seconds for began, seconds in figures if first <= began < last]


async def measure() -> list[Result]:
    """Measure one deletion."""
    async with fresh_site(*THREE) as site, operator_on(site):
        with mock.patch.dict(os.environ, site.variables):
            await site.apply_cluster()
            await site.until_ready(QUEUE_CLUSTER, "main")
            going = QueueName(site.namespace, "going")
            neighbour = QueueName(site.namespace, "neighbour")
            await fill(site, going, MAILS, with_bytes=True)
            await fill(site, neighbour, NEIGHBOUR, with_bytes=False)
            return await _measured(site, going, neighbour)


async def fill(site: Site, name: QueueName, mails: int, *, with_bytes: bool) -> None:
    """Write a long queue before its MailQueue is applied, which then takes it over."""
    began = time.monotonic()
    async with bulk_on(site, name, mails) as filled:
        await filled.where.servers.blobs(filled.where.bucket).create()
        await filled.write_rows()
        if with_bytes:
            await filled.write_bytes()
    seconds = time.monotonic() - began
    print(f"{mails} mails of {name} written in {seconds:.0f} s", file=sys.stderr, flush=True)


@asynccontextmanager
async def bulk_on(site: Site, name: QueueName, mails: int) -> AsyncIterator[Bulk]:
    """Yield what loads a long queue of a site, with a bucket of its own."""
    given = {**site.variables, "POSTROAD_S3_BUCKET": name.bucket("postroad-")}
    settings = from_environment(given)
    servers = ClusterServers(settings)
    try:
        async with bulk(BenchServers(settings, servers), name, mails) as loading:
            yield loading
    finally:
        await servers.close()


async def _measured(site: Site, going: QueueName, neighbour: QueueName) -> list[Result]:
    for each in (going, neighbour):
        wanted = mail_queue(
            site.namespace, each.name, view=view("1h", BUCKETS), deletionPolicy="Delete"
        )
        wanted["metadata"]["annotations"] = {CONFIRM_DELETION: each.name}
        await site.api.create(MAIL_QUEUE, wanted)
    async with watching(site.api, site.namespace) as watch:
        await watch.until_ready([going.name, neighbour.name], READY_SECONDS)
        async with _traffic(neighbour) as traffic:
            first = time.monotonic()
            await asyncio.sleep(BEFORE_SECONDS)
            began = time.monotonic()
            found = await site.api.get(MAIL_QUEUE, site.namespace, going.name)
            assert found is not None
            await site.api.delete(MAIL_QUEUE, found)
            gone = await watch.until_gone(going.name, GONE_SECONDS)
            # Cassandra reads what it deleted for some time after.
            left = await asyncio.to_thread(left_of, going, site.variables)
        lost = [each for each in watch.losses if each.startswith(neighbour.name)]
        assert lost == [], lost
    return _figures(traffic, (first, began, gone), left)


@asynccontextmanager
async def _traffic(name: QueueName) -> AsyncIterator[Traffic]:
    async with open_queue(f"distributed://{name}") as queue:
        traffic = Traffic(queue)
        task = asyncio.create_task(traffic.run())
        try:
            yield traffic
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def left_of(name: QueueName, variables: Mapping[str, str]) -> list[str]:
    """Return what the servers still have of a queue."""
    keyspace = variables["POSTROAD_CASSANDRA_KEYSPACE"]
    left = [
        f"{kind} {each}"
        for kind, objects in (
            ("queues", (name.work_queue, name.dead_queue)),
            ("exchanges", (name.exchange, name.claim_exchange)),
        )
        for each in objects
        if broker_object(kind, each) is not None
    ]
    keys = object_keys(name.bucket("postroad-"))
    left += [] if keys is None else [f"a bucket with {len(keys)} objects"]
    for table in BY_SLICE:
        statement = f"SELECT DISTINCT queue, slice_start, bucket_id FROM {keyspace}.{table}"
        left += [f"{table}: {each}" for each in cql(statement) if each.queue == str(name)]
    for table in BY_QUEUE:
        statement = f"SELECT queue FROM {keyspace}.{table} WHERE queue = %s"
        left += [f"{table}: {each}" for each in cql(statement, str(name))]
    return left


def _figures(
    traffic: Traffic, instants: tuple[float, float, float], left: list[str]
) -> list[Result]:
    first, began, gone = instants
    case = f"{MAILS} objects and rows beside {NEIGHBOUR} rows"
    print(f"left: {left}", file=sys.stderr, flush=True)
    results = [
        compared("left of the queue", case, "things", [float(len(left))], "none", [0.0],
                 less_is_better=True),
        compared("deleted a second", case, "mails/s", [MAILS / (gone - began)], "none", [0.0]),
    ]  # fmt: skip
    for what, figures in (("accepted", traffic.accepted), ("come out", traffic.delivered)):
        before = traffic.within(figures, first, began)
        meanwhile = traffic.within(figures, began, gone)
        assert before, f"no mail of the neighbour was {what} before"
        assert meanwhile, f"no mail of the neighbour was {what} meanwhile"
        results += [
            compared(f"neighbour's mail is {what}, {name}", case, "ms",
                     [1000 * percentile(meanwhile, share)], "before",
                     [1000 * percentile(before, share)], less_is_better=True)
            for name, share in (("p50", 0.5), ("p99", 0.99))
        ]  # fmt: skip
    return results
