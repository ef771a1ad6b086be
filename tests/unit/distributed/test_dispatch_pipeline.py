"""A consumer's references become items in about their order, within its prefetch, and none is left
behind when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from postroad.distributed.dequeue.dispatch import DispatchPipeline, PrefetchPlace
from postroad.distributed.dequeue.items import DistributedItem
from postroad.ports.broker import Delivery


class OneItem(DistributedItem):
    """An item that notes that it was given back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.was_given_back = False

    async def give_back(self) -> None:
        self.was_given_back = True


class Belt:
    """A subscription and the dispatch of its deliveries, in the hands of a test. What is dispatched
    ends as `end` sets: with an item, with none or with an error."""

    def __init__(self, prefetch: int) -> None:
        self._coming: asyncio.Queue[str | None] = asyncio.Queue()
        self.dispatched: dict[str, asyncio.Future[OneItem | None]] = {}
        self.places: dict[str, PrefetchPlace] = {}
        self.cancelled: list[str] = []
        self.closed = False
        deliveries = cast("AsyncIterator[Delivery]", self)
        self.pipeline = DispatchPipeline(deliveries, prefetch, cast("Any", self._dispatch))

    def __aiter__(self) -> Belt:
        return self

    async def __anext__(self) -> str:
        found = await self._coming.get()
        if found is None:
            raise StopAsyncIteration
        return found

    async def aclose(self) -> None:
        self.closed = True

    async def arrive(self, *names: str | None) -> None:
        for name in names:
            self._coming.put_nowait(name)
        for _ in range(20):
            await asyncio.sleep(0)

    async def _dispatch(self, name: str, place: PrefetchPlace) -> OneItem | None:
        self.places[name] = place
        self.dispatched[name] = asyncio.get_running_loop().create_future()
        try:
            return await self.dispatched[name]
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def end(self, name: str, result: OneItem | Exception | None) -> None:
        if isinstance(result, Exception):
            self.dispatched[name].set_exception(result)
        else:
            self.dispatched[name].set_result(result)
        await self.arrive()


async def taken(belt: Belt) -> str:
    item = await asyncio.wait_for(belt.pipeline.next_item(), 60)
    return cast("OneItem", item).name


async def test_of_those_that_are_ready_the_earliest_leaves_first() -> None:
    belt = Belt(9)
    await belt.arrive("a", "b", "c")
    await belt.end("c", OneItem("c"))
    assert await taken(belt) == "c", "one that waits delays none"

    await belt.end("b", OneItem("b"))
    await belt.end("a", OneItem("a"))

    assert [await taken(belt), await taken(belt)] == ["a", "b"]
    await belt.pipeline.close()


async def test_places_are_kept_until_they_are_freed_once() -> None:
    belt = Belt(2)
    await belt.arrive("a", "b", "c", "d")
    assert list(belt.dispatched) == ["a", "b"]

    await belt.end("a", OneItem("a"))
    assert list(belt.dispatched) == ["a", "b"], "its item has the place"
    for _ in range(3):
        belt.places["a"].free()
    await belt.arrive()
    assert list(belt.dispatched) == ["a", "b", "c"]
    await belt.end("b", None)

    assert list(belt.dispatched) == ["a", "b", "c", "d"], "without an item it is free"
    await belt.pipeline.close()


async def test_the_end_of_the_subscription_waits_for_what_is_under_way() -> None:
    belt = Belt(9)
    await belt.arrive("a", None)
    waiting = asyncio.ensure_future(belt.pipeline.next_item())
    await belt.arrive()
    assert not waiting.done()

    await belt.end("a", OneItem("a"))

    assert cast("OneItem", await waiting).name == "a"
    assert await asyncio.wait_for(belt.pipeline.next_item(), 60) is None
    await belt.pipeline.close()


async def test_a_waiting_consumer_ends_with_the_subscription() -> None:
    belt = Belt(9)
    waiting = asyncio.ensure_future(belt.pipeline.next_item())
    await belt.arrive()
    await belt.arrive(None)

    assert await asyncio.wait_for(waiting, 60) is None
    await belt.pipeline.close()


async def test_an_error_of_a_dispatch_is_the_consumers() -> None:
    belt = Belt(9)
    await belt.arrive("a")
    await belt.end("a", ValueError("permanent"))

    with pytest.raises(ValueError, match="permanent"):
        await belt.pipeline.next_item()
    await belt.pipeline.close()


async def test_an_error_of_the_subscription_is_the_consumers() -> None:
    class Broken(Belt):
        async def __anext__(self) -> str:
            raise ValueError("permanent")

    belt = Broken(9)

    with pytest.raises(ValueError, match="permanent"):
        await asyncio.wait_for(belt.pipeline.next_item(), 60)
    await belt.pipeline.close()


async def test_closing_cancels_what_is_under_way_and_gives_back_what_is_ready() -> None:
    belt = Belt(9)
    await belt.arrive("a", "b", "c", "d")
    ready, handed_out = OneItem("b"), OneItem("a")
    await belt.end("a", handed_out)
    assert await taken(belt) == "a"
    await belt.end("b", ready)
    await belt.end("c", ValueError("permanent"))

    await belt.pipeline.close()

    assert belt.cancelled == ["d"]
    assert (ready.was_given_back, handed_out.was_given_back) == (True, False)
    assert belt.closed
