"""What every Kubernetes API server does for the operator.

Source: Kubernetes documentation (API Concepts; Server-Side Apply; Finalizers).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    FINALIZER,
    LEASE,
    MAIL_QUEUE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    SECRET,
)
from postroad.errors import KubernetesConflict
from postroad.ports.kubernetes import COMPLETE, DELETED, LISTED, Kind, Kubernetes, Object
from support import resources

Watching = Callable[..., AsyncGenerator[tuple[str, Object], None]]
"""`watching(kind, namespace, labels="", since=None)`: a watch, as type and object."""

IN_TIME = 30.0
FOREIGN = Kind("postroad.dev/v1beta1", "Stray", "strays")


def config_map(namespace: str, name: str = "settings", **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def labelled(found: Object, **labels: str) -> Object:
    return {**found, "metadata": {**found["metadata"], "labels": labels}}


def owned_by(owner: Object, child: Object) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [reference]}}


def deployment(namespace: str, *containers: Object, **spec: Any) -> Object:
    labels = {"app": "worker"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": list(containers)}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "worker", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


def container(name: str, **fields: Any) -> Object:
    return {"name": name, "image": "example.org/none:1", **fields}


def version_of(found: Object) -> str:
    version: str = found["metadata"]["resourceVersion"]
    return version


def generation_of(found: Object) -> int:
    generation: int = found["metadata"]["generation"]
    return generation


async def taken(events: AsyncGenerator[tuple[str, Object], None], number: int) -> list[Any]:
    """Return so many events of a watch, and end it."""
    found = []
    async with asyncio.timeout(IN_TIME), aclosing(events):
        async for each in events:
            found.append(each)
            if len(found) == number:
                break
    return found


def names(events: Sequence[tuple[str, Object]]) -> list[tuple[str, str]]:
    return [(what, found["metadata"]["name"]) for what, found in events]


def watching_over(api: ApiServer) -> Watching:
    """Return watches as another HTTP client has them."""

    async def watch(
        kind: Kind, namespace: str, labels: str = "", since: str | None = None
    ) -> AsyncGenerator[tuple[str, Object], None]:
        query = {"watch": "true", "labelSelector": labels}
        if since is not None:
            query["resourceVersion"] = since
        url = f"{api.access.address}{kind.prefix}/namespaces/{namespace}/{kind.plural}"
        async with api.open_session() as session, session.get(url, params=query) as response:
            if response.status == 410:
                yield "ERROR", await response.json()
                return
            assert response.status == 200
            async for line in response.content:
                event = json.loads(line)
                yield event["type"], event["object"]

    return watch


class KubernetesContract:
    """Subclasses provide the fixtures `api`, `other` (a second field manager), `namespace` (empty,
    of the test's own) and `watching`."""

    async def gone(self, api: Kubernetes, kind: Kind, namespace: str, name: str) -> bool:
        """Whether an object is gone in time: the garbage collector is a process of its own."""
        for _ in range(int(IN_TIME * 10)):
            if await api.get(kind, namespace, name) is None:
                return True
            await asyncio.sleep(0.1)
        return False

    # Objects

    async def test_an_object_is_read_as_it_was_created(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(CONFIG_MAP, config_map(namespace, a="1"))

        found = await api.get(CONFIG_MAP, namespace, "settings")

        assert found == created
        assert found["data"] == {"a": "1"}
        assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")
        assert {"uid", "resourceVersion", "creationTimestamp"} <= found["metadata"].keys()

    async def test_what_is_missing_is_none(self, api: Kubernetes, namespace: str) -> None:
        assert await api.get(CONFIG_MAP, namespace, "settings") is None
        assert await api.patch(CONFIG_MAP, namespace, "settings", {"data": {}}) is None
        missing = {**resources.mail_queue(namespace), "status": {}}
        missing["metadata"] |= {"uid": "none", "resourceVersion": "1"}
        with suppress(KubernetesConflict):  # as Kubernetes 1.31 answers, because of the uid
            assert await api.replace_status(MAIL_QUEUE, missing) is None
        await api.delete(MAIL_QUEUE, missing)

    async def test_a_name_is_taken_once(self, api: Kubernetes, namespace: str) -> None:
        first = await api.create(CONFIG_MAP, config_map(namespace, a="1"))

        with pytest.raises(KubernetesConflict):
            await api.create(CONFIG_MAP, config_map(namespace, a="2"))

        assert await api.get(CONFIG_MAP, namespace, "settings") == first

    async def test_a_list_has_the_objects_with_the_labels(
        self, api: Kubernetes, namespace: str
    ) -> None:
        await api.create(CONFIG_MAP, labelled(config_map(namespace, "one"), a="1", b="2"))
        await api.create(CONFIG_MAP, labelled(config_map(namespace, "two"), a="1"))
        await api.create(SECRET, labelled(resources.secret(namespace, "three", {}), a="1", b="2"))

        found = await api.list(CONFIG_MAP, namespace, "a=1,b=2")
        every = await api.list(CONFIG_MAP, labels="a=1,b=2")

        assert [each["metadata"]["name"] for each in found] == ["one"]
        assert (found[0]["apiVersion"], found[0]["kind"]) == ("v1", "ConfigMap")
        assert namespace in {each["metadata"]["namespace"] for each in every}

    async def test_uids_are_those_of_the_list(self, api: Kubernetes, namespace: str) -> None:
        one = await api.create(CONFIG_MAP, labelled(config_map(namespace, "one"), a="1"))
        two = await api.create(CONFIG_MAP, config_map(namespace, "two"))
        queue = await api.create(MAIL_QUEUE, resources.mail_queue(namespace))

        uids = [each["metadata"]["uid"] for each in (one, two, queue)]
        assert set(await api.uids(CONFIG_MAP, namespace)) >= set(uids[:2])
        assert set(await api.uids(CONFIG_MAP, namespace, "a=1")) == {uids[0]}
        assert set(await api.uids(MAIL_QUEUE, namespace)) == {uids[2]}

    async def test_kinds_are_served_once_they_are_installed(self, api: Kubernetes) -> None:
        assert await api.serves(MAIL_QUEUE, QUEUE_CLUSTER, CONFIG_MAP)
        assert not await api.serves(MAIL_QUEUE, FOREIGN)

    async def test_an_administrator_may_do_everything(
        self, api: Kubernetes, namespace: str
    ) -> None:
        assert await api.may("watch", MAIL_QUEUE)
        assert await api.may("list", DEPLOYMENT, namespace)
        assert await api.may("update", MAIL_QUEUE, namespace, subresource="status")

    # Versions and generations

    async def test_a_write_that_changes_nothing_leaves_the_version(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(CONFIG_MAP, config_map(namespace, a="1"))

        same = await api.patch(CONFIG_MAP, namespace, "settings", {"data": {"a": "1"}})
        changed = await api.patch(CONFIG_MAP, namespace, "settings", {"data": {"a": "2"}})

        assert same
        assert changed
        assert version_of(same) == version_of(created)
        assert int(version_of(changed)) > int(version_of(created))

    async def test_the_generation_counts_changes_of_the_spec_alone(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(MAIL_QUEUE, resources.mail_queue(namespace))
        named = await api.patch(
            MAIL_QUEUE, namespace, "outgoing", {"metadata": {"labels": {"a": "1"}}}
        )
        assert named
        reported = await api.replace_status(
            MAIL_QUEUE, {**named, "status": {"observedGeneration": 1}}
        )
        changed = await api.patch(MAIL_QUEUE, namespace, "outgoing", {"spec": {"paused": True}})
        assert reported
        assert changed

        assert [generation_of(each) for each in (created, named, reported, changed)] == [1, 1, 1, 2]

    async def test_a_change_of_an_older_version_is_a_conflict(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(CONFIG_MAP, config_map(namespace, a="1"))
        metadata = {"resourceVersion": version_of(created)}

        assert await api.patch(
            CONFIG_MAP, namespace, "settings", {"metadata": metadata, "data": {"a": "2"}}
        )
        with pytest.raises(KubernetesConflict):
            await api.patch(
                CONFIG_MAP, namespace, "settings", {"metadata": metadata, "data": {"a": "3"}}
            )

        found = await api.get(CONFIG_MAP, namespace, "settings")
        assert found
        assert found["data"] == {"a": "2"}

    async def test_a_patch_merges_and_null_removes(self, api: Kubernetes, namespace: str) -> None:
        await api.create(CONFIG_MAP, config_map(namespace, a="1", b="2"))

        changed = await api.patch(
            CONFIG_MAP, namespace, "settings", {"data": {"a": None, "c": "3"}}
        )

        assert changed
        assert changed["data"] == {"b": "2", "c": "3"}

    async def test_a_lease_is_written_over_the_version_that_was_read(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        spec = {
            "holderIdentity": "one",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-02T03:04:05.678000Z",
            "renewTime": "2026-01-02T03:04:05.678901Z",
            "leaseTransitions": 0,
        }
        wanted = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": "leader", "namespace": namespace},
            "spec": spec,
        }
        created = await api.create(LEASE, wanted)
        with pytest.raises(KubernetesConflict):
            await other.create(LEASE, wanted)
        assert (await other.get(LEASE, namespace, "leader")) == created
        assert created["spec"] == spec

        read = {"metadata": {"resourceVersion": version_of(created)}}
        free = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
        given_back = await api.patch(LEASE, namespace, "leader", {**read, "spec": free})
        with pytest.raises(KubernetesConflict):
            await other.patch(
                LEASE, namespace, "leader", {**read, "spec": {"holderIdentity": "two"}}
            )

        assert given_back
        assert (given_back["spec"].get("holderIdentity") or "") == ""
        assert given_back["spec"]["leaseDurationSeconds"] == 1

    # Status

    async def test_a_status_is_written_apart(self, api: Kubernetes, namespace: str) -> None:
        wanted = {**resources.mail_queue(namespace), "status": {"size": 1}}
        created = await api.create(MAIL_QUEUE, wanted)
        spec = {**created["spec"], "paused": True}

        written = await api.replace_status(
            MAIL_QUEUE, {**created, "spec": spec, "status": {"size": 2}}
        )
        assert written
        patched = await api.patch(MAIL_QUEUE, namespace, "outgoing", {"status": {"size": 3}})

        assert patched
        assert "size" not in (created.get("status") or {})
        assert (written["status"]["size"], patched["status"]["size"]) == (2, 2)
        assert written["spec"] == patched["spec"] == created["spec"]

    async def test_a_status_of_an_older_version_is_a_conflict(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(MAIL_QUEUE, resources.mail_queue(namespace))
        await api.replace_status(MAIL_QUEUE, {**created, "status": {"size": 1}})

        with pytest.raises(KubernetesConflict):
            await api.replace_status(MAIL_QUEUE, {**created, "status": {"size": 2}})

    async def test_a_field_that_a_status_lacks_is_removed(
        self, api: Kubernetes, namespace: str
    ) -> None:
        created = await api.create(MAIL_QUEUE, resources.mail_queue(namespace))
        first = await api.replace_status(MAIL_QUEUE, {**created, "status": {"size": 1}})
        assert first

        second = await api.replace_status(MAIL_QUEUE, {**first, "status": {"held": 1}})

        assert second
        assert "size" not in second["status"]

    # Server-side apply

    async def test_an_apply_creates_and_the_same_again_changes_nothing(
        self, api: Kubernetes, namespace: str
    ) -> None:
        first = await api.apply(CONFIG_MAP, config_map(namespace, a="1"))
        second = await api.apply(CONFIG_MAP, config_map(namespace, a="1"))

        assert first["data"] == {"a": "1"}
        assert version_of(second) == version_of(first)

    async def test_a_field_no_longer_applied_is_removed(
        self, api: Kubernetes, namespace: str
    ) -> None:
        await api.apply(CONFIG_MAP, labelled(config_map(namespace, a="1", b="2"), c="3", d="4"))

        changed = await api.apply(CONFIG_MAP, labelled(config_map(namespace, a="1"), c="3"))

        assert changed["data"] == {"a": "1"}
        assert changed["metadata"]["labels"] == {"c": "3"}

    async def test_fields_of_others_stay(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        await api.apply(CONFIG_MAP, config_map(namespace, a="1", b="2"))
        await other.patch(CONFIG_MAP, namespace, "settings", {"data": {"c": "3"}})
        await other.apply(CONFIG_MAP, config_map(namespace, b="2", d="4"))

        changed = await api.apply(CONFIG_MAP, config_map(namespace, a="5"))

        assert changed["data"] == {"a": "5", "b": "2", "c": "3", "d": "4"}

    async def test_another_value_is_a_conflict_unless_forced(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        await other.apply(CONFIG_MAP, config_map(namespace, a="1"))

        with pytest.raises(KubernetesConflict):
            await api.apply(CONFIG_MAP, config_map(namespace, a="2"), force=False)
        forced = await api.apply(CONFIG_MAP, config_map(namespace, a="2"))
        with pytest.raises(KubernetesConflict):
            await other.apply(CONFIG_MAP, config_map(namespace, a="3"), force=False)

        assert forced["data"] == {"a": "2"}

    async def test_an_equal_value_is_shared(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        await other.apply(CONFIG_MAP, config_map(namespace, a="1"))
        await api.apply(CONFIG_MAP, config_map(namespace, a="1"), force=False)

        kept = await other.apply(CONFIG_MAP, config_map(namespace))
        assert kept["data"] == {"a": "1"}

    async def test_who_changes_a_field_by_a_patch_has_it(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        await api.apply(CONFIG_MAP, config_map(namespace, a="1", b="2"))
        await other.patch(CONFIG_MAP, namespace, "settings", {"data": {"a": "9"}})

        with pytest.raises(KubernetesConflict):
            await api.apply(CONFIG_MAP, config_map(namespace, a="1", b="2"), force=False)
        kept = await api.apply(CONFIG_MAP, config_map(namespace, b="2"))

        assert kept["data"] == {"a": "9", "b": "2"}

    async def test_entries_of_a_list_with_keys_are_fields(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        variable = {"name": "A", "value": "1"}
        await api.apply(DEPLOYMENT, deployment(namespace, container("worker", env=[variable])))
        await other.apply(DEPLOYMENT, deployment(namespace, container("beside")))

        changed = await api.apply(DEPLOYMENT, deployment(namespace, container("worker")))

        found = {each["name"]: each for each in changed["spec"]["template"]["spec"]["containers"]}
        assert set(found) == {"worker", "beside"}
        assert not found["worker"].get("env")

    async def test_a_field_that_is_not_applied_is_left_to_its_manager(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        """As replicas are to an autoscaler."""
        await api.apply(DEPLOYMENT, deployment(namespace, container("worker"), replicas=1))
        await other.patch(DEPLOYMENT, namespace, "worker", {"spec": {"replicas": 3}})

        changed = await api.apply(DEPLOYMENT, deployment(namespace, container("worker")))

        assert changed["spec"]["replicas"] == 3

    # Deletion

    async def test_a_deletion_is_of_one_object_and_not_of_its_name(
        self, api: Kubernetes, namespace: str
    ) -> None:
        first = await api.create(CONFIG_MAP, config_map(namespace))
        await api.delete(CONFIG_MAP, first)
        second = await api.create(CONFIG_MAP, config_map(namespace))

        with pytest.raises(KubernetesConflict):
            await api.delete(CONFIG_MAP, first)

        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        assert await api.get(CONFIG_MAP, namespace, "settings") is not None

    async def test_a_finalizer_keeps_an_object_until_it_is_removed(
        self, api: Kubernetes, namespace: str
    ) -> None:
        wanted = resources.mail_queue(namespace)
        wanted["metadata"]["finalizers"] = [FINALIZER]
        created = await api.create(MAIL_QUEUE, wanted)

        await api.delete(MAIL_QUEUE, created)
        ending = await api.get(MAIL_QUEUE, namespace, "outgoing")
        await api.delete(MAIL_QUEUE, created)
        await api.patch(MAIL_QUEUE, namespace, "outgoing", {"metadata": {"finalizers": None}})

        assert ending
        assert ending["metadata"]["deletionTimestamp"]
        assert generation_of(ending) == generation_of(created) + 1
        assert await api.get(MAIL_QUEUE, namespace, "outgoing") is None

    async def test_dependants_go_with_their_last_owner(
        self, api: Kubernetes, namespace: str
    ) -> None:
        owner = await api.create(MAIL_QUEUE, resources.mail_queue(namespace))
        stays = await api.create(MAIL_QUEUE, resources.mail_queue(namespace, "second"))
        await api.create(CONFIG_MAP, owned_by(owner, config_map(namespace, "child")))
        shared = owned_by(owner, config_map(namespace, "shared"))
        references = owned_by(stays, shared)["metadata"]["ownerReferences"]
        shared["metadata"]["ownerReferences"] += references
        await api.create(CONFIG_MAP, shared)

        await api.delete(MAIL_QUEUE, owner)

        assert await self.gone(api, CONFIG_MAP, namespace, "child")
        assert await api.get(CONFIG_MAP, namespace, "shared") is not None

    # Events

    async def test_an_event_of_a_fixed_name_is_posted_once(
        self, api: Kubernetes, namespace: str
    ) -> None:
        event = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": "outgoing.1", "namespace": namespace},
            "eventTime": "2026-01-01T10:00:00.000000Z",
            "type": "Normal",
            "reason": "Retained",
            "action": "Delete",
            "note": "kept",
            "regarding": {"kind": "MailQueue", "namespace": namespace, "name": "outgoing"},
            "reportingController": "postroad.dev/operator",
            "reportingInstance": "test",
        }
        await api.create(EVENT, event)

        with pytest.raises(KubernetesConflict):
            await api.create(EVENT, event)

        assert [each["note"] for each in await api.list(EVENT, namespace)] == ["kept"]

    # Watches

    async def test_a_watch_begins_with_what_is_there(
        self, api: Kubernetes, namespace: str, watching: Watching
    ) -> None:
        await api.create(CONFIG_MAP, labelled(config_map(namespace, "one"), a="1"))
        await api.create(CONFIG_MAP, config_map(namespace, "unlabelled"))

        found = await taken(watching(CONFIG_MAP, namespace, labels="a=1"), 1)

        assert names(found) == [("ADDED", "one")]

    async def test_a_watch_goes_on_after_the_last_event(
        self, api: Kubernetes, namespace: str, watching: Watching
    ) -> None:
        created = await api.create(MAIL_QUEUE, resources.mail_queue(namespace))
        await api.patch(MAIL_QUEUE, namespace, "outgoing", {"spec": {"paused": True}})
        second = await api.create(MAIL_QUEUE, resources.mail_queue(namespace, "second"))
        await api.delete(MAIL_QUEUE, second)

        since = version_of(created)
        found = await taken(watching(MAIL_QUEUE, namespace, since=since), 3)
        last = await taken(watching(MAIL_QUEUE, namespace, since=version_of(found[1][1])), 1)

        assert names(found) == [
            ("MODIFIED", "outgoing"), ("ADDED", "second"), ("DELETED", "second"),
        ]  # fmt: skip
        assert found[2][1]["spec"] == second["spec"]
        assert int(version_of(found[2][1])) > int(version_of(second))
        assert last == [found[2]]

    async def test_an_object_that_loses_the_label_is_deleted_for_the_watch(
        self, api: Kubernetes, namespace: str, watching: Watching
    ) -> None:
        label = {MANAGED_BY: "postroad"}
        created = await api.create(CONFIG_MAP, labelled(config_map(namespace), **label))
        for labels in ({MANAGED_BY: None}, label):
            await api.patch(CONFIG_MAP, namespace, "settings", {"metadata": {"labels": labels}})

        events = watching(
            CONFIG_MAP, namespace, labels=f"{MANAGED_BY}=postroad", since=version_of(created)
        )

        assert [what for what, _ in await taken(events, 2)] == ["DELETED", "ADDED"]

    async def test_a_version_that_is_too_old_is_gone(
        self, api: Kubernetes, namespace: str, watching: Watching
    ) -> None:
        await api.create(MAIL_QUEUE, resources.mail_queue(namespace))

        ((what, status),) = await taken(watching(MAIL_QUEUE, namespace, since="1"), 1)

        assert (what, status["code"]) == ("ERROR", 410)

    async def test_watch_lists_what_is_there_and_then_follows(
        self, api: Kubernetes, namespace: str
    ) -> None:
        wanted, label = f"{MANAGED_BY}=postroad", {MANAGED_BY: "postroad"}
        first = await api.create(CONFIG_MAP, labelled(config_map(namespace, "one"), **label))
        await api.create(CONFIG_MAP, config_map(namespace, "unlabelled"))

        async with (
            asyncio.timeout(IN_TIME),
            aclosing(api.watch(CONFIG_MAP, namespace, wanted)) as events,
        ):
            listed = [await anext(events), await anext(events)]
            await api.create(CONFIG_MAP, labelled(config_map(namespace, "two"), **label))
            await api.delete(CONFIG_MAP, first)
            followed = [await anext(events), await anext(events)]

        assert listed[0].happened == LISTED
        assert listed[0].object == {**first, "apiVersion": "v1", "kind": "ConfigMap"}
        assert listed[1] == (COMPLETE, {})
        assert names(followed) == [("ADDED", "two"), (DELETED, "one")]

    async def test_watch_of_nothing_is_complete_at_once(
        self, api: Kubernetes, namespace: str
    ) -> None:
        async with asyncio.timeout(IN_TIME), aclosing(api.watch(MAIL_QUEUE, namespace)) as events:
            assert await anext(events) == (COMPLETE, {})

    async def test_watches_of_one_task_do_not_disturb_each_other(
        self, api: Kubernetes, other: Kubernetes, namespace: str
    ) -> None:
        await api.create(CONFIG_MAP, labelled(config_map(namespace), a="1"))

        watch = api.watch(CONFIG_MAP, namespace, "a=1")
        async with asyncio.timeout(IN_TIME), aclosing(watch) as mine:
            before = await anext(mine)
            async with aclosing(other.watch(MAIL_QUEUE, namespace)) as theirs:
                assert await anext(theirs) == (COMPLETE, {})
            assert before.happened == LISTED
            assert await anext(mine) == (COMPLETE, {})
            await api.patch(CONFIG_MAP, namespace, "settings", {"data": {"a": "1"}})
            assert names([await anext(mine)]) == [("MODIFIED", "settings")]
