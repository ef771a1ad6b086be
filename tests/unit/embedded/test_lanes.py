"""What a lane writes when, which callers share a sync, and what it has in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from crash.lossy import LossyFiles, Name
from postroad.embedded.log import lanes
from postroad.embedded.log.lanes import LaneLog, SegmentSizes, Written
from postroad.embedded.log.layout import Lane, Layout
from postroad.embedded.log.records import ENVELOPE
from postroad.errors import QueueClosed, StoreFailed
from support.manual_loop import move, run

HOLD = ENVELOPE + 1
LAYOUT = Layout(PurePosixPath("/store"), PurePosixPath("/store/mail"))
RETRIES: Lane = 60


class HeldThreads:
    """Threads whose calls end when a test lets them; `calls` have whether they sync."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self._held: list[tuple[Callable[[], object], asyncio.Future[Any]]] = []

    def run(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        self.calls.append(arguments[-1] is not None)
        self._held.append((lambda: work(*arguments), done))
        return done

    async def end_one(self, error: Exception | None = None) -> None:
        work, done = self._held.pop(0)
        if error is None:
            done.set_result(work())
        else:
            done.set_exception(error)
        await move(0.001)

    async def close(self) -> None: ...


class Bench:
    """One lane over files in memory."""

    def __init__(self, segment_bytes: int = 1 << 20, envelopes: int = 100) -> None:
        self.files = LossyFiles()
        self.files.do(Name(LAYOUT.root, "log", 0))
        self.files.disk.names[LAYOUT.log] = {}
        self.threads = HeldThreads()
        self.stopped: list[Exception] = []
        self.lane = LaneLog(
            RETRIES,
            self.files,
            LAYOUT,
            SegmentSizes(segment_bytes, envelopes),
            threads=self.threads,
            salt=lambda: bytes(16),
            now_us=lambda: 0,
            stop=self.stopped.append,
        )

    def hold(self, size: int = 10) -> Written:
        return self.lane.append(HOLD, bytes(size))


def test_what_no_caller_waits_for_is_written_after_a_moment_without_a_sync() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = bench.hold()
        await move(0.19)
        bench.hold()
        assert bench.threads.calls == []
        await move(0.02)
        assert bench.threads.calls == [False]
        await bench.threads.end_one()

        await move(5)
        assert bench.threads.calls == [False]
        assert bench.lane.durable < first.end
        bench.hold()
        await move(0.21)
        assert bench.threads.calls == [False, False]

    run(scenario())


def test_all_that_wait_when_a_sync_begins_share_it_and_the_next_have_one() -> None:
    async def scenario() -> None:
        bench = Bench()
        one, two = bench.hold(), bench.hold()
        first, second = bench.lane.durable_at(two.end), bench.lane.durable_at(one.end)
        await move(0.001)
        three, four = bench.hold(), bench.hold()
        third, fourth = bench.lane.durable_at(three.end), bench.lane.durable_at(four.end)
        await move(0.001)
        assert (bench.threads.calls, bench.lane.waiters) == ([True], 4)

        await bench.threads.end_one()
        assert [each.done() for each in (first, second, third, fourth)] == [
            True,
            True,
            False,
            False,
        ]
        assert (bench.lane.durable, bench.lane.waiters) == (two.end, 2)
        assert bench.threads.calls == [True, True]
        await bench.threads.end_one()

        assert third.done()
        assert fourth.done()
        assert bench.lane.durable_at(four.end).done()
        await move(1)
        assert bench.threads.calls == [True, True]

    run(scenario())


def test_a_caller_that_may_wait_shares_the_sync_of_one_that_may_not() -> None:
    async def scenario() -> None:
        bench = Bench()
        patient = bench.lane.durable_at(bench.hold().end, 0.1)
        also = bench.lane.durable_at(bench.hold().end, 0.15)
        await move(0.09)
        assert bench.threads.calls == []
        await move(0.02)
        assert bench.threads.calls == [True]
        await bench.threads.end_one()
        assert patient.done()
        assert also.done()

        patient = bench.lane.durable_at(bench.hold().end, 0.1)
        at_once = bench.lane.durable_at(bench.hold().end)
        await move(0.001)
        await bench.threads.end_one()
        assert patient.done()
        assert at_once.done()
        await move(1)
        assert bench.threads.calls == [True, True]

    run(scenario())


def test_what_follows_a_record_happens_in_order_and_once() -> None:
    async def scenario() -> None:
        bench, happened = Bench(), list[str]()
        one, two = bench.hold(), bench.hold()
        bench.lane.when_durable(one.end, lambda: happened.append("one"))
        bench.lane.when_durable(two.end, lambda: happened.append("two"))
        waiting = bench.lane.durable_at(one.end)
        await move(0.001)
        three = bench.hold()
        bench.lane.when_durable(three.end, lambda: happened.append("three"))
        assert happened == []
        await bench.threads.end_one()
        assert waiting.done()
        assert happened == ["one", "two"]

        bench.lane.when_durable(one.end, lambda: happened.append("again"))
        assert happened == ["one", "two", "again"]

    run(scenario())


def test_a_frame_is_read_from_memory_until_it_is_in_its_file() -> None:
    async def scenario() -> None:
        bench = Bench()
        one, two = bench.hold(10), bench.hold(20)
        segment = one.segment
        frame = bench.lane.pending(segment, two.offset)
        assert frame is not None
        assert len(frame) > 20
        assert bench.lane.pending(segment, two.offset + 1) is None
        written = segment.written

        bench.lane.durable_at(two.end)
        await move(0.001)
        assert bench.lane.pending(segment, two.offset) == frame, "its write has not ended"
        assert segment.written == written
        await bench.threads.end_one()

        assert bench.lane.pending(segment, two.offset) is None
        assert segment.written == segment.end
        assert segment.read(two.offset, len(frame)) == frame

    run(scenario())


def test_envelopes_are_recalled_until_they_are_forgotten_or_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "RECENT", 3)

    async def scenario() -> None:
        bench = Bench()
        other = bench.hold()
        payloads = [b"%d" % number for number in range(4)]
        places = [bench.lane.append(ENVELOPE, each).position for each in payloads]
        assert [bench.lane.recall(each) for each in places] == [None, *payloads[1:]]
        assert bench.lane.recall(other.position) is None

        bench.lane.forget(places[2])
        bench.lane.forget(places[0])

        assert [bench.lane.recall(each) for each in places] == [None, b"1", None, b"3"]

    run(scenario())


