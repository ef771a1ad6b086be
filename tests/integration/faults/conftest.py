"""A stack of its own, whose servers these tests pause and kill; the shared stack stays as it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from postroad.bootstrap.cluster import connect
from postroad.errors import ServerError
from postroad.ports.servers import Servers
from postroad.settings import Settings, from_environment
from stack.local import Stack
from stack.native import NativeServer
from stack.progress import Progress
from stack.server import State
from support.lines import Lines

T = TypeVar("T")

SERVERS = ("rabbitmq", "cassandra", "s3")

BOUND_SECONDS = 45
"""A call that takes longer is taken for one that hangs; every call should end in a third of it."""

RECOVERY_SECONDS = 90
"""How long a recovery may take: a process that needs longer would need a restart."""


class Victims:
    """Servers that tests pause and kill, and the settings that lead to them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.variables: dict[str, str] = {}
        for name in SERVERS:
            self.variables.update(stack.server(name).environment())
        self.settings: Settings = from_environment(self.variables)

    async def pause(self, name: str) -> None:
        await asyncio.to_thread(self._stack.server(name).pause)

    async def resume(self, name: str) -> None:
        await asyncio.to_thread(self._stack.server(name).resume)

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self._stack.server(name).kill)

    async def up(self, name: str) -> None:
        await asyncio.to_thread(self._stack.up, [name])

    async def lines(self) -> Lines:
        """Return connections to the servers that can be cut."""
        return await Lines.to(self.variables)


@pytest.fixture(scope="package")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Start the three servers in a new folder; end them afterwards."""
    stack = Stack(
        tmp_path_factory.mktemp("stack") / "own", environment={}, progress=Progress(quiet=True)
    )
    for name in SERVERS:
        server = stack.server(name)
        if not (isinstance(server, NativeServer) and server.is_prepared()):
            required = name in os.environ.get("POSTROAD_REQUIRE", "").split(",")
            (pytest.fail if required else pytest.skip)(f"{name} cannot be run from here")
    try:
        stack.up(list(SERVERS))
        yield stack
    finally:
        stack.down()


@pytest.fixture
def victims(own_stack: Stack) -> Iterator[Victims]:
    """The servers, running; after each test, its faults are undone."""
    yield Victims(own_stack)
    for name in SERVERS:
        if own_stack.server(name).state() is State.PAUSED:
            own_stack.server(name).resume()
    own_stack.up(list(SERVERS))


@pytest.fixture
async def connected(victims: Victims) -> AsyncIterator[Servers]:
    """The servers as one of our processes sees them; the same connections all through a test."""
    connected = connect(victims.settings)
    yield connected
    await bounded(connected.close())


async def bounded(work: Awaitable[T]) -> T:
    """Wait for something that must end by itself. Raises: TimeoutError when it hangs."""
    async with asyncio.timeout(BOUND_SECONDS):
        return await work


async def recovered(action: Callable[[], Awaitable[T]]) -> T:
    """Repeat until it succeeds, as every caller of the adapters does."""
    async with asyncio.timeout(RECOVERY_SECONDS):
        while True:
            try:
                return await action()
            except ServerError as error:
                if not error.transient:
                    raise
                await asyncio.sleep(0.2)
