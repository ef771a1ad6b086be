"""Queues that are made at the same time have one reading of the list of leftovers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from postroad.adapters.memory.clock import ManualClock
from postroad.adapters.memory.fault_injection import Step, away
from postroad.adapters.memory.kubernetes import MemoryKubernetes
from postroad.adapters.memory.kubernetes_world import KubernetesWorld
from postroad.controller.api import CONFIG_MAP
from postroad.controller.leftovers import NAME, Leftover, Leftovers
from postroad.errors import KubernetesUnavailable

NAMESPACE = "postroad-system"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def leftover(name: str) -> Leftover:
    found = {"metadata": {"namespace": "mail", "name": name}, "spec": {}}
    return Leftover.of(found, {"BYTES": "the store was away"}, "bucket", NOW)


@pytest.fixture
def api() -> MemoryKubernetes:
    return MemoryKubernetes(KubernetesWorld(ManualClock()))


async def listed(api: MemoryKubernetes) -> set[str]:
    found = await api.get(CONFIG_MAP, NAMESPACE, NAME) or {}
    return set(found.get("data") or {})


async def test_many_queues_read_it_together_and_take_their_entries_off(
    api: MemoryKubernetes,
) -> None:
    leftovers = Leftovers(api, NAMESPACE)
    for name in ("a", "b", "gone"):
        await leftovers.add(leftover(name))
    before = len(api.faults.steps)

    await asyncio.gather(*(leftovers.take_over(f"mail.{name}") for name in "abcdefgh"))

    reads = [each for each in api.faults.steps[before:] if each.operation.startswith("get")]
    assert len(reads) == 1
    assert await listed(api) == {"mail.gone"}


async def test_a_queue_that_comes_during_a_reading_has_the_next_one(api: MemoryKubernetes) -> None:
    """The entry may have been written since that one began."""
    leftovers = Leftovers(api, NAMESPACE)
    await leftovers.add(leftover("other"))
    go_on = asyncio.Event()

    async def wait(step: Step) -> None:
        await go_on.wait()

    api.faults.before = wait
    first = asyncio.ensure_future(leftovers.take_over("mail.first"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(leftovers.take_over("mail.second"))
    await asyncio.sleep(0)
    api.faults.before = None
    await leftovers.add(leftover("second"))
    go_on.set()
    await asyncio.gather(first, second)

    assert await listed(api) == {"mail.other"}


async def test_an_api_server_that_is_away_is_an_error_of_each(api: MemoryKubernetes) -> None:
    leftovers = Leftovers(api, NAMESPACE)
    api.faults.plan = away("kubernetes")

    done = await asyncio.gather(
        *(leftovers.take_over(f"mail.{name}") for name in "ab"), return_exceptions=True
    )

    assert [type(each) for each in done] == [KubernetesUnavailable] * 2