def test_envelopes_have_ordinals_and_a_full_segment_is_followed_by_another() -> None:
    async def scenario() -> None:
        bench = Bench(envelopes=2)
        ordinals = [bench.lane.append(ENVELOPE, b"x").ordinal for _ in range(3)]
        assert ordinals == [0, 1, 0]
        first, second = bench.lane.segments
        assert (first.sequence, second.sequence, bench.lane.next_sequence) == (1, 2, 3)
        assert bench.lane.appends_to(second)
        assert not bench.lane.appends_to(first)
        assert second.header.previous_end == first.end_position
        bench.lane.skip_to(2)
        assert bench.lane.next_sequence == 3
        bench.lane.skip_to(9)
        assert bench.lane.next_sequence == 9

        assert bench.lane.drop_front(2) == [first]
        assert bench.lane.segments == [second]

    run(scenario())


def test_a_write_that_fails_stops_the_store_and_is_not_repeated() -> None:
    async def scenario() -> None:
        bench = Bench()
        waiting = bench.lane.durable_at(bench.hold().end)
        await move(0.001)
        error = StoreFailed("the disk fails")
        await bench.threads.end_one(error)
        assert bench.stopped == [error]
        bench.lane.fail(error)

        for again in (waiting, bench.lane.durable_at(10**9)):
            with pytest.raises(StoreFailed):
                await again
        with pytest.raises(StoreFailed):
            bench.hold()
        await move(5)
        assert bench.threads.calls == [True]

    run(scenario())


def test_a_lane_that_another_one_stopped_amid_a_write_begins_no_further_one() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = bench.lane.durable_at(bench.hold().end)
        await move(0.001)
        second = bench.lane.durable_at(bench.hold().end)

        bench.lane.fail(StoreFailed("the disk fails"))
        await bench.threads.end_one()
        await move(5)

        assert bench.threads.calls == [True]
        for each in (first, second):
            with pytest.raises(StoreFailed):
                await each

    run(scenario())


def test_nothing_is_written_after_the_end() -> None:
    async def scenario() -> None:
        bench = Bench()
        patient = bench.lane.durable_at(bench.hold().end, 0.1)

        await bench.lane.close()

        with pytest.raises(QueueClosed):
            await patient
        await move(5)
        assert (bench.threads.calls, bench.stopped, bench.lane.waiters) == ([], [], 0)

    run(scenario())
