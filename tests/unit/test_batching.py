"""Requests that wait at the same time go as one, and a refused one does not fail the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from postroad.batching import Batcher, Shared, together
from postroad.errors import ViewRefused, ViewUnavailable

SOON = 20
"""Seconds within which what must happen has happened; passing it is a failure, not a measure."""


class Server:
    """Doubles numbers. Holds each request until `gate` is open; `bad` is refused, and the answers
    of the next `lost` requests do not come."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.lost = 0
        self.bad: set[int] = set()

    async def send(self, key: str, values: list[int]) -> Sequence[int]:
        self.requests.append((key, values))
        await self.gate.wait()
        if self.lost:
            self.lost -= 1
            raise ViewUnavailable
        if self.bad.intersection(values):
            raise ViewRefused
        return [2 * each for each in values]


def batcher(
    server: Server, most: int = 100, max_wait: timedelta = timedelta(seconds=60)
) -> Batcher[str, int, int]:
    return Batcher(server.send, lambda: ViewUnavailable("too late"), most=most, max_wait=max_wait)


async def waits_for(server: Server, requests: int) -> None:
    while len(server.requests) < requests:
        await asyncio.sleep(0)


async def test_a_lone_request_goes_by_itself() -> None:
    server = Server()

    assert await batcher(server)("a", 3) == 6
    assert server.requests == [("a", [3])]


async def test_requests_of_one_entry_go_together_in_order_by_key() -> None:
    server = Server()
    ask = batcher(server)

    asked = (("a", 1), ("b", 7), ("a", 2), ("a", 3))
    answers = await asyncio.gather(*(ask(*each) for each in asked))

    assert answers == [2, 14, 4, 6]
    assert sorted(server.requests) == [("a", [1, 2, 3]), ("b", [7])]


async def test_what_comes_while_one_is_under_way_waits_and_goes_together() -> None:
    server = Server()
    server.gate.clear()
    ask = batcher(server, most=2)
    first = asyncio.create_task(ask("a", 0))
    await waits_for(server, 1)
    rest = [asyncio.create_task(ask("a", number)) for number in range(1, 4)]
    await asyncio.sleep(0)
    server.gate.set()

    assert await asyncio.gather(first, *rest) == [0, 2, 4, 6]
    assert server.requests == [("a", [0]), ("a", [1, 2]), ("a", [3])]


async def test_a_refused_value_is_refused_alone() -> None:
    server = Server()
    server.bad = {2}
    ask = batcher(server)

    answers = await asyncio.gather(*(ask("a", each) for each in (1, 2, 3)), return_exceptions=True)

    assert answers[0] == 2
    assert isinstance(answers[1], ViewRefused)
    assert answers[2] == 6


async def test_lost_request_fails_no_request_that_waits() -> None:
    server = Server()
    server.gate.clear()
    server.lost = 1
    ask = batcher(server)
    first = asyncio.create_task(ask("a", 1))
    await waits_for(server, 1)
    rest = [asyncio.create_task(ask("a", number)) for number in (2, 3)]
    await asyncio.sleep(0)
    server.gate.set()

    found = await asyncio.gather(first, *rest, return_exceptions=True)

    assert isinstance(found[0], ViewUnavailable)
    assert found[1:] == [4, 6]
    assert server.requests == [("a", [1]), ("a", [2, 3])]


async def test_those_who_went_together_to_a_server_that_is_away_fail_together() -> None:
    server = Server()
    server.lost = 1
    ask = batcher(server)

    found = await asyncio.gather(*(ask("a", each) for each in (1, 2)), return_exceptions=True)

    assert [type(each) for each in found] == [ViewUnavailable, ViewUnavailable]
    assert server.requests == [("a", [1, 2])]


async def test_what_waited_for_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.gate.clear()
    ask = batcher(server, max_wait=timedelta(seconds=5))
    first = asyncio.create_task(ask("a", 1))
    await waits_for(server, 1)
    second = asyncio.create_task(ask("a", 2))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    later = loop.time() + 6
    monkeypatch.setattr(loop, "time", lambda: later)
    server.gate.set()

    assert await first == 2
    with pytest.raises(ViewUnavailable, match="too late"):
        await second
    assert server.requests == [("a", [1])]


async def test_when_the_sender_is_cancelled_no_caller_waits_for_ever() -> None:
    """As `asyncio.run` does with all tasks at its end, also while others still want to end well."""
    server = Server()
    server.gate.clear()
    ask = batcher(server)
    first = asyncio.create_task(ask("a", 1))
    await waits_for(server, 1)
    second = asyncio.create_task(ask("a", 2))
    await asyncio.sleep(0)

    for sender in ask._senders:
        sender.cancel()
    async with asyncio.timeout(SOON):
        found = await asyncio.gather(first, second, return_exceptions=True)

    assert [str(each) for each in found] == ["too late", "too late"]
    server.gate.set()
    assert await ask("a", 3) == 6


async def test_who_stops_waiting_is_left_out() -> None:
    server = Server()
    server.gate.clear()
    ask = batcher(server)
    first = asyncio.create_task(ask("a", 1))
    await waits_for(server, 1)
    second, third = asyncio.create_task(ask("a", 2)), asyncio.create_task(ask("a", 3))
    await asyncio.sleep(0)
    second.cancel()
    server.gate.set()

    assert [await first, await third] == [2, 6]
    assert server.requests == [("a", [1]), ("a", [3])]


async def test_a_caller_behind_the_end_of_an_attempt_gets_another_one() -> None:
    shared: Shared[int] = Shared()
    gate, brought = asyncio.Event(), iter(range(3))

    async def attempt() -> int:
        await gate.wait()
        return next(brought)

    async def behind() -> int:
        await gate.wait()  # woken with the attempt, just behind it
        return await shared.get(attempt)

    first = asyncio.create_task(shared.get(attempt))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(behind())
    await asyncio.sleep(0)
    gate.set()

    assert (await first, await second) == (0, 1)
    await shared.end()


@pytest.mark.parametrize("errors", [[ViewUnavailable], [KeyError, ViewUnavailable]])
async def test_tasks_together_have_ended_and_the_error_is_the_tasks_own(
    errors: list[type[Exception]],
) -> None:
    ended: list[str] = []

    async def fail(error: type[Exception]) -> None:
        raise error from OSError()

    async def work() -> None:
        try:
            await asyncio.sleep(SOON)
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    async def scene() -> None:
        async with together() as tasks:
            tasks.create_task(work())
            await asyncio.sleep(0)
            for each in errors:
                tasks.create_task(fail(each))

    with pytest.raises(ViewUnavailable) as raised:
        await scene()
    assert ended == ["work"]
    assert isinstance(raised.value.__cause__, OSError)
