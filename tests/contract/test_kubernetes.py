"""The contract of Kubernetes API servers, in memory: as it is, and by HTTP requests.

`tests/controller` has it over a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from aiohttp import web

from contract.kubernetes_contract import (
    IN_TIME,
    KubernetesContract,
    Watching,
    config_map,
    names,
    watching_over,
)
from postroad.adapters.kubernetes.api_requests import ApiAccess
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import CONFIG_MAP
from postroad.ports.kubernetes import COMPLETE, LISTED
from support.access_to_kubernetes import access_to
from support.api_over_http import KINDS, api_over_http
from support.memory.clock import ManualClock
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

FIRST, SECOND = "postroad", "postroad-test"


class TestMemoryKubernetes(KubernetesContract):
    """Over memory."""

    @pytest.fixture
    def api(self) -> MemoryKubernetes:
        return MemoryKubernetes(KubernetesWorld(ManualClock(), KINDS), FIRST)

    @pytest.fixture
    def other(self, api: MemoryKubernetes) -> MemoryKubernetes:
        return MemoryKubernetes(api.world, SECOND)

    @pytest.fixture
    def namespace(self) -> str:
        return "mail"

    @pytest.fixture
    def watching(self, api: MemoryKubernetes) -> Watching:
        return api.world.watch


class TestApiServer(KubernetesContract):
    """The client of API servers, over one in memory."""

    @pytest.fixture
    async def access(self) -> AsyncIterator[ApiAccess]:
        async with api_over_http(KubernetesWorld(ManualClock(), KINDS)) as (url, _):
            yield access_to(url)

    @pytest.fixture
    async def api(self, access: ApiAccess) -> AsyncIterator[ApiServer]:
        server = ApiServer(access, FIRST)
        yield server
        await server.close()

    @pytest.fixture
    async def other(self, access: ApiAccess) -> AsyncIterator[ApiServer]:
        server = ApiServer(access, SECOND)
        yield server
        await server.close()

    @pytest.fixture
    def namespace(self) -> str:
        return "mail"

    @pytest.fixture
    def watching(self, api: ApiServer) -> Watching:
        return watching_over(api)


async def test_watch_in_memory_lists_again_after_a_version_that_is_gone() -> None:
    world = KubernetesWorld(ManualClock(), KINDS)
    api = MemoryKubernetes(world, FIRST)
    await api.create(CONFIG_MAP, config_map("mail", "one"))
    async with aclosing(api.watch(CONFIG_MAP, "mail")) as events:
        await anext(events), await anext(events)
        await api.create(CONFIG_MAP, config_map("mail", "two"))
        world.forget_changes()

        again = [await anext(events) for _ in range(3)]

    assert names(again[:2]) == [(LISTED, "one"), (LISTED, "two")]
    assert again[2] == (COMPLETE, {})


async def test_watch_over_http_lists_again_after_a_version_that_is_gone() -> None:
    world = KubernetesWorld(ManualClock(), KINDS)
    async with api_over_http(world) as (url, server):
        api = ApiServer(access_to(url), FIRST)
        await api.create(CONFIG_MAP, config_map("mail", "one"))
        async with asyncio.timeout(IN_TIME), aclosing(api.watch(CONFIG_MAP, "mail")) as events:
            await anext(events), await anext(events)
            await api.create(CONFIG_MAP, config_map("mail", "two"))
            world.forget_changes()
            await server.break_watches()

            again = [await anext(events) for _ in range(3)]
        await api.close()

    assert names(again[:2]) == [(LISTED, "one"), (LISTED, "two")]
    assert again[2] == (COMPLETE, {})


async def test_watch_over_http_goes_on_after_a_login_that_was_refused() -> None:
    async with api_over_http(KubernetesWorld(ManualClock(), KINDS)) as (url, server):
        api = ApiServer(access_to(url), FIRST)
        server.answers.append(web.json_response({"message": "Unauthorized"}, status=401))
        async with asyncio.timeout(IN_TIME), aclosing(api.watch(CONFIG_MAP, "mail")) as events:
            assert await anext(events) == (COMPLETE, {})
        await api.close()
    assert server.answers == []
