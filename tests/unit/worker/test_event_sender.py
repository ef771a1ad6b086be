"""Events are sent once and in order, whatever their sink does, and what waits for it is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from postroad.domain.delivery.events import StreamEvent
from postroad.ports.events import MAX_BATCH, EventSink, SinkReply, SinkVerdict, WaitingEvent
from postroad.worker.event_sender import MAX_ASKED, EventSender
from support.memory.clock import ManualClock

TAKEN = SinkReply(SinkVerdict.TAKEN)
REFUSED = SinkReply(SinkVerdict.REFUSED, "400")
DOWN = SinkReply(SinkVerdict.LATER, "500")


class PassingClock(ManualClock):
    """Time passes when the sender waits for it, and at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[timedelta] = []

    async def sleep(self, duration: timedelta) -> None:
        self.waits.append(duration)
        await asyncio.sleep(0)
        self.jump(duration)


class ListSpool:
    """Events of one stream in a list."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self.left = list(bodies)
        self.most = 10**9
        self.changed = asyncio.Event()

    async def append(self, events: Sequence[StreamEvent]) -> None:
        raise NotImplementedError

    async def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
        while True:
            if not self.left:
                self.changed.clear()
                await self.changed.wait()
            yield [WaitingEvent(each, self._done(each)) for each in self.left[:MAX_BATCH]]

    def _done(self, body: bytes) -> Callable[[], asyncio.Future[None]]:
        async def done() -> None:
            self.left.remove(body)

        return done  # type: ignore[return-value]

    def exchange(self, name: str) -> EventSink:
        raise NotImplementedError

    async def is_beyond(self, stream: str, most: int) -> bool:
        return len(self.left) > self.most


class ListSink:
    def __init__(self, reply: Callable[[str], SinkReply] = lambda _: TAKEN) -> None:
        self.reply = reply
        self.asked: list[str] = []
        self.taken: list[str] = []
        self.at_once = self.most_at_once = self.calls = 0
        self.is_closed = False

    async def send(self, event_id: str, body: bytes) -> SinkReply:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.calls += 1
        reply = self.reply(event_id)
        self.asked.append(event_id)
        if reply is TAKEN:
            self.taken.append(event_id)
        return reply

    async def close(self) -> None:
        self.is_closed = True


def event(mail: int, number: int = 0) -> bytes:
    return json.dumps({"id": f"{mail}.{number}", "data": {"name": str(mail)}}).encode()


@asynccontextmanager
async def sending(
    spool: ListSpool, sink: ListSink, queue: str = "mail.out"
) -> AsyncIterator[PassingClock]:
    clock = PassingClock()
    sender = EventSender(queue, "crm", spool, sink, clock, NoRandomness())
    task = asyncio.create_task(sender.run())
    try:
        yield clock
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert sink.is_closed


class NoRandomness:
    def uniform(self) -> float:
        return 0.0

    def bits(self, count: int) -> int:
        return 0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)


def counted(queue: str, result: str) -> float:
    labels = dict(zip(("namespace", "name"), queue.split("."), strict=True))
    found = REGISTRY.get_sample_value(
        "postroad_events_total", {**labels, "stream": "crm", "result": result}
    )
    return found or 0.0


@pytest.mark.parametrize(
    "body", [b"\xff", b"{", b"[]", b"3", b'{"id": 3, "data": {}}', b'{"id": "1"}', b'{"id": ""}']
)
async def test_a_body_that_is_no_event_is_refused_and_the_others_go_on(body: bytes) -> None:
    spool, sink = ListSpool([event(1), body, event(2)]), ListSink()
    before = counted("mail.foreign", "refused")
    async with sending(spool, sink, "mail.foreign"):
        await until(lambda: not spool.left)

    assert sink.taken == ["1.0", "2.0"]
    assert counted("mail.foreign", "refused") == before + 1


async def test_events_of_a_mail_go_in_order_and_those_of_others_beside_them() -> None:
    bodies = [event(mail, number) for number in range(4) for mail in range(40)]
    spool, sink = ListSpool(bodies), ListSink()
    async with sending(spool, sink):
        await until(lambda: not spool.left)

    assert sorted(sink.taken) == sorted(json.loads(each)["id"] for each in bodies)
    for mail in range(40):
        own = [each for each in sink.taken if each.startswith(f"{mail}.")]
        assert own == [f"{mail}.{number}" for number in range(4)]
    assert 8 < sink.most_at_once <= 16


async def test_a_sink_that_is_down_gets_one_round_after_ever_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spool = ListSpool([event(mail) for mail in range(200)])
    sink = ListSink(lambda _: DOWN)
    caplog.set_level("INFO")
    async with sending(spool, sink) as clock:
        await until(lambda: sum(clock.waits, timedelta(0)) > timedelta(hours=2))
        rounds = len(sink.asked) / 16
        assert 2 * 60 / 5 <= rounds < 2 * 60 / 5 + 12
        sink.reply = lambda _: TAKEN
        await until(lambda: not spool.left)

    assert len(sink.taken) == len(set(sink.taken)) == 200
    assert caplog.messages == ["a sink of events fails", "a sink takes events again"]


async def test_an_event_that_failed_keeps_back_those_of_its_mail_alone_for_long() -> None:
    poison = {"1.0"}
    spool = ListSpool([event(mail, n) for mail in range(1, 21) for n in range(2)])
    sink = ListSink(lambda each: DOWN if each in poison else TAKEN)
    async with sending(spool, sink) as clock:
        await until(lambda: len(sink.taken) == 38)
        assert {json.loads(each)["id"] for each in spool.left} == {"1.0", "1.1"}
        spent = sum(clock.waits, timedelta(0))
        poison.clear()
        await until(lambda: not spool.left)

    assert spent < timedelta(hours=1)
    assert sink.taken[-2:] == ["1.0", "1.1"]


async def test_an_event_that_fails_for_ever_beside_others_is_dropped_and_counted() -> None:
    queue = "mail.poison"
    spool = ListSpool([event(1)])
    sink = ListSink(lambda each: DOWN if each == "1.0" else TAKEN)
    async with sending(spool, sink, queue):
        for more in range(2, 40):
            spool.left.append(event(more))
            await until(lambda more=more: f"{more}.0" in sink.taken)  # type: ignore[misc]
            if event(1) not in spool.left:
                break
        await until(lambda: not spool.left)

    assert "1.0" not in sink.taken
    assert sink.asked.count("1.0") >= 10
    assert counted(queue, "refused") == 1


async def test_an_event_that_is_refused_is_dropped_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = "mail.refused"
    spool = ListSpool([event(1), event(1, 1), event(2)])
    sink = ListSink(lambda each: REFUSED if each == "1.0" else TAKEN)
    caplog.set_level("INFO")
    async with sending(spool, sink, queue):
        await until(lambda: not spool.left)

    assert sorted(sink.taken) == ["1.1", "2.0"]
    assert (counted(queue, "refused"), counted(queue, "sent")) == (1, 2)
    (line,) = (vars(each) for each in caplog.records if each.message == "events dropped")
    assert (line["first"], line["reason"], line["levelname"]) == ("1.0", "400", "ERROR")


async def test_beyond_the_bound_the_oldest_go_and_are_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = "mail.full"
    spool = ListSpool([event(mail) for mail in range(300)])
    spool.most = 100
    sink = ListSink(lambda _: DOWN)
    caplog.set_level("INFO")
    async with sending(spool, sink, queue):
        await until(lambda: len(spool.left) <= 100)
        sink.reply = lambda _: TAKEN
        await until(lambda: not spool.left)

    dropped = counted(queue, "full")
    assert dropped == 256
    assert sorted(map(float, sink.taken)) == [float(mail) for mail in range(256, 300)]
    assert "events dropped" in caplog.messages


async def test_a_sink_with_room_keeps_events_beyond_the_bound() -> None:
    spool, sink = ListSpool([event(mail) for mail in range(300)]), ListSink()
    spool.most = 100
    async with sending(spool, sink):
        await until(lambda: not spool.left)

    assert len(sink.taken) == 300


@pytest.mark.parametrize("mails", [300, 1])
async def test_of_a_sink_slower_than_its_events_the_oldest_go(mails: int) -> None:
    queue = f"mail.slow{mails}"
    spool = ListSpool([event(number % mails, number) for number in range(300)])
    spool.most = 100
    sink = ListSink()
    async with sending(spool, sink, queue) as clock:

        def after_a_while(_: str) -> SinkReply:
            clock.jump(timedelta(seconds=3))
            return TAKEN

        sink.reply = after_a_while
        await until(lambda: not spool.left)

    assert 100 < counted(queue, "full") < 260
    assert len(sink.taken) == 300 - counted(queue, "full")


async def test_an_error_of_a_sink_is_a_failure_with_ever_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: str) -> SinkReply:
        raise OverflowError("a bug")

    spool, sink = ListSpool([event(1)]), ListSink(fail)
    async with sending(spool, sink) as clock:
        await until(lambda: sum(clock.waits, timedelta(0)) > timedelta(hours=1))
        assert sink.calls < 30
        sink.reply = lambda _: TAKEN
        await until(lambda: not spool.left)

    (line,) = (vars(each) for each in caplog.records)
    assert (line["message"], line["why"]) == ("a sink of events fails", ["OverflowError"])


@pytest.mark.parametrize(
    ("asked", "waited"),
    [(timedelta(minutes=7), timedelta(minutes=7)), (timedelta(hours=1), MAX_ASKED)],
)
async def test_a_sink_is_left_alone_for_as_long_as_it_asks_within_a_bound(
    asked: timedelta, waited: timedelta
) -> None:
    busy = SinkReply(SinkVerdict.LATER, "429", asked)
    spool, sink = ListSpool([event(1)]), ListSink(lambda _: busy)
    async with sending(spool, sink) as clock:
        await until(lambda: len(sink.asked) == 2)
        assert timedelta(0) <= sum(clock.waits, timedelta(0)) - waited <= timedelta(seconds=2)


async def test_a_spool_that_is_away_is_asked_again() -> None:
    from postroad.errors import BrokerUnavailable

    class Away(ListSpool):
        failures = 3

        async def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
            if self.failures:
                self.failures -= 1
                raise BrokerUnavailable("away")
            async for each in super().batches(stream):
                yield each

    spool, sink = Away([event(1)]), ListSink()
    async with sending(spool, sink):
        await until(lambda: sink.taken == ["1.0"])


async def test_no_event_is_sent_beside_itself_where_the_spool_fails_at_the_end_of_another() -> None:
    from postroad.errors import BrokerUnavailable

    class Lost(ListSpool):
        failures = 1

        def _done(self, body: bytes) -> Callable[[], asyncio.Future[None]]:
            async def done() -> None:
                if self.failures:
                    self.failures -= 1
                    raise BrokerUnavailable("away")
                self.left.remove(body)

            return done  # type: ignore[return-value]

    class Slow(ListSink):
        def __init__(self) -> None:
            super().__init__()
            self.answers, self.under_way = asyncio.Event(), list[str]()
            self.twice: list[str] = []

        async def send(self, event_id: str, body: bytes) -> SinkReply:
            if event_id in self.under_way:
                self.twice.append(event_id)
            self.under_way.append(event_id)
            try:
                if event_id != "1.0":
                    await self.answers.wait()
                return await super().send(event_id, body)
            finally:
                self.under_way.remove(event_id)

    spool, sink = Lost([event(1), event(2)]), Slow()
    async with sending(spool, sink):
        await until(lambda: sink.taken.count("1.0") == 2)
        sink.answers.set()
        await until(lambda: not spool.left)
    assert sink.twice == []
