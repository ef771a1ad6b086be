"""Calls that are cancelled at each of their awaits: the mail is whole or not there, each item comes
to its end, and nothing stays leased."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from contract.queue_harness import plain_mail
from contract.test_memory_queue import MemoryHarness
from postroad import Mail, Outcome, Selector, open_queue
from postroad.ports.mail_queue import Item, MailQueue
from support.memory.clock import ManualClock
from support.memory.fault_injection import FaultInjector

ENGINES = ["owner", "client", "memory"]
MAX_AWAITS = 200
"""Awaits of a call; more than any has."""

LONG = 20
NUMBERS = count()
RECIPIENTS = ("a@a.example", "b@b.example")


@asynccontextmanager
async def opened(engine: str, root: Path) -> AsyncIterator[MailQueue]:
    """Open a new queue."""
    if engine == "memory":
        harness = MemoryHarness()
        passing = asyncio.ensure_future(pass_time(harness.clock))
        yield await harness.open()
        passing.cancel()
        await harness.close()
        return
    url = f"embedded://{root}/{next(NUMBERS)}"
    async with open_queue(url, create=True) as queue:
        if engine == "client":
            async with open_queue(url) as client:
                yield client
        else:
            yield queue


@pytest.fixture(autouse=True)
def memory_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request in memory wait, before and behind its effect, as those of servers do."""
    made = FaultInjector.__call__

    async def waiting(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        result = await made(*arguments)
        await asyncio.sleep(0)
        return result

    monkeypatch.setattr(FaultInjector, "__call__", waiting)


async def pass_time(clock: ManualClock) -> None:
    """Let time pass as soon as nothing else is to do."""
    while True:
        await asyncio.sleep(0.001)
        if (waking := clock.next_waking) is not None:
            await clock.advance(min(waking, timedelta(seconds=1)))


class Cancelled:
    """Awaits a call, and cancels its task at await number `at`: while it waits, or as what it waits
    for is there."""

    def __init__(self, call: Awaitable[object], at: int, *, is_late: bool) -> None:
        self._call, self._at, self._is_late = call, at, is_late
        self.awaits = 0

    async def run(self) -> bool:
        """Return whether there was such an await."""
        task = asyncio.ensure_future(self._run())
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        return self.awaits >= self._at

    async def _run(self) -> None:
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._call.__await__()
        step: Callable[[Any], Any] = inner.send
        argument: Any = None
        while True:
            try:
                waited = step(argument)
            except StopIteration:
                return
            self.awaits += 1
            if self.awaits == self._at:
                self._cancel(waited)
            try:
                step, argument = inner.send, (yield waited)
            except BaseException as error:
                step, argument = inner.throw, error

    def _cancel(self, waited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._is_late and waited is not None:
            waited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def at_each_await(
    engine: str, root: Path, check: Callable[[MailQueue, int], Awaitable[bool]]
) -> None:
    for at in range(1, MAX_AWAITS):
        async with asyncio.timeout(LONG), opened(engine, root) as queue:
            if not await check(queue, at):
                return
    raise AssertionError("the call has too many awaits")


async def drained(queue: MailQueue) -> list[tuple[str | None, bytes]]:
    """End all that waits, one at a time; return names and contents."""
    found = []
    items = queue.dequeue(1)
    while [view async for view in queue.browse()]:
        item = await anext(items)
        found.append((item.mail.name, await item.content()))
        await item.done()
    return found


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["plain", "keyed", "delayed", "streamed"])
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_cancelled_enqueue_queues_the_mail_whole_or_not_at_all(
    engine: str, kind: str, is_late: bool, tmp_path: Path
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"con"
        await asyncio.sleep(0)
        yield b"tent"

    async def check(queue: MailQueue, at: int) -> bool:
        streamed = pieces() if kind == "streamed" else b"content"
        mail = Mail("s@s.example", RECIPIENTS, streamed, name="cut")
        delay = timedelta(milliseconds=kind == "delayed")
        key = "key" if kind == "keyed" else None
        reached = await Cancelled(
            queue.enqueue(mail, delay, key=key),
            at,
            is_late=is_late,
        ).run()
        if key is not None:
            await queue.enqueue(mail, key=key)
        await queue.enqueue(plain_mail("next", content=b"more"))
        found = await drained(queue)
        assert found.count(("next", b"more")) == 1
        cut = [each for each in found if each[0] == "cut"]
        assert cut in ([("cut", b"content")], [] if key is None else [("cut", b"content")])
        return reached

    await at_each_await(engine, tmp_path, check)


ENDINGS: dict[str, Callable[[Item], Awaitable[None]]] = {
    "done": lambda item: item.done(),
    "retry": lambda item: item.retry(timedelta(0)),
    "retry of some": lambda item: item.retry(timedelta(0), RECIPIENTS[:1]),
    "defer": lambda item: item.defer(timedelta(0)),
    "record": lambda item: item.record({RECIPIENTS[0]: Outcome.delivered()}),
    "reject": lambda item: item.reject("no"),
}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_cancelled_ending_is_made_or_gives_the_item_back(
    engine: str, ending: str, is_late: bool, tmp_path: Path
) -> None:
    async def check(queue: MailQueue, at: int) -> bool:
        mail = Mail("s@s.example", RECIPIENTS, b"content", name="cut")
        await queue.enqueue(mail)
        items = queue.dequeue(1)
        item = await anext(items)
        reached = await Cancelled(
            ENDINGS[ending](item),
            at,
            is_late=is_late,
        ).run()
        if ending == "record":
            await item.give_back()
        await queue.enqueue(plain_mail("next", content=b"more"))

        found, names = [], []
        while [view async for view in queue.browse()]:
            item = await anext(items)
            found.append((item.mail.name, await item.content()))
            names.append(item.mail.recipients)
            await item.done()

        assert found.count(("next", b"more")) == 1
        assert found.count(("cut", b"content")) <= 1
        dead = [view async for view in queue.dead_letters()]
        assert len(dead) + found.count(("cut", b"content")) <= 1
        if ending not in {"done", "reject"}:
            assert found.count(("cut", b"content")) == 1
        return reached

    await at_each_await(engine, tmp_path, check)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_cancelled_wait_leaves_no_item_behind(
    engine: str, is_late: bool, tmp_path: Path
) -> None:
    async def check(queue: MailQueue, at: int) -> bool:
        await queue.enqueue(plain_mail("m", content=b"content"))
        waiting = anext(queue.dequeue(1))
        reached = await Cancelled(_end(waiting), at, is_late=is_late).run()
        assert await drained(queue) == [("m", b"content")] or not reached
        return reached

    await at_each_await(engine, tmp_path, check)


async def _end(waiting: Awaitable[Item]) -> None:
    item = await waiting
    await item.give_back()


@pytest.fixture(params=ENGINES)
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MailQueue]:
    async with opened(request.param, tmp_path) as queue:
        yield queue


async def test_an_item_whose_handler_failed_comes_again_as_a_failed_attempt(
    queue: MailQueue,
) -> None:
    await queue.enqueue(plain_mail("m"))
    items = queue.dequeue(1)
    with pytest.raises(ArithmeticError):
        async with await anext(items):
            raise ArithmeticError("secret")

    (view,) = [view async for view in queue.browse()]
    assert (view.attempt, view.last_error) == (1, "ArithmeticError")
    assert view.due_at is not None
    await queue.flush(Selector.all())
    again = await anext(items)
    assert again.attempt == 1
    await again.done()


async def test_an_item_whose_handler_was_cancelled_comes_again_at_once(queue: MailQueue) -> None:
    await queue.enqueue(plain_mail("m"))
    items, has_begun = queue.dequeue(1), asyncio.Event()

    async def handle() -> None:
        async with await anext(items):
            has_begun.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(handle())
    await has_begun.wait()
    task.cancel()
    await asyncio.wait({task})

    async with asyncio.timeout(LONG), await anext(queue.dequeue(1)) as again:
        assert again.attempt == 0
        await again.done()
    assert [view async for view in queue.browse()] == []


async def test_an_item_that_its_block_ended_is_left_alone(queue: MailQueue) -> None:
    await queue.enqueue(plain_mail("m"))
    async with await anext(queue.dequeue(1)) as item:
        await item.done()
    with pytest.raises(ArithmeticError):
        async with item:
            raise ArithmeticError
    await item.give_back()
    assert [view async for view in queue.browse()] == []


async def test_an_item_that_is_left_open_goes_back_less_those_recorded(queue: MailQueue) -> None:
    await queue.enqueue(plain_mail("m", recipients=RECIPIENTS))
    items = queue.dequeue(1)
    async with await anext(items) as item:
        await item.record({RECIPIENTS[0]: Outcome.delivered()})

    again = await anext(items)
    assert again.mail.recipients == RECIPIENTS[1:]
    await again.done()
