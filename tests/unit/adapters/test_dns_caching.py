"""How long answers are kept, and how often a question is asked."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroad.adapters.dns import MAX_TTL, CachingResolver
from postroad.routing.answers import NOT_KEPT, Answer, AnswerKind, Question, RecordType
from postroad.routing.routes import RoutingPlan
from postroad.routing.tables import RouteRequest, RoutingTable
from postroad.worker.route_finder import RouteFinder
from support.memory.clock import ManualClock, SeededRandomness, settle
from support.memory.connections import MemoryResolver

ASKED = Question("a.example", RecordType.A)
SECOND = timedelta(seconds=1)


class Fixed:
    """Gives one answer, when it may."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.count = 0
        self.may = asyncio.Event()
        self.may.set()

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        self.count += len(questions)
        await self.may.wait()
        return tuple(self.answer for _ in questions)


@pytest.mark.parametrize("kind", AnswerKind)
async def test_an_answer_is_kept_for_its_time_and_no_longer(kind: AnswerKind) -> None:
    """Source: RFC 2308 5."""
    clock, inner = ManualClock(), Fixed(Answer(kind, timedelta(seconds=60)))
    resolver = CachingResolver(inner, clock)

    await resolver.look_up(ASKED)
    clock.jump(timedelta(seconds=59))
    (kept,) = await resolver.look_up(ASKED)

    assert (kept.ttl, inner.count) == (SECOND, 1)
    clock.jump(SECOND)
    await resolver.look_up(ASKED)
    assert inner.count == 2


@pytest.mark.parametrize("kind", AnswerKind)
async def test_no_answer_is_kept_for_longer_than_its_kind_may_be(kind: AnswerKind) -> None:
    """Source: RFC 2308 5; RFC 9520 3.2."""
    clock, inner = ManualClock(), Fixed(Answer(kind, timedelta(days=30)))
    resolver = CachingResolver(inner, clock)

    (first,) = await resolver.look_up(ASKED)
    clock.jump(MAX_TTL[kind])
    await resolver.look_up(ASKED)

    assert (first.ttl, inner.count) == (MAX_TTL[kind], 2)


async def test_an_answer_without_a_time_is_used_once() -> None:
    """Source: RFC 2308 5: a negative answer without an SOA record."""
    inner = Fixed(Answer(AnswerKind.NO_DATA, NOT_KEPT))
    resolver = CachingResolver(inner, ManualClock())

    await resolver.look_up(ASKED)
    await resolver.look_up(ASKED)

    assert inner.count == 2


async def test_those_who_ask_at_the_same_time_share_one_question() -> None:
    inner = Fixed(Answer(AnswerKind.RECORDS, NOT_KEPT))
    resolver = CachingResolver(inner, ManualClock())
    inner.may.clear()
    first, second, third = (asyncio.create_task(resolver.look_up(ASKED)) for _ in range(3))
    await settle()

    first.cancel()
    await settle()
    inner.may.set()

    assert await second == await third == (inner.answer,)
    assert first.cancelled()
    assert inner.count == 1


async def test_only_what_is_not_kept_is_asked() -> None:
    inner = MemoryResolver()
    inner.add("a.example", "192.0.2.1")
    inner.add("b.example", "192.0.2.2")
    resolver = CachingResolver(inner, ManualClock())
    a, b = ASKED, Question("b.example", RecordType.A)

    await resolver.look_up(a)
    found = await resolver.look_up(b, a, b)

    assert [each.addresses for each in found] == [("192.0.2.2",), ("192.0.2.1",), ("192.0.2.2",)]
    assert inner.asked == [a, b]


async def test_the_answers_that_were_read_longest_ago_go_first() -> None:
    inner = Fixed(Answer(AnswerKind.RECORDS, timedelta(seconds=60)))
    resolver = CachingResolver(inner, ManualClock(), most_answers=2)
    one, two, three = (Question(name, RecordType.A) for name in "abc")

    for question in (one, two, one, three, one, two):
        await resolver.look_up(question)

    assert inner.count == 4, "the answer to `two` made room for `three`"


async def test_a_thousand_recipients_of_a_domain_cost_one_question_of_each_kind() -> None:
    inner = MemoryResolver()
    for number in range(10):
        inner.add(f"d{number}.example", (10, "mx.example"))
    inner.add("mx.example", "192.0.2.1")
    plan = RoutingPlan(RoutingTable())
    router = RouteFinder(plan, CachingResolver(inner, ManualClock()), SeededRandomness())

    await asyncio.gather(
        *(router.route(RouteRequest(f"d{number % 10}.example")) for number in range(1000))
    )

    assert len(inner.asked) == len(set(inner.asked)) == 10 + 2
