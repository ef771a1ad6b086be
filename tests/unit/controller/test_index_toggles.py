"""Objects that wait until all are indexed cost no wake-up for each that is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest
from kopf._cogs.aiokits import aiotoggles
from kopf._core.reactor import orchestration

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


class _Seen(Exception):
    """Kopf has come to where it makes the set."""


async def test_objects_of_kopf_wait_by_such_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made, unread = dict[str, object](), cast("Any", None)

    def ensemble(**named: object) -> None:
        made.update(named)
        raise _Seen

    monkeypatch.setattr(aiotoggles, "ToggleSet", aiotoggles.ToggleSet)  # put back afterwards
    monkeypatch.setattr(orchestration, "Ensemble", ensemble)
    replace_toggles()

    with pytest.raises(_Seen):
        await orchestration.orchestrator(
            processor=unread,
            settings=unread,
            identity=unread,
            insights=unread,
            operator_paused=aiotoggles.ToggleSet(any),
        )

    assert isinstance(made["operator_indexed"], IndexToggles)
