"""A stack for these tests alone, with its own folder, ports and names."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from stack.local import Stack
from stack.native import NativeServer
from stack.progress import Progress


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a stack in a new folder, which is removed afterwards."""
    folder = tmp_path_factory.mktemp("stack") / "own"
    made = Stack(folder, environment={}, progress=Progress(quiet=True))
    yield made
    made.down()
    assert not folder.exists()


@pytest.fixture
def quickest_up(own_stack: Stack) -> Callable[[str], float]:
    """Return a function that runs `up` three times; the shortest time shows what `up` costs by
    itself."""

    def measure(name: str) -> float:
        times = []
        for _ in range(3):
            begun = time.monotonic()
            own_stack.up([name])
            times.append(time.monotonic() - begun)
        return min(times)

    return measure


@pytest.fixture(scope="module")
def prepared(own_stack: Stack) -> Callable[[str], NativeServer]:
    """Return a server that needs no building first; else skip the test, or fail it where the server
    is required."""

    def choose(name: str) -> NativeServer:
        server = own_stack.server(name)
        if not isinstance(server, NativeServer):
            pytest.skip(f"{name} is run by: {server.provider}")
        as_root = name != "kubernetes" or os.geteuid() == 0
        if not (as_root and server.is_prepared()):
            required = name in os.environ.get("POSTROAD_REQUIRE", "").split(",")
            (pytest.fail if required else pytest.skip)(
                f"{name} is not prepared here: `python -m stack prepare {name}`"
            )
        return server

    return choose
