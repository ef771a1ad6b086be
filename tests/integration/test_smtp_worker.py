"""From a queue to a next hop over real sockets: each mail exactly once, and none lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers, MemoryWorld
from postroad.distributed.engine.engine import Parts
from postroad.distributed.engine.timing import Timing
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.names import QueueName
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.ports.mail_queue import MailQueue
from postroad.smtp.client.jobs import MAX_SERIES
from support.mails import samples
from support.sink import EXTENSIONS, HANG_UP, SILENCE, Rule, Sink, rule_for
from support.workers import a_consumer

QUICK = RetryPlan((timedelta(milliseconds=20),), timedelta(hours=1))
MOMENT = timedelta(milliseconds=10)


Opener = Callable[[], Awaitable[MailQueue]]


@pytest.fixture
async def open_again() -> AsyncIterator[Opener]:
    """Opens one queue, any number of times, with delays of a test's length."""
    servers = MemoryServers(MemoryWorld(MachineClock()))
    name = QueueName("memory", "worker")
    timing = Timing(
        redelivery_delay=timedelta(milliseconds=200), keep_after=timedelta(milliseconds=100)
    )
    opened: list[MailQueue] = []

    async def opening() -> MailQueue:
        parts = Parts(
            name=name,
            broker=servers.broker(name),
            view=servers.views().view(str(name)),
            blobs=servers.blobs("worker"),
            configuration=FixedConfiguration(),
            clock=MachineClock(),
            randomness=SystemRandomness(),
            timing=timing,
        )
        opened.append(await DistributedQueue.open(parts, create_missing=True))
        return opened[-1]

    yield opening
    for queue in opened:
        await queue.close()


@pytest.fixture
async def queue(open_again: Opener) -> MailQueue:
    return await open_again()


class Worker:
    """A running worker that can be stopped."""

    def __init__(
        self, queue: MailQueue, port: int, plan: RetryPlan, concurrency: int, longest_queue: int
    ) -> None:
        hop = NextHop("127.0.0.1", port, TlsMode.NONE)
        self.consumer = a_consumer(queue, hop, plan, concurrency, longest_queue=longest_queue)
        self.stop = asyncio.Event()


@asynccontextmanager
async def a_worker(
    queue: MailQueue,
    sink: Sink,
    plan: RetryPlan = QUICK,
    *,
    concurrency: int = 20,
    longest_queue: int = 1,
    within: timedelta = timedelta(seconds=5),
) -> AsyncIterator[Worker]:
    worker = Worker(queue, sink.port, plan, concurrency, longest_queue)
    running = asyncio.create_task(worker.consumer.run(worker.stop, within))
    try:
        yield worker
    finally:
        worker.stop.set()
        await running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def until_empty(queue: MailQueue) -> None:
    while (await queue.size()).size:
        await asyncio.sleep(0.02)


def a_mail(*recipients: str) -> Mail:
    return Mail("a@origin.example", recipients or ("b@dest.example",), b"Subject: x\r\n\r\ny\r\n")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["by DATA", "as chunks"])
async def test_mails_of_every_shape_arrive_once_and_as_they_were(
    queue: MailQueue, *, is_chunked: bool
) -> None:
    sent = list(samples(200))
    for sample in sent:
        await queue.enqueue(sample.mail)
    extensions = (*EXTENSIONS, "CHUNKING") if is_chunked else EXTENSIONS
    rule = rule_for(None, None, "destination[13]")
    connections, behind = (2, 10) if is_chunked else (20, 1)
    async with (
        Sink(rule, extensions=extensions) as sink,
        a_worker(queue, sink, concurrency=connections, longest_queue=behind),
    ):
        await until_empty(queue)

    assert any("BDAT" in command for command in sink.commands) == is_chunked
    expected = Counter((sample.sent, each) for sample in sent for each in sample.recipients)
    arrived = Counter((mail.content, each) for mail in sink.mails for each in mail.recipients)
    assert arrived == expected


async def test_a_next_hop_that_leaves_amid_chunks_repeats_no_more_than_was_in_doubt(
    queue: MailQueue,
) -> None:
    """Replies that it had sent may be lost with the connection."""
    for number in range(40):
        await queue.enqueue(a_mail(f"b{number}@dest.example"))
    left = list[int]()

    def rule(verb: str, argument: str) -> str | None:
        if verb == "RCPT" and len(sink.mails) == 7 and not left:
            left.append(len(sink.mails))
            return HANG_UP
        return None

    async with (
        Sink(rule, extensions=(*EXTENSIONS, "CHUNKING")) as sink,
        a_worker(queue, sink, concurrency=1, longest_queue=10),
    ):
        await until_empty(queue)

    arrived = Counter(each for mail in sink.mails for each in mail.recipients)
    assert set(arrived) == {f"b{number}@dest.example" for number in range(40)}
    assert sum(arrived.values()) - len(arrived) <= MAX_SERIES
    assert left
    assert (await queue.size()).dead_letters == 0


