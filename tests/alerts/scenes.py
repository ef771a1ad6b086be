"""Faults under which alerts fire, each recorded as the series that Prometheus would have scraped.

`python -m alerts.record` writes the files of `tests/alerts/recorded`. Servers are in memory, and
time is moved: the code that counts is that of production.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from contract.queue_harness import plain_mail
from postroad.adapters.cassandra.clocks import HostClocks
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers
from postroad.bootstrap.delivery_file import DeliveryFile
from postroad.controller.kubernetes.api import DEPLOYMENT
from postroad.controller.run.elector import Elector, LeasePlace
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.queues.names import QueueName
from postroad.errors import MailTooLarge, PostroadError, ViewUnavailable
from postroad.intake.outbox.forwarder import Forwarder
from postroad.intake.outbox.outbox import Outbox
from postroad.worker.runner import Consumer
from support import resources
from support.in_memory_cluster import InMemoryCluster, Process
from support.jobs import JobPods
from support.manual_loop import move
from support.memory.clock import SeededRandomness
from support.memory.fault_injection import Step, away
from support.memory.kubernetes.client import MemoryKubernetes
from support.running_controller import NAMESPACE, RunningController, running_controller
from support.workers import AnsweringConnector, a_driving

NAME = QueueName(NAMESPACE, "outgoing")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LEASE = LeasePlace("postroad-system", "postroad-operator")

Sample = Callable[[], None]
"""Scrapes all targets; called each minute."""

Scene = Callable[[Sample], Coroutine[Any, Any, None]]


class NextHop:
    """Answers every transmission alike."""

    def __init__(self) -> None:
        self.outcome = Outcome.delivered("250 2.0.0 ok")

    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes]
    ) -> Mapping[str, Outcome]:
        async for _ in content:
            pass
        return dict.fromkeys(envelope.recipients, self.outcome)


class Installation:
    """An operator, a MailQueue, and what its pods run: a producer and a worker."""

    def __init__(self, operator: RunningController, sample: Sample) -> None:
        self.operator, self.hop = operator, NextHop()
        self.elected = MemoryKubernetes(operator.kubernetes, "postroad")
        self._sample = sample
        self._mails = 0
        self._passed = 0
        self._stop = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Let the operator be elected, and open the queue."""
        self.elector = Elector(
            self.elected, LEASE, "a", clock=self.operator.clock, randomness=SeededRandomness(1)
        )
        self.leading = asyncio.create_task(self._lead())
        servers = MemoryServers(self.operator.world, self.operator.faults)
        self.queue = await DistributedQueue.open(
            Parts(
                name=NAME,
                broker=servers.broker(NAME),
                view=servers.views().view(str(NAME)),
                blobs=servers.blobs(NAME.bucket("postroad-")),
                configuration=FixedConfiguration(ViewConfiguration(HOUR, 2)),
                clock=self.operator.clock,
                randomness=SeededRandomness(2),
            ),
            create_missing=False,
        )

    async def _lead(self) -> None:
        await self.elector.lead()
        with suppress(PostroadError):
            await self.elector.keep()

    def work(self) -> None:
        """Start the worker."""
        self._stop.clear()
        driving = a_driving(
            AnsweringConnector(self.hop),
            RetryPlan(),
            self.operator.clock,
            SeededRandomness(3),
            queue=str(NAME),
        )
        consumer = Consumer(self.queue, driving, window=20)
        self._working = asyncio.create_task(consumer.run(self._stop, MINUTE))

    async def rest(self) -> None:
        """Stop the worker."""
        self._stop.set()
        if self._working is not None:
            await move(2)
            await self._working
            self._working = None

    async def minutes(self, count: int, *, mails: int = 1) -> None:
        """Let minutes pass, with so many mails at the beginning of each."""
        for _ in range(count):
            for _ in range(mails):
                self._mails += 1
                with suppress(PostroadError):
                    await asyncio.wait_for(self._enqueue(), None)
            await move(60)
            self._passed += 1
            if self._passed % 10 == 0:
                maintaining = asyncio.create_task(self._maintain())
                await move(1)
                maintaining.cancel()
            self._sample()

    async def _enqueue(self) -> None:
        sending = asyncio.create_task(self.queue.enqueue(plain_mail(f"mail {self._mails}")))
        for _ in range(60):
            if sending.done():
                break
            await move(0.1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def _maintain(self) -> None:
        with suppress(PostroadError):
            await self.queue.maintain()


@asynccontextmanager
async def installed(sample: Sample, **options: object) -> AsyncIterator[Installation]:
    """Yield an installation whose MailQueue is ready and has a worker."""
    async with running_controller(**options) as operator:  # type: ignore[arg-type]
        await operator.declare(workers=resources.workers(1), view=resources.view("1h", 2))
        made = Installation(operator, sample)
        await made.open()
        made.work()
        await made.minutes(5)
        yield made
        made.leading.cancel()
        await made.rest()
        await made.queue.close()


# Mail


async def servers_away(sample: Sample) -> None:
    """RabbitMQ and Cassandra go away for half an hour."""
    async with installed(sample) as made:
        made.operator.faults.plan = away("broker", "view")
        await made.minutes(30)
        made.operator.faults.plan = lambda _: None
        await move(120)


async def no_worker(sample: Sample) -> None:
    """Mail comes, and no worker takes it."""
    async with installed(sample) as made:
        await made.rest()
        await made.minutes(45)


async def next_hop_defers(sample: Sample) -> None:
    """The next hop answers 451 to all mail."""
    async with installed(sample) as made:
        made.hop.outcome = Outcome.deferred("451 4.3.2 try again later")
        await made.minutes(50, mails=2)


async def next_hop_refuses(sample: Sample) -> None:
    """The next hop refuses all mail for good."""
    async with installed(sample) as made:
        made.hop.outcome = Outcome.failed("550 5.7.1 refused")
        await made.minutes(30)


@asynccontextmanager
async def in_memory(sample: Sample) -> AsyncIterator[tuple[InMemoryCluster, Process]]:
    cluster = InMemoryCluster()
    cluster.tables.row_lifetime = 2 * HOUR
    process = await cluster.start()
    await minutes(cluster, process, sample, 3)
    yield cluster, process
    await minutes(cluster, process, sample, 12)
    await cluster.close()


async def minutes(cluster: InMemoryCluster, process: Process, sample: Sample, count: int) -> None:
    """Let minutes pass, with a round of maintenance at the end of every tenth."""
    for number in range(1, count + 1):
        await cluster.pass_time(MINUTE)
        if number % 10 == 0:
            await process.queue.maintain()
        sample()


async def a_row_is_lost(sample: Sample) -> None:
    """Cassandra loses a row."""
    async with in_memory(sample) as (cluster, process):
        await cluster.enqueue(process, "lost", delay=10**6)
        (lost,) = cluster.tables.live()
        await minutes(cluster, process, sample, 10)
        del cluster.tables.rows[lost.key]
        del cluster.tables.expire_at[lost.key]


async def a_newer_release_wrote(sample: Sample) -> None:
    """A row cannot be decoded."""
    async with in_memory(sample) as (cluster, process):
        await cluster.enqueue(process, "newer", delay=10**6)
        cluster.tables.undecodable.add(cluster.tables.live()[0].key)


async def a_machine_was_paused(sample: Sample) -> None:
    """A machine stood still for some hours, and its process queues mail with the old time."""
    async with in_memory(sample) as (cluster, process):
        paused = await cluster.start()
        await cluster.enqueue(paused, "before")
        await cluster.deliver(process, timedelta(seconds=1))
        start = cluster.clock.elapsed()
        for _ in range(20):
            await minutes(cluster, process, sample, 1)
            await process.queue.maintain()
        paused.clock.pause(cluster.clock.elapsed() - start)
        await cluster.enqueue(paused, "late 1", "late 2")
        await cluster.deliver(process, MINUTE)


async def maintenance_meets_a_bug(sample: Sample) -> None:
    """A step of maintenance raises an error that postroad does not know."""
    async with in_memory(sample) as (cluster, process):
        await cluster.enqueue(process, "bad", delay=10**6)
        await minutes(cluster, process, sample, 59)

        async def before(step: Step) -> None:
            if step.operation == "end":
                raise ValueError("of a driver")

        process.faults.before = before
        await minutes(cluster, process, sample, 10)
        process.faults.before = None


async def a_wrong_clock(sample: Sample) -> None:
    """The clock of one host of Cassandra of three is an hour wrong."""
    from unit.adapters.test_cassandra_clocks import clocks_of, hosts

    driver = hosts(HOUR, timedelta(0), timedelta(0))
    clocks: HostClocks = clocks_of(driver)
    for _ in range(10):
        driver.ns += 60 * 10**9
        clocks.read(driver)
        sample()


async def the_archive_does_not_come(sample: Sample) -> None:
    """A queue is archived once and not again."""
    async with in_memory(sample) as (cluster, process):
        await cluster.enqueue(process, "mail")
        await cluster.deliver(process, MINUTE)
        (start,) = {key.slice_start for key in cluster.tables.marks}
        await process.queue._engine.view.advance(archived_through=start)
        await minutes(cluster, process, sample, 60)


async def the_view_was_restored(sample: Sample) -> None:
    """The view is put back to a backup, beside the objects of today."""
    from unit.distributed.test_ownership import restored, snapshot

    async with in_memory(sample) as (cluster, process):
        await minutes(cluster, process, sample, 20)
        backup = snapshot(cluster)
        await cluster.enqueue(process, "later", delay=10**6)
        await minutes(cluster, process, sample, 60 * 7)
        anew = await restored(cluster, backup)
        await minutes(cluster, anew, sample, 60 * 7)
        process.queue = anew.queue


async def a_bad_delivery_file(sample: Sample) -> None:
    """The file of delivery becomes one that cannot be used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "delivery.yaml"
        path.write_text("routing: {}")
        file = DeliveryFile(path)
        for minute in range(20):
            if minute == 4:
                path.write_text("routing: [")
            await file.look(lambda _: None)
            sample()


class AwayQueue:
    """A queue that takes no mail, for a reason."""

    error: PostroadError = ViewUnavailable("away")

    async def enqueue(self, *_: object, **__: object) -> UUID:
        raise self.error


async def mail_waits_in_an_outbox(sample: Sample) -> None:
    """A server is away, and then the queue refuses a mail that an outbox had accepted."""
    cluster, behind = InMemoryCluster(), AwayQueue()
    store = (await cluster.start()).queue
    randomness = SeededRandomness(1)
    outbox = Outbox(str(NAME), store, 1 << 20, cluster.clock, randomness)
    outbox.opened(behind, None)
    running = asyncio.create_task(Forwarder(outbox, cluster.clock, randomness).run())
    for minute in range(40):
        if minute == 2:
            await outbox.enqueue(plain_mail("mail"))
        if minute == 30:
            behind.error = MailTooLarge("too large")
        await cluster.pass_time(MINUTE)
        sample()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await cluster.close()


# The operator


async def the_lease_is_lost(sample: Sample) -> None:
    """The API server does not answer the operator that leads."""
    async with installed(sample) as made:
        made.elected.faults.plan = away("kubernetes")
        await made.minutes(12)


async def the_api_server_refuses(sample: Sample) -> None:
    """The API server answers no request of the operator for twenty minutes."""
    async with installed(sample) as made:
        made.operator.api.faults.plan = away("kubernetes")
        await made.operator.change({"retry": {"maxAge": "48h"}})
        await made.minutes(20)
        made.operator.api.faults.plan = lambda _: None


async def the_api_server_is_slow(sample: Sample) -> None:
    """Every answer of the API server takes minutes."""
    async with installed(sample) as made:

        async def before(_: Step) -> None:
            await asyncio.sleep(300)

        made.operator.api.faults.before = before
        for number in range(12):
            await made.operator.create(resources.mail_queue(NAMESPACE, f"queue-{number}"))
        await made.minutes(15)
        made.operator.api.faults.before = None


async def another_controller(sample: Sample) -> None:
    """Another process deletes a Deployment again and again."""
    async with installed(sample) as made:
        for _ in range(8):
            with suppress(AssertionError):
                await made.operator.delete(DEPLOYMENT, "outgoing-worker")
            await made.minutes(3)


async def an_image_that_never_gets_ready(sample: Sample) -> None:
    """An upgrade brings an image whose pods do not get ready."""
    async with running_controller(image="postroad:1") as before:
        await before.declare(workers=resources.workers(1))
        await before.create(resources.mail_queue(NAMESPACE, "second", workers=resources.workers(1)))
        await move(60)
    async with running_controller(beside=before, image="postroad:2", broken={"postroad:2"}):
        for _ in range(135):
            await move(60)
            sample()


async def a_pipeline_with_a_bad_schedule(sample: Sample) -> None:
    """The schedule of the archive is changed to one that no clock meets."""
    async with installed(sample) as made:
        archive = {"schedule": "7 24 * * *"}
        await made.operator.change(
            {"pipeline": {"archive": archive, "addresses": {"keep": "Plain"}}}
        )
        await made.minutes(200)


async def a_task_fails_each_night(sample: Sample) -> None:
    """The runs of a schedule fail two nights, and succeed in the third."""
    async with installed(sample) as made:
        pods = JobPods(made.operator.kubernetes)
        selector, schedule = {"all": True}, "0 3 * * *"
        await made.operator.create(
            resources.task(NAMESPACE, operation="Flush", selector=selector, schedule=schedule)
        )
        await made.minutes(10)
        (cron_job,) = (
            each
            for place, each in made.operator.kubernetes.objects.items()
            if place.plural == "cronjobs"
        )
        for number, end in enumerate(("Failed", "Failed", "Complete")):
            job = await pods.scheduled(cron_job, f"task-{number}")
            await pods.begin(job)
            await pods.end(job, end, "it reached the backoff limit")
            await made.minutes(30)


async def quiet_day(sample: Sample) -> None:
    """A day on which nothing goes wrong: a mail a minute comes and is delivered."""
    async with installed(sample) as made:
        await made.minutes(24 * 60)


SCENES: Mapping[str, Scene] = {
    each.__name__: each
    for each in (
        servers_away,
        no_worker,
        next_hop_defers,
        next_hop_refuses,
        a_row_is_lost,
        a_newer_release_wrote,
        a_machine_was_paused,
        maintenance_meets_a_bug,
        a_wrong_clock,
        the_archive_does_not_come,
        the_view_was_restored,
        a_bad_delivery_file,
        mail_waits_in_an_outbox,
        the_lease_is_lost,
        the_api_server_refuses,
        the_api_server_is_slow,
        another_controller,
        an_image_that_never_gets_ready,
        a_pipeline_with_a_bad_schedule,
        a_task_fails_each_night,
        quiet_day,
    )
}
