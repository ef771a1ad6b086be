"""With the shipped ClusterRole the operator can do all it does."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import (
    CRON_JOB,
    DEPLOYMENT,
    MAIL_QUEUE,
    QUEUE_CLUSTER,
    ROLE_BINDING,
    ROTATE,
    SECRET,
)
from postroad.errors import KubernetesRefused
from postroad.logins import LOGIN
from postroad.ports.kubernetes import Kind
from support.recording_api import RecordingApi
from support.resources import intake, mail_queue, workers
from support.running_operator import Running
from support.shipped_roles import (
    PIPELINE,
    RBAC,
    ROLE,
    WITH_USERS,
    gives_rights,
    unprivileged,
    writes_secrets,
)

pytestmark = pytest.mark.needs("kubernetes")

__all__ = ["gives_rights", "unprivileged", "writes_secrets"]


@pytest.mark.usefixtures("gives_rights")
async def test_nothing_is_forbidden_in_the_life_of_a_queue(
    api: ApiServer, unprivileged: RecordingApi, namespace: str
) -> None:
    operator = Running(api, namespace, operator_api=unprivileged)
    await operator.start()
    try:
        await operator.apply_cluster(allowedNamespaces={"from": "Selector", "selector": {}})
        await operator.apply(
            mail_queue(
                namespace,
                workers=workers(),
                intake=intake(),
                pipeline=PIPELINE,
                deletionPolicy="Delete",
            )
        )
        await operator.until_ready()
        await operator.change({"workers": {"replicas": 2}})
        await operator.until(lambda found: found["WorkersReady"]["status"] == "False")
        assert await api.get(CRON_JOB, namespace, "outgoing-archive")
        assert await api.get(ROLE_BINDING, namespace, "outgoing-pipeline")
        found = await operator.conditions()
        assert found["PipelineReady"]["status"] == "True", found["PipelineReady"]
        await operator.change(
            {"workers": {"replicas": 0}, "intake": None, "pipeline": {"executors": None}}
        )
        await operator.until_ready()
        worker = await api.get(DEPLOYMENT, namespace, "outgoing-worker")
        assert worker
        await api.delete(DEPLOYMENT, worker)
        await operator.settle()
        await api.delete(MAIL_QUEUE, await operator.queue())
        await operator.until_gone(MAIL_QUEUE, "outgoing")
        cluster = await api.get(QUEUE_CLUSTER, namespace, "main")
        assert cluster
        await api.delete(QUEUE_CLUSTER, cluster)
        await operator.until_gone(QUEUE_CLUSTER, "main")
    finally:
        await operator.stop()

    assert [each for each in unprivileged.calls if each.refusal] == []
    assert {"Ready", "Deleted"} <= {each["reason"] for each in await operator.events()}


@pytest.mark.usefixtures("gives_rights")
async def test_the_operator_gives_the_role_of_drivers_and_no_other(
    api: ApiServer, unprivileged: RecordingApi, namespace: str
) -> None:
    def binding(role: str) -> dict[str, Any]:
        metadata = {"name": f"to-{role}", "namespace": namespace}
        group = "rbac.authorization.k8s.io"
        return {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "any", "namespace": namespace}],
        }

    await unprivileged.apply(ROLE_BINDING, binding("postroad-pipeline"))
    for other in ("cluster-admin", "admin", "edit", "view"):
        with pytest.raises(KubernetesRefused):
            await unprivileged.apply(ROLE_BINDING, binding(other))
        assert await api.get(ROLE_BINDING, namespace, f"to-{other}") is None


@pytest.mark.usefixtures("writes_secrets")
async def test_with_the_role_for_users_each_queue_gets_its_own(
    api: ApiServer, unprivileged: RecordingApi, namespace: str
) -> None:
    operator = Running(api, namespace, operator_api=unprivileged)
    await operator.start()
    try:
        await operator.apply_cluster(rabbitmq=WITH_USERS)
        await operator.apply(mail_queue(namespace, workers=workers(), deletionPolicy="Delete"))
        await operator.until_ready()
        before = await login(api, namespace)
        asked = {"metadata": {"annotations": {ROTATE: "once"}}}
        await api.patch(MAIL_QUEUE, namespace, "outgoing", asked)
        async with asyncio.timeout(30):
            while await login(api, namespace) == before:
                await operator.pause()
        await operator.until_ready()
        after = await login(api, namespace)
        assert {before[0], after[0]} == set(operator.memory.users)
        await api.delete(MAIL_QUEUE, await operator.queue())
        await operator.until_gone(MAIL_QUEUE, "outgoing")
        async with asyncio.timeout(30):
            while operator.memory.users:
                await operator.pause()
    finally:
        await operator.stop()

    assert [each for each in unprivileged.calls if each.refusal] == []
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert "UserSwitched" in {each["reason"] for each in await operator.events()}


async def login(api: ApiServer, namespace: str) -> tuple[str, str]:
    """Return the name and the password of the queue's user."""
    found = await api.get(SECRET, namespace, "outgoing-rabbitmq")
    assert found
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("MailQueue", "outgoing")
    user, password = (base64.b64decode(found["data"][each]).decode() for each in LOGIN)
    return user, password


async def test_a_right_that_is_missing_is_named_and_ends_nothing(
    api: ApiServer, unprivileged: RecordingApi, namespace: str
) -> None:
    name = f"postroad-operator-{namespace}"
    role = await api.get(ROLE, None, name)
    assert role
    before = role["rules"]
    budgets = [each for each in before if "poddisruptionbudgets" in each["resources"]]
    without = [{**each, "verbs": ["create", "patch", "delete"]} for each in budgets]
    rules = [each for each in before if each not in budgets]
    await api.apply(ROLE, {**role_named(name), "rules": [*rules, *without]})
    operator = Running(api, namespace, operator_api=unprivileged)
    await operator.start()
    try:
        missing = f"list poddisruptionbudgets in namespace {namespace}"
        await until_obstacle(operator, f"the API server refuses: {missing}, watch")

        await api.apply(ROLE, {**role_named(name), "rules": before})
        await until_obstacle(operator, "")
    finally:
        await operator.stop()


def role_named(name: str) -> dict[str, Any]:
    return {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name}}


async def until_obstacle(operator: Running, wanted: str) -> None:
    """Wait until the operator is not ready for a reason, or ready where it is empty."""
    found: str | None = None
    for _ in range(300):
        found = operator.obstacle()
        if found.startswith(wanted) and bool(found) == bool(wanted):
            return
        await operator.pause()
    raise AssertionError(found)


async def test_the_account_really_is_unprivileged(
    unprivileged: RecordingApi, namespace: str
) -> None:
    secrets = Kind("v1", "Secret", "secrets")

    with pytest.raises(Exception, match="forbidden"):
        await unprivileged.list(secrets, namespace)
