"""`postroad erase`: only on purpose, and only of a queue that is not in use."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result
from kubernetes.config import kube_config

from postroad import Mail, open_queue
from postroad.adapters.clocks import MachineClock
from postroad.adapters.memory.broker import MemoryBroker
from postroad.adapters.memory.servers import MemoryServers
from postroad.bootstrap import engine
from postroad.cli import main
from postroad.controller.kubernetes.api import CONFIG_MAP
from postroad.controller.mailqueue.orphans import NAME as ORPHANS
from postroad.controller.mailqueue.orphans import OrphanList, OrphanRecord
from postroad.domain.queues.names import QueueName
from postroad.errors import BlobsUnavailable
from support.api_over_http import HttpKubernetes, api_over_http
from support.leader_rounds import kubeconfig_of
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld, ObjectPlace

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
    servers = engine.connect()
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
    queues = engine.connect().world.queues(f"memory.{name}")
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
    world = engine.connect().world
    assert not world.tables(f"memory.{name}").rows
    assert not world.bucket(QueueName("memory", name).bucket("")).objects


def test_a_server_that_is_away_ends_it_for_now(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: object) -> bool:
        raise BlobsUnavailable("no answer")

    blobs = type(MemoryServers.blobs(engine.connect(), "any"))
    monkeypatch.setattr(blobs, "exists", away)
    result = erase(name)

    assert result.exit_code == 75
    assert "S3 blocks the bytes: no answer" in result.output
    assert is_there(name)


def test_a_queue_without_servers_cannot_be_erased() -> None:
    result = CliRunner().invoke(
        main, ["erase", "--queue", "embedded:///nowhere", "--confirm", "nowhere"]
    )

    assert result.exit_code == 2
    assert "no servers" in result.output


REASONS = {"messages": "gone", "bytes": "gone", "history": "gone"}


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpKubernetes]:
    """An API server, which the kubeconfig names."""
    async with api_over_http(KubernetesWorld(MachineClock())) as (url, served):
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_of(url)))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield served


def listed(served: HttpKubernetes) -> dict[str, list[str]]:
    """Return the parts that the list has, by queue."""
    found = served.world.objects[ObjectPlace(CONFIG_MAP.plural, "postroad-system", ORPHANS)]
    return {queue: list(json.loads(text)["left"]) for queue, text in found["data"].items()}


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ((), None),
        (("--part", "rows", "--part", "bytes"), ["messages", "history"]),
        (("--part", "messages"), ["bytes", "history"]),
    ],
)
async def test_what_is_erased_is_taken_off_the_list(
    arguments: tuple[str, ...], left: list[str] | None, served: HttpKubernetes, name: str
) -> None:
    queue, orphans = (
        f"memory.{name}",
        OrphanList(MemoryKubernetes(served.world), "postroad-system"),
    )
    for each in (queue, "mail.another"):
        await orphans.add(OrphanRecord(each, "mail/main", "bucket", REASONS, "an instant"))

    listed_in = ("--listed-in", "postroad-system")
    first = await asyncio.to_thread(erase, name, *arguments, *listed_in)
    again = await asyncio.to_thread(erase, name, *arguments, *listed_in)

    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    assert listed(served) == {"mail.another": list(REASONS)} | ({queue: left} if left else {})
    assert (left is None) == ("still listed" not in first.output)


async def test_a_list_that_may_not_be_changed_is_an_error_behind_the_erasure(
    name: str, served: HttpKubernetes
) -> None:
    refusal = {"message": "configmaps is forbidden"}
    served.answers.append(web.json_response(refusal, status=403))
    result = await asyncio.to_thread(erase, name, "--listed-in", "postroad-system")

    assert result.exit_code == 1
    assert "configmaps is forbidden" in result.output
    assert not is_there(name)
