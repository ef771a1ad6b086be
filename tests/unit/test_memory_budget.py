"""Room in memory: bounded, first come, first served, and not all of it for one holder."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.contents import MemoryBudget


class Takers:
    """Contents that want room in the order of `take`."""

    def __init__(self, octets: int) -> None:
        self.room = MemoryBudget(octets)
        self.have: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def take(self, name: str, octets: int, holder: str | None = None) -> None:
        self._tasks[name] = asyncio.create_task(self._hold(name, octets, holder))
        await self.settle()

    async def leave(self, name: str) -> None:
        self.have.pop(name).set()
        await self._tasks[name]
        await self.settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _hold(self, name: str, octets: int, holder: str | None) -> None:
        async with self.room.taken(octets, holder):
            ended = self.have[name] = asyncio.Event()
            try:
                await ended.wait()
            finally:
                self.have.pop(name, None)


async def test_a_content_larger_than_all_room_has_all_of_it_alone() -> None:
    takers = Takers(5)
    await takers.take("a", 2)
    await takers.take("large", 6, holder="hop")
    await takers.take("b", 1)
    assert set(takers.have) == {"a"}, "b would leave it too little"
    await takers.leave("a")
    assert set(takers.have) == {"large"}
    await takers.leave("large")
    assert set(takers.have) == {"b"}
    await takers.leave("b")


async def test_room_is_given_in_the_order_of_arrival() -> None:
    takers = Takers(5)
    for name, octets in (("a", 2), ("b", 2), ("c", 4), ("d", 2)):
        await takers.take(name, octets)
    assert set(takers.have) == {"a", "b"}
    await takers.leave("a")
    assert set(takers.have) == {"b"}, "c needs both places, and d would leave it too little"
    await takers.leave("b")
    assert set(takers.have) == {"c"}
    await takers.leave("c")
    assert set(takers.have) == {"d"}


async def test_a_holder_has_half_of_what_others_leave() -> None:
    takers = Takers(16)
    for number in range(9):
        await takers.take(f"a{number}", 1, "a")
    assert len(takers.have) == 8
    for number in range(9):
        await takers.take(f"b{number}", 1, "b")
    assert Counter(name[0] for name in takers.have) == {"a": 8, "b": 4}
    await takers.take("c", 4, "c")
    assert "c" in takers.have, "who has none gets what is free"
    await takers.leave("b0")
    await takers.leave("b1")
    await takers.take("c1", 1, "c")
    assert Counter(name[0] for name in takers.have) == {"a": 8, "b": 2, "c": 1}


async def test_a_content_that_waits_lets_those_pass_that_leave_enough_for_it() -> None:
    takers = Takers(12)
    await takers.take("slow", 6, "slow")
    await takers.take("large", 8, "large")
    for number in range(4):
        await takers.take(f"s{number}", 1, f"s{number}")
    await takers.take("s4", 1, "s4")
    assert set(takers.have) == {"slow", "s0", "s1", "s2", "s3"}
    await takers.leave("s0")
    assert "s4" in takers.have
    await takers.leave("slow")
    assert set(takers.have) == {"large", "s1", "s2", "s3", "s4"}


@pytest.mark.parametrize("leaves", ["large", "slow"])
async def test_one_that_no_longer_waits_blocks_none(leaves: str) -> None:
    takers = Takers(10)
    await takers.take("slow", 6, "slow")
    await takers.take("large", 10, "large")
    await takers.take("small", 1, "small")
    assert set(takers.have) == {"slow"}
    await takers.cancel(leaves)
    if leaves == "slow":
        assert set(takers.have) == {"large"}
        await takers.leave("large")
    assert "small" in takers.have
    await takers.take("all", 10)
    for name in sorted(takers.have):
        await takers.leave(name)
    assert set(takers.have) == {"all"}, "all was given back"


async def test_one_that_was_cancelled_gets_nothing_before_it_can_leave() -> None:
    takers = Takers(10)
    await takers.take("a", 10)
    await takers.take("b", 10)
    await takers.take("c", 10)
    await asyncio.gather(takers.leave("a"), takers.cancel("b"))
    assert set(takers.have) == {"c"}
    await takers.leave("c")


STEPS = st.lists(st.tuples(st.integers(0, 10), st.sampled_from("abc"), st.booleans()), max_size=30)


@given(STEPS)
def test_the_room_is_never_exceeded_and_each_one_gets_some(
    steps: list[tuple[int, str, bool]],
) -> None:
    async def run() -> None:
        room, taken, order = MemoryBudget(10), 0, list[int]()

        async def use(number: int, octets: int, holder: str) -> None:
            nonlocal taken
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(room.taken(octets, holder))
                taken += octets
                assert taken <= 10
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                taken -= octets
                order.append(number)

        tasks = []
        for number, (octets, holder, waits) in enumerate(steps):
            tasks.append(asyncio.create_task(use(number, octets, holder)))
            if waits:
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        assert sorted(order) == list(range(len(steps)))

    asyncio.run(run())
