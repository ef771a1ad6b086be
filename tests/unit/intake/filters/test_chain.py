"""Filters in a row: order, time, failures, what is counted and what is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from postroad.domain.mail.mail import Origin
from postroad.intake.filters.chain import (
    MAX_FILTERED_HEADER,
    NOT_CHECKED,
    Filter,
    FilterChain,
    Filtered,
)
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    HeaderChange,
)
from postroad.intake.filters.functions import FunctionFilter
from postroad.intake.filters.room import LARGE_MAIL, SMALL, FilterRoom, NoRoom
from postroad.intake.reply_texts import LARGE_HEADER
from postroad.intake_settings.filters import OnError
from postroad.threaded_calls import ThreadedCalls

MAIL = FilteredMail(
    "name", "mx.example", "a@x.example", ("b@y.example",), b"A: 1\r\n\r\nbody\r\n", Origin("client")
)

MAX_SIZE = 1000


def of(call: Any, on_error: OnError = "Defer", seconds: float = 60, name: str = "f") -> Filter:
    function = FunctionFilter(call, ThreadedCalls(2))
    return Filter(name, function.decide, on_error, timedelta(seconds=seconds))


def deciding(**decision: Any) -> Callable[[FilteredMail], FilterDecision]:
    return lambda _: FilterDecision(**decision)


async def run(*filters: Filter) -> Filtered:
    return await FilterChain("test.chain", filters, FilterRoom()).run(MAIL, MAX_SIZE)


def counted(verdict: str, name: str = "f") -> float:
    labels = {"namespace": "test", "name": "chain", "filter": name, "verdict": verdict}
    return REGISTRY.get_sample_value("postroad_filtered_mails_total", labels) or 0


def adding(value: str) -> dict[str, Any]:
    return {"headers": (HeaderChange("add", "X", value),)}


async def test_each_filter_sees_what_the_one_before_it_changed() -> None:
    seen = []

    async def second(mail: FilteredMail) -> None:
        seen.append(mail)

    found = await run(of(deciding(**adding("1"))), of(second), of(deciding(**adding("2"))))

    assert [each.content for each in seen] == [b"A: 1\r\nX: 1\r\n\r\nbody\r\n"]
    assert found.mail.content == b"A: 1\r\nX: 1\r\nX: 2\r\n\r\nbody\r\n"
    assert (found.reply, found.hold, found.is_discarded) == (None, None, False)


@pytest.mark.parametrize("verdict", ["reject", "defer", "discard"])
async def test_the_first_filter_that_ends_a_mail_is_the_last_that_sees_it(
    verdict: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    before = counted(verdict)

    found = await run(of(deciding(verdict=verdict, hold="no")), of(_fail))

    assert found.is_discarded == (verdict == "discard")
    assert (found.reply is None) == (verdict == "discard")
    assert found.hold is None
    assert counted(verdict) == before + 1
    (line,) = [vars(each) for each in caplog.records if each.message == "a filter decided"]
    assert (line["filter"], line["mail_name"], line["verdict"]) == ("f", "name", verdict)


async def test_a_mail_is_held_for_the_first_reason_and_filtered_on() -> None:
    first, second = deciding(hold="bad\r\n" + "x" * 500), deciding(hold="worse", **adding("2"))

    found = await run(of(first, name="av"), of(second))

    assert found.hold == "av: bad  " + "x" * 195
    assert b"X: 2" in found.mail.content
    assert counted("hold", "av") == 1


def _fail(_: FilteredMail) -> None:
    raise ValueError("b@y.example")


async def _hang(_: FilteredMail) -> None:
    await asyncio.Event().wait()


async def _hang_when_cancelled(_: FilteredMail) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


def _exit(_: FilteredMail) -> None:
    raise SystemExit(1)


async def _exit_in_the_loop(_: FilteredMail) -> None:
    raise SystemExit(1)


async def _interrupt(_: FilteredMail) -> None:
    raise KeyboardInterrupt


async def _close(_: FilteredMail) -> None:
    raise GeneratorExit


async def _await_what_is_cancelled(_: FilteredMail) -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


def _nonsense(_: FilteredMail) -> str:
    return "accept"


def _wrong_reply(_: FilteredMail) -> FilterDecision:
    return FilterDecision("reject", "250 b@y.example")


def _wrong_type(_: FilteredMail) -> FilterDecision:
    return FilterDecision(headers=7)  # type: ignore[arg-type]


def _large_body(_: FilteredMail) -> FilterDecision:
    return FilterDecision(body=b"x" * (MAX_SIZE + 1))


def _wrong_verdict(_: FilteredMail) -> FilterDecision:
    return FilterDecision("allow")  # type: ignore[arg-type]


def _wrong_action(_: FilteredMail) -> FilterDecision:
    return FilterDecision(headers=(HeaderChange("replace", "X", "y"),))  # type: ignore[arg-type]


HANGING: list[Any] = [_hang, _hang_when_cancelled]
FAILING = [
    _fail,
    _exit,
    _exit_in_the_loop,
    _interrupt,
    _close,
    _await_what_is_cancelled,
    _nonsense,
    _wrong_reply,
    _wrong_type,
    _large_body,
    _wrong_verdict,
    _wrong_action,
]


@pytest.mark.parametrize("call", [*HANGING, *FAILING])
@pytest.mark.parametrize("on_error", ["Accept", "Defer"])
async def test_a_filter_that_fails_ends_as_on_error_has_it(
    call: Any, on_error: OnError, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted("error")

    found = await run(
        of(call, on_error, 0.01 if call in HANGING else 60), of(deciding(**adding("2")))
    )

    if on_error == "Defer":
        assert found == Filtered(MAIL, NOT_CHECKED)
    else:
        assert found == Filtered(replace(MAIL, content=b"A: 1\r\nX: 2\r\n\r\nbody\r\n"))
    assert counted("error") == before + 1
    assert "y.example" not in caplog.text


async def test_the_end_of_a_session_ends_its_filter() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def call(_: FilteredMail) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    session = asyncio.create_task(run(of(call, "Accept"), of(_fail)))
    await begun.wait()
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    await ended.wait()


async def test_a_header_that_filters_get_leaves_them_room_for_fields() -> None:
    def mail(size: int) -> FilteredMail:
        return replace(MAIL, content=(b"A: " + b"1" * 59 + b"\r\n") * (size // 64) + b"\r\n")

    chain = FilterChain("test.chain", (of(deciding(**adding("1"))),), FilterRoom())
    assert (await chain.run(mail(MAX_FILTERED_HEADER), MAX_SIZE)).reply is None
    assert (await chain.run(mail(MAX_FILTERED_HEADER + 640), MAX_SIZE)).reply == LARGE_HEADER


async def test_mails_of_more_octets_than_there_is_room_for_are_in_memory_one_by_one() -> None:
    at_once, most = 0, 0
    chain = FilterChain("test.chain", (of(deciding()),), FilterRoom(10 * SMALL))

    async def filtered() -> None:
        nonlocal at_once, most
        async with chain.room(SMALL):
            at_once += 1
            most = max(most, at_once)
            await chain.run(MAIL, MAX_SIZE)
            at_once -= 1

    await asyncio.gather(*(filtered() for _ in range(5)))

    assert most == 1


async def test_large_mails_leave_room_for_small_ones_and_wait_no_longer_than_a_bound() -> None:
    chain = FilterChain("test.chain", (), FilterRoom(max_wait=timedelta(seconds=0.01)))

    async with chain.room(16 * LARGE_MAIL):
        for _ in range(2):  # what was given up takes no room
            with pytest.raises(NoRoom):
                async with chain.room(LARGE_MAIL):
                    pass
        async with chain.room(LARGE_MAIL - 1), chain.room(LARGE_MAIL - 1), chain.room(SMALL):
            pass
    async with chain.room(16 * LARGE_MAIL):
        pass


async def test_small_mails_have_all_of_the_room_while_there_is_no_large_one() -> None:
    chain = FilterChain("test.chain", (), FilterRoom(64 * SMALL, timedelta(seconds=0.01)))

    async with AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(chain.room(SMALL))
        with pytest.raises(NoRoom):
            await stack.enter_async_context(chain.room(SMALL))
