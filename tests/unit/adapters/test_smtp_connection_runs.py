"""Drawn runs of a connection: replies in chunks of any size, odd replies, an end at any moment."""

import asyncio
import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain, repeat

from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.domain.mail.mail import OutcomeKind
from postroad.ports.delivery import ConnectionClosed
from postroad.smtp.client.connecting import Timeouts
from support.connections import Events, a_job, body_of
from support.fake_hop import CLOSE, POINTS, FakeHop
from support.smtp_connections import carried, connect

RUNS = int(os.environ.get("POSTROAD_TEST_CONNECTION_RUNS", "150"))
"""Drawn runs of each test, others every time; `make test` draws more."""

HASTY = Timeouts(*(timedelta(milliseconds=2) for _ in range(9)))
DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED
REFUSALS = ("250 ok", "550 5.1.1 no", "451 4.2.1 later")
KIND = {"2": DELIVERED, "5": FAILED, "4": DEFERRED}


@st.composite
def dialogues(draw: st.DrawFn) -> list[tuple[list[str], str]]:
    """For each mail: the replies to its recipients, and to its end."""
    recipients = st.lists(st.sampled_from(REFUSALS), min_size=1, max_size=3)
    return draw(st.lists(st.tuples(recipients, st.sampled_from(REFUSALS)), min_size=1, max_size=8))


STEPWISE, PIPELINED = (), ("PIPELINING",)
CHUNKED = ("PIPELINING", "CHUNKING")


@settings(max_examples=RUNS, deadline=None)
@given(
    dialogues(),
    st.sampled_from([STEPWISE, PIPELINED, CHUNKED]),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_replies_belong_to_their_jobs_however_they_arrive(
    mails: list[tuple[list[str], str]], extensions: tuple[str, ...], sizes: list[int]
) -> None:
    """In chunks of drawn sizes, beside commands that go out in the order that follows from it."""

    async def run() -> None:
        replies = {number: iter(each) for number, (each, _) in enumerate(mails, 1)}

        def rule(verb: str, mail: int) -> bytes | None:
            if verb == "RCPT":
                return next(replies[mail]).encode() + b"\r\n"
            if verb == "DATA" and not any(each[0] == "2" for each in mails[mail - 1][0]):
                return b"554 5.5.1 no recipients\r\n"
            return mails[mail - 1][1].encode() + b"\r\n" if verb == "DOT" else None

        hop = FakeHop(rule, extensions=extensions, sizes=endless(sizes))
        jobs = [
            a_job(number, *(f"b{i}@dest.example" for i in range(len(answers))))
            for number, (answers, _) in enumerate(mails, 1)
        ]
        events = await carried(hop, jobs)
        assert events.finished == {
            number: {f"b{i}@dest.example": KIND[(each if each[0] != "2" else end)[0]]
                     for i, each in enumerate(answers)}
            for number, (answers, end) in enumerate(mails, 1)
        }  # fmt: skip
        assert events.jobs == list(range(1, len(mails) + 1))

    asyncio.run(run())


def endless(sizes: list[int]) -> Iterator[int]:
    return chain(sizes, repeat(7))


ODD = st.sampled_from(
    [b"", CLOSE, b"250 ok\r\n", b"250 ok\r\n250 stray\r\n", b"25", b"354 go\r\n",
     b"354 go\r\n250 stray\r\n", b"421 4.3.2 later\r\n", b"550 5.1.1 no\r\n", b"\xff\r\n"]
)  # fmt: skip


@settings(max_examples=RUNS, deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from(POINTS), st.integers(0, 3)), ODD, max_size=4),
    st.sampled_from([STEPWISE, PIPELINED, CHUNKED]),
)
def test_delivered_is_reported_only_of_mails_that_arrived_whole(
    odd: dict[tuple[str, int], bytes], extensions: tuple[str, ...]
) -> None:
    async def run() -> None:
        hop = FakeHop(lambda verb, mail: odd.get((verb, mail)), extensions=extensions)
        events = await carried(hop, map(a_job, (1, 2, 3)), HASTY)

        assert events.jobs == [1, 2, 3]
        for job, kinds in events.finished.items():
            if DELIVERED in kinds.values():
                assert body_of(job) + b".\r\n" in hop.received

    asyncio.run(run())


@settings(max_examples=RUNS, deadline=None)
@given(
    st.sampled_from(["close", "abort", "end"]),
    st.integers(0, 60),
    st.integers(0, 60),
    st.booleans(),
    st.sampled_from([0, 3, 1000]),
)
def test_each_job_has_one_event_or_is_untried_whenever_a_connection_ends(
    how: str, late: int, turns: int, is_pipelined: bool, size: int
) -> None:
    """The last job is submitted after `late` turns of the loop, the end comes after `turns`."""

    async def run() -> None:
        extensions = ("PIPELINING",) if is_pipelined else ()
        hop, events = FakeHop(extensions=extensions, sizes=repeat(size or 9)), Events()
        connection = connect(hop, events)
        jobs = [a_job(job, is_slow=size == 0) for job in (1, 2, 3)]
        for job in jobs[:2]:
            connection.submit(job)
        for turn in range(61):
            if turn == late:
                connection.submit(jobs[2])
            if turn == turns:
                {"close": connection.close, "abort": connection.abort, "end": hop.end}[how]()
            await asyncio.sleep(0)
        await events.until_closed()
        while len(events.jobs) < len(jobs):
            await events.next()

        assert events.jobs == [1, 2, 3]
        assert sum(isinstance(each, ConnectionClosed) for each in events.all) <= 2
        for number, kinds in events.finished.items():
            if DELIVERED in kinds.values():
                assert number in hop.kept
        if how == "close":
            assert all(DELIVERED in kinds.values() for kinds in events.finished.values())
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing of it runs on"

    asyncio.run(run())
