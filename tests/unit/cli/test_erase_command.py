"""`postroad erase`: only on purpose, and only of a queue that is not in use."""

from __future__ import annotations

import asyncio
import json
import secrets

import pytest
from click.testing import CliRunner, Result

from postroad import Mail, open_queue
from postroad.adapters.memory.broker import MemoryBroker
from postroad.adapters.memory.servers import MemoryServers
from postroad.bootstrap import memory
from postroad.cli import main
from postroad.domain.names import QueueName
from postroad.errors import BlobsUnavailable

MAIL = Mail(sender="a@example.org", recipients=("b@example.net",), content=b"x")


@pytest.fixture
def name() -> str:
    """A queue in which two mails wait."""
    name = f"t{secrets.token_hex(4)}"

    async def fill() -> None:
        async with open_queue(f"memory://{name}", create=True) as queue:
            for _ in range(2):
                await queue.enqueue(MAIL)

    asyncio.run(fill())
    return name


def erase(name: str, *arguments: str) -> Result:
    confirm = ("--confirm", f"memory.{name}")
    return CliRunner().invoke(main, ["erase", "--queue", f"memory://{name}", *confirm, *arguments])


def is_there(name: str) -> bool:
    servers = memory.connect()
    return bool(servers.world.records(f"memory.{name}").recorded.events)


def test_a_queue_is_erased_and_again_is_fine(name: str) -> None:
    first, again = erase(name, "--json"), erase(name, "--json")

    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    (line,) = map(json.loads, first.stdout.splitlines())
    assert (line["objects"], line["rows"]) == (3, 2)  # one object names the owner
    assert line["done"] == ["bytes", "history", "messages", "rows"]
    assert not is_there(name)


@pytest.mark.parametrize("arguments", [(), ("--confirm", "memory.another")])
def test_it_needs_the_name_again(name: str, arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["erase", "--queue", f"memory://{name}", *arguments])

    assert result.exit_code == 2
    assert f"--confirm memory.{name}" in result.output
    assert is_there(name)


def test_a_queue_that_is_read_is_not_erased(name: str) -> None:
    queues = memory.connect().world.queues(f"memory.{name}")
    queues.consumers = 1

    result = erase(name)

    assert result.exit_code == 1
    assert "consumers read the queue" in result.output
    assert is_there(name)


def test_a_part_is_chosen_where_a_server_is_gone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: MemoryBroker) -> None:
        raise AssertionError("the broker is gone")

    monkeypatch.setattr(MemoryBroker, "delete", gone)
    result = erase(name, "--part", "rows", "--part", "bytes")

    assert result.exit_code == 0, result.output
    world = memory.connect().world
    assert not world.tables(f"memory.{name}").rows
    assert not world.bucket(QueueName("memory", name).bucket("")).objects


def test_a_server_that_is_away_ends_it_for_now(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: object) -> bool:
        raise BlobsUnavailable("no answer")

    blobs = type(MemoryServers.blobs(memory.connect(), "any"))
    monkeypatch.setattr(blobs, "exists", away)
    result = erase(name)

    assert result.exit_code == 75
    assert "S3 holds up the bytes: no answer" in result.output
    assert is_there(name)


def test_a_queue_without_servers_cannot_be_erased() -> None:
    result = CliRunner().invoke(
        main, ["erase", "--queue", "embedded:///nowhere", "--confirm", "nowhere"]
    )

    assert result.exit_code == 2
    assert "no servers" in result.output
