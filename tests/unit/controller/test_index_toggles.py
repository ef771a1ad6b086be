"""Objects do not wait for each other until all are indexed; the first reconcile does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from kopf._cogs.aiokits import aiotoggles
from kopf._core.reactor import orchestration

from postroad.controller.run.index_toggles import IndexToggles, waiting_reconciles


@pytest.fixture
def complete() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def indexed(complete: asyncio.Event) -> IndexToggles:
    return IndexToggles(complete)


async def kinds_of(indexed: IndexToggles, count: int) -> list[aiotoggles.Toggle]:
    """Make the toggles of so many kinds, as Kopf does: it holds another one meanwhile."""
    blocker = await indexed.make_toggle()
    kinds = [await indexed.make_toggle() for _ in range(count)]
    await indexed.drop_toggle(blocker)
    return kinds


async def test_an_object_waits_for_no_other_one(
    indexed: IndexToggles, complete: asyncio.Event
) -> None:
    (kind,) = await kinds_of(indexed, 1)
    toggles = [await indexed.make_toggle() for _ in range(3)]
    for each in toggles:
        await indexed.drop_toggle(each)
        await indexed.wait_for(True)
    assert not complete.is_set()

    await indexed.drop_toggle(kind)
    assert complete.is_set()


async def test_reconciles_wait_for_all_kinds_and_their_objects(
    indexed: IndexToggles, complete: asyncio.Event
) -> None:
    first, second = await kinds_of(indexed, 2)
    await indexed.drop_toggle(first)
    late = await indexed.make_toggle()
    await indexed.drop_toggles([second])
    assert not complete.is_set()

    await indexed.drop_toggle(late)
    assert complete.is_set()


async def test_reconciles_wait_until_kopf_knows_the_kinds(
    indexed: IndexToggles, complete: asyncio.Event
) -> None:
    assert await kinds_of(indexed, 0) == []
    assert not complete.is_set()


class _Seen(Exception):
    """Kopf has come to where it makes the set."""


async def test_kopf_waits_for_its_indexes_by_such_a_set(
    monkeypatch: pytest.MonkeyPatch, complete: asyncio.Event
) -> None:
    made, unread = dict[str, object](), cast("Any", None)

    def ensemble(**named: object) -> None:
        made.update(named)
        raise _Seen

    monkeypatch.setattr(aiotoggles, "ToggleSet", aiotoggles.ToggleSet)  # put back afterwards
    monkeypatch.setattr(orchestration, "Ensemble", ensemble)
    waiting_reconciles(complete)
    make = cast("Callable[..., aiotoggles.ToggleSet]", aiotoggles.ToggleSet)

    with pytest.raises(_Seen):
        await orchestration.orchestrator(
            processor=unread,
            settings=unread,
            identity=unread,
            insights=unread,
            operator_paused=make(any),
        )

    assert isinstance(made["operator_indexed"], IndexToggles)
    assert not isinstance(made["operator_paused"], IndexToggles)
