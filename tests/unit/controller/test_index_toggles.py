"""Objects that wait until all are indexed cost no wake-up for each that is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kopf._cogs.aiokits import aiotoggles

from postroad.controller.index_toggles import IndexToggles, replace_toggles

OBJECTS = 300


async def test_objects_wake_once_all_are_indexed() -> None:
    looks = 0

    def all_on(states: Iterable[bool]) -> bool:
        nonlocal looks
        looks += 1
        return all(states)

    indexed, order = IndexToggles(all_on), list[str]()
    toggles = [await indexed.make_toggle(name=f"object {n}") for n in range(OBJECTS)]

    async def index(toggle: aiotoggles.Toggle) -> None:
        await indexed.drop_toggle(toggle)
        order.append("indexed")
        await indexed.wait_for(True)
        order.append("handled")

    await asyncio.gather(*map(index, toggles))

    assert order == ["indexed"] * OBJECTS + ["handled"] * OBJECTS
    assert looks < 10 * OBJECTS


async def test_a_toggle_that_comes_later_is_waited_for() -> None:
    indexed = IndexToggles(all)
    kinds = [await indexed.make_toggle(), await indexed.make_toggle()]
    waiting = asyncio.create_task(indexed.wait_for(True))
    await indexed.drop_toggle(kinds[0])
    await asyncio.sleep(0)
    late = await indexed.make_toggle()

    await indexed.drop_toggles([kinds[1]])
    await asyncio.sleep(0)
    assert not waiting.done()

    await indexed.drop_toggle(late)
    await waiting
    assert indexed.is_on()


def test_kopf_makes_such_sets() -> None:
    replace_toggles()

    assert aiotoggles.ToggleSet is IndexToggles