async def test_recipients_end_each_as_the_next_hop_answered(queue: MailQueue) -> None:
    await queue.enqueue(a_mail("yes@x.example", "no@x.example", "later@x.example"))
    async with Sink(rule_for(None, "no@", "later@")) as sink, a_worker(queue, sink):
        await until_empty(queue)

    dead = [dead_letter async for dead_letter in queue.dead_letters()]
    assert [each for mail in sink.mails for each in mail.recipients] == [
        "yes@x.example",
        "later@x.example",
    ]
    assert [dead_letter.mail.recipients for dead_letter in dead] == [("no@x.example",)]
    assert dead[0].reason == "550 5.1.1 no such mailbox"
    assert sum("RCPT TO:<no@x.example>" in line for line in sink.commands) == 1


async def test_a_mail_is_given_up_when_it_is_too_old(queue: MailQueue) -> None:
    plan = RetryPlan((timedelta(milliseconds=100),), timedelta(seconds=3))
    await queue.enqueue(a_mail())
    async with Sink(rule_for("b@", None, None)) as sink, a_worker(queue, sink, plan):
        await until_empty(queue)

    [dead_letter] = [dead_letter async for dead_letter in queue.dead_letters()]
    assert dead_letter.reason is not None
    assert dead_letter.reason.endswith("450 4.2.1 mailbox busy")
    assert dead_letter.attempt >= 1


async def test_a_next_hop_that_was_away_gets_all_when_it_is_back(queue: MailQueue) -> None:
    async with Sink() as sink:
        port = sink.port
    for _ in range(20):
        await queue.enqueue(a_mail())
    async with a_worker(queue, sink):
        await asyncio.sleep(0.2)
        async with Sink(port=port) as back:
            await until_empty(queue)

    assert len(back.mails) == 20


async def test_no_more_mails_are_in_flight_than_allowed(queue: MailQueue) -> None:
    for _ in range(10):
        await queue.enqueue(a_mail())
    async with (
        Sink(_silent_at("DOT")) as sink,
        a_worker(queue, sink, concurrency=3, within=MOMENT),
    ):
        await until(lambda: sink.connections >= 3)
        await asyncio.sleep(0.1)

    assert sink.connections == 3


async def test_a_stop_lets_mails_in_flight_be_finished_and_takes_no_more(queue: MailQueue) -> None:
    for _ in range(10):
        await queue.enqueue(a_mail())
    async with Sink() as sink:
        sink.gate.clear()
        async with a_worker(queue, sink, concurrency=4) as worker:
            await until(lambda: sink.commands.count("DATA") == 4)
            worker.stop.set()
            await asyncio.sleep(0.05)
            sink.gate.set()

    assert len(sink.mails) == 4
    assert (await queue.size()).size == 6


async def test_mails_cut_off_by_a_stop_come_again(queue: MailQueue, open_again: Opener) -> None:
    """They stay leased by the handle that took them; a queue that is opened again hands them
    out."""
    await queue.enqueue(a_mail())
    consuming = await open_again()
    async with Sink(_silent_at("DOT")) as sink:
        async with a_worker(consuming, sink, within=MOMENT):
            await until(lambda: any(line.startswith("DATA") for line in sink.commands))
        await consuming.close()
        assert (await queue.size()).size == 1
    async with Sink() as second, a_worker(queue, second):
        await until_empty(queue)

    assert sink.mails == []
    assert len(second.mails) == 1


async def test_connections_lost_anywhere_lose_no_mail(queue: MailQueue) -> None:
    """The next hop hangs up at every eleventh command, but never between the final dot and its
    reply."""
    count = 0

    def rule(verb: str, argument: str) -> str | None:
        nonlocal count
        count += verb != "DOT"
        return HANG_UP if verb != "DOT" and count % 11 == 0 else None

    for number in range(50):
        await queue.enqueue(a_mail(f"r{number}@x.example"))
    async with Sink(rule) as sink, a_worker(queue, sink):
        await until_empty(queue)

    arrived = Counter(each for mail in sink.mails for each in mail.recipients)
    assert arrived == Counter(f"r{number}@x.example" for number in range(50))


def _silent_at(silent: str) -> Rule:
    return lambda verb, argument: SILENCE if verb == silent else None
