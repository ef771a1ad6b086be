"""Watched kinds are read from memory, and never older than what the operator wrote itself."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    INSTANCE,
    MAIL_QUEUE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    SECRET,
    SERVICE,
)
from postroad.controller.reads import Indexes, WatchedKubernetes, as_object
from postroad.errors import KubernetesConflict
from postroad.ports.kubernetes import Kind, Object
from support.memory.clock import ManualClock
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import mail_queue, queue_cluster, secret

LABELS = f"{MANAGED_BY}=postroad,{INSTANCE}=outgoing"


class Watching:
    """A client whose index a test brings up to date."""

    def __init__(self, *namespaces: str) -> None:
        self.requests = MemoryKubernetes(KubernetesWorld(ManualClock()))
        self.user = MemoryKubernetes(self.requests.world, "user")
        indexes = Indexes()
        self.index = indexes.objects
        self.api = WatchedKubernetes(self.requests, indexes, namespaces)

    def watch(self, found: Object, *, gone: bool = False) -> Object:
        """Bring an event."""
        entries = {} if gone else as_object(deepcopy(found))
        self.index.put(found["metadata"]["uid"], entries)
        self.api.notice(found, gone=gone)
        return found

    async def queue(self, name: str = "outgoing") -> Object:
        return self.watch(await self.user.create(MAIL_QUEUE, mail_queue("mail", name)))

    async def found(self) -> Object:
        found = await self.api.get(MAIL_QUEUE, "mail", "outgoing")
        assert found
        return found

    def count(self, verb: str) -> int:
        return sum(each.operation.startswith(verb) for each in self.requests.faults.steps)


def child(kind: Kind = CONFIG_MAP, **data: Any) -> Object:
    labels = {MANAGED_BY: "postroad", INSTANCE: "outgoing"}
    metadata = {"name": "outgoing-queue", "namespace": "mail", "labels": labels}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "data": data}


async def test_resources_and_children_cost_no_request() -> None:
    watching = Watching()
    await watching.queue()
    watching.watch(await watching.user.create(CONFIG_MAP, child()))

    assert await watching.api.get(MAIL_QUEUE, "mail", "outgoing")
    assert await watching.api.get(MAIL_QUEUE, "mail", "other") is None
    assert len(await watching.api.list(MAIL_QUEUE)) == 1
    assert len(await watching.api.list(MAIL_QUEUE, "mail")) == 1
    assert await watching.api.list(MAIL_QUEUE, "elsewhere") == []
    assert len(await watching.api.list(CONFIG_MAP, "mail", LABELS)) == 1
    assert await watching.api.list(SERVICE, "mail", LABELS) == []
    assert watching.requests.faults.steps == []


async def test_what_no_watch_has_is_a_request() -> None:
    watching = Watching("mail")
    await watching.user.create(SECRET, secret("mail", "rabbitmq", {}))
    await watching.user.create(CONFIG_MAP, child())
    await watching.user.create(MAIL_QUEUE, mail_queue("elsewhere"))

    assert await watching.api.get(SECRET, "mail", "rabbitmq")
    assert await watching.api.get(CONFIG_MAP, "mail", "outgoing-queue"), "perhaps without labels"
    assert await watching.api.get(MAIL_QUEUE, "elsewhere", "outgoing"), "not a watched namespace"
    assert await watching.api.list(MAIL_QUEUE, "elsewhere")
    assert (watching.count("get"), watching.count("list")) == (3, 1)


async def test_a_queue_cluster_is_found_before_its_watch_brings_it() -> None:
    """Applied with its MailQueues, it may be seen after them: none is to report it missing."""
    watching = Watching()
    await watching.user.create(QUEUE_CLUSTER, queue_cluster("mail"))

    assert await watching.api.get(QUEUE_CLUSTER, "mail", "main")
    assert await watching.api.get(QUEUE_CLUSTER, "mail", "other") is None


async def test_the_operator_reads_what_it_wrote_before_the_watch_brings_it() -> None:
    watching = Watching()
    before = await watching.queue()

    written = await watching.api.replace_status(MAIL_QUEUE, {**before, "status": {"size": 1}})
    assert written
    assert (await watching.found())["status"] == {"size": 1}
    watching.watch(before)
    assert (await watching.found())["status"] == {"size": 1}, "an event of before the write"

    changed = await watching.user.patch(MAIL_QUEUE, "mail", "outgoing", {"spec": {"hostname": "a"}})
    assert changed
    watching.watch(changed)
    assert (await watching.found())["spec"]["hostname"] == "a"


async def test_a_child_is_there_once_it_is_applied_and_gone_once_the_watch_brings_it() -> None:
    watching = Watching()
    applied = await watching.api.apply(CONFIG_MAP, child(a="1"))
    assert await watching.api.list(CONFIG_MAP, "mail", LABELS) == [applied]

    watching.watch(applied)
    await watching.user.delete(CONFIG_MAP, applied)
    watching.watch(applied, gone=True)
    assert await watching.api.list(CONFIG_MAP, "mail", LABELS) == []


async def test_after_a_conflict_the_next_read_is_a_request() -> None:
    watching = Watching()
    before = await watching.queue()
    await watching.user.patch(MAIL_QUEUE, "mail", "outgoing", {"spec": {"hostname": "a"}})

    with pytest.raises(KubernetesConflict):
        await watching.api.replace_status(MAIL_QUEUE, {**before, "status": {}})
    for _ in range(3):
        assert (await watching.found())["spec"]["hostname"] == "a"
    assert watching.count("get") == 1
    version = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}}
    with pytest.raises(KubernetesConflict):
        await watching.api.patch(MAIL_QUEUE, "mail", "outgoing", version)
    await watching.found()
    assert watching.count("get") == 2


async def test_of_two_resources_of_one_name_the_newer_one_is_read() -> None:
    watching = Watching()
    first = await watching.queue()
    await watching.user.delete(MAIL_QUEUE, first)
    second = await watching.queue()
    watching.watch(first)

    assert (await watching.found())["metadata"]["uid"] == second["metadata"]["uid"]


async def test_a_list_that_lacks_what_is_there_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> set[str]:
        return set()

    watching = Watching()
    found = await watching.queue()
    watching.watch(await watching.user.create(CONFIG_MAP, child()))
    monkeypatch.setattr(MemoryKubernetes, "uids", nothing)

    assert await watching.api.missed_deletions() == []
    assert (await watching.found())["metadata"]["uid"] == found["metadata"]["uid"]


async def test_a_deletion_that_no_watch_brought_is_found() -> None:
    watching = Watching()
    gone, stays = await watching.queue(), await watching.queue("stays")
    watching.watch(await watching.user.create(CONFIG_MAP, child()))
    await watching.user.delete(MAIL_QUEUE, gone)

    missed = await watching.api.missed_deletions()

    assert [(kind, found["metadata"]["name"]) for kind, found in missed] == [
        (MAIL_QUEUE, "outgoing")
    ]
    assert await watching.api.get(MAIL_QUEUE, "mail", "outgoing") is None
    listed = await watching.api.list(MAIL_QUEUE)
    assert [each["metadata"]["uid"] for each in listed] == [stays["metadata"]["uid"]]
    assert await watching.api.missed_deletions() == [], "each once"
    anew = await watching.queue()
    assert (await watching.found())["metadata"]["uid"] == anew["metadata"]["uid"]
