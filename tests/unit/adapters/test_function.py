"""What functions return, raise and take their time for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from postroad.adapters.programs.function import FunctionConnector
from postroad.contents import MemoryBudget
from postroad.domain.mail.envelope_documents import MAX_HANDED, HandedMail
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.smtp.next_hops import NextHop
from postroad.handling import NO_THREAD, HandlerFunction
from postroad.ports.delivery import ConnectionClosed, JobFinished
from postroad.routing.routes import ResolvedHop
from support.connections import Events, a_job

D, F, L = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED
NO_HOP = ResolvedHop(NextHop("function", 0), ())
ONE, TWO = "one@dest.example", "two@dest.example"


def a_connector(
    call: Callable[[HandedMail], Any], timeout: timedelta = timedelta(minutes=1), threads: int = 2
) -> FunctionConnector:
    function = HandlerFunction("app:take", call, timeout, MAX_HANDED)
    return FunctionConnector(function, MemoryBudget(MAX_HANDED), threads)


async def outcomes_of(connector: FunctionConnector, job: int = 1) -> dict[str, Outcome]:
    events = Events()
    connection = connector.open(NO_HOP, events)
    connection.submit(a_job(job, ONE, TWO))
    await events.until_finished(1)
    connection.close()
    await events.until_closed()
    (found,) = (each for each in events.all if isinstance(each, JobFinished))
    return dict(found.outcomes)


def kinds(outcomes: dict[str, Outcome]) -> list[OutcomeKind]:
    return [outcomes[ONE].kind, outcomes[TWO].kind]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("returned", "expected", "text"),
    [
        (None, [D, D], "250 2.0.0 by the function"),
        (Outcome.failed(), [F, F], "554 5.0.0 by the function"),
        (Outcome.failed("no such box"), [F, F], "554 5.0.0 no such box"),
        (Outcome.failed("550 5.1.1 no such box"), [F, F], "550 5.1.1 no such box"),
        (Outcome.failed("250 odd"), [F, F], "554 5.0.0 250 odd"),
        (Outcome.deferred("452 full"), [L, L], "452 full"),
        (Outcome.delivered("a\r\nb" + "c" * 600), [D, D], "250 2.0.0 a b" + "c" * 497),
        ({ONE: Outcome.failed("x"), TWO: Outcome.delivered()}, [F, D], "554 5.0.0 x"),
        ({ONE: Outcome.delivered("200 ok")}, [D, L], "200 ok"),
        ({}, [L, L], "451 4.3.5 the function returned no outcome"),
        (True, [L, L], "451 4.3.0 the function raised TypeError"),
        ({ONE: "250"}, [L, L], "451 4.3.0 the function raised TypeError"),
        ({"else@x": Outcome.delivered()}, [L, L], "451 4.3.0 the function raised ValueError"),
    ],
)
async def test_what_a_function_returns_decides(
    returned: object, expected: list[OutcomeKind], text: str, is_async: bool
) -> None:
    async def take(mail: HandedMail) -> object:
        return returned

    outcomes = await outcomes_of(a_connector(take if is_async else lambda _: returned))

    assert kinds(outcomes) == expected
    assert outcomes[ONE].text == text


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), TimeoutError(), StopIteration()])
async def test_a_function_that_raises_defers_its_mail_and_gets_the_next(
    error: BaseException, is_async: bool
) -> None:
    seen = []

    def take(mail: HandedMail) -> None:
        seen.append(mail.key)
        if len(seen) == 1:
            raise error

    async def take_later(mail: HandedMail) -> None:
        take(mail)

    connector = a_connector(take_later if is_async else take)
    assert kinds(await outcomes_of(connector)) == [L, L]
    assert kinds(await outcomes_of(connector)) == [D, D]
    assert len(seen) == 2
    assert len(set(seen)) == 1, "the same mail for the same recipients has the same key"


async def test_a_function_that_takes_too_long_defers_its_mail() -> None:
    async def take(mail: HandedMail) -> None:
        await asyncio.Event().wait()

    outcomes = await outcomes_of(a_connector(take, timedelta(milliseconds=20)))

    assert outcomes[ONE].text == "451 4.4.2 the function took more than 0.02 s"


async def test_a_function_that_blocks_blocks_neither_the_loop_nor_other_threads() -> None:
    free, called = threading.Event(), []

    def take(mail: HandedMail) -> None:
        called.append(threading.current_thread())
        free.wait(30)

    connector = a_connector(take, timedelta(milliseconds=100), threads=1)
    try:
        first = await outcomes_of(connector)
        events = Events()
        connector.open(NO_HOP, events).submit(a_job(2))
        closed = await events.until_closed()
    finally:
        free.set()

    assert kinds(first) == [L, L]
    assert len(called) == 1, "it got no further thread while it has one"
    assert events.all == [ConnectionClosed(NO_THREAD, (2,))], "and the mail has no attempt"
    assert closed.untried == (2,)
    assert called[0].daemon, "it does not block the end of the process"


async def test_a_machine_without_threads_costs_no_attempt_and_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    connector = a_connector(lambda mail: None, threads=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing)
        events = Events()
        connector.open(NO_HOP, events).submit(a_job(1))
        assert (await events.until_closed()).untried == (1,)

    assert kinds(await outcomes_of(connector)) == [D, D]


async def test_a_plain_function_may_return_what_is_to_be_awaited() -> None:
    async def later() -> Outcome:
        return Outcome.failed("x")

    assert kinds(await outcomes_of(a_connector(lambda _: later()))) == [F, F]


async def test_a_function_gets_the_mail() -> None:
    got: list[HandedMail] = []
    await outcomes_of(a_connector(got.append), job=7)

    assert got[0].recipients == (ONE, TWO)
    assert got[0].sender == "job7@origin.example"
    assert got[0].content == b"Subject: 7\r\n\r\nbody 7\r\n"
    assert got[0].mail_id.int == 7
