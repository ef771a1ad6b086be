"""The roles of manifests/, and the API server as the operator's service account sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import SERVICE_ACCOUNT
from postroad.ports.kubernetes import Kind
from support.access_to_kubernetes import with_token
from support.kubectl import manifests
from support.recording_api import RecordingApi

RBAC = "rbac.authorization.k8s.io/v1"
ROLE = Kind(RBAC, "ClusterRole", "clusterroles")
BINDING = Kind(RBAC, "ClusterRoleBinding", "clusterrolebindings")
LEASE_ROLE = Kind(RBAC, "Role", "roles")
LEASE_BINDING = Kind(RBAC, "RoleBinding", "rolebindings")
INSTALL = Path(__file__).parents[2] / "manifests" / "install.yaml"
USERS = INSTALL.with_name("users.yaml")
EXECUTORS = INSTALL.with_name("executors.yaml")
WITH_USERS = {
    "url": "amqp://rabbitmq:5672/%2F",
    "managementURL": "http://rabbitmq:15672",
    "secretRef": {"name": "rabbitmq"},
    "users": {"overlap": "10m"},
}
"""The part of a QueueCluster that needs the role of users.yaml."""

PIPELINE = {
    "archive": {"schedule": "@hourly"},
    "addresses": {"keep": "None"},
    "image": "postroad-pipeline:1",
    "executors": {"instances": 1},
}
"""The part of a MailQueue that needs the rights to CronJobs and RoleBindings."""


def shipped(kind: str, name: str = "postroad-operator", path: Path = INSTALL) -> dict[str, Any]:
    """Return an object of the manifests."""
    documents = [each for each in manifests(path) if each["kind"] == kind]
    (found,) = (each for each in documents if each["metadata"]["name"] == name)
    return found


@pytest.fixture
async def unprivileged(api: ApiServer, namespace: str) -> AsyncIterator[RecordingApi]:
    """The API server as the operator's service account sees it; what it was refused is noted."""
    role, binding = shipped("ClusterRole"), shipped("ClusterRoleBinding")
    subject = {"kind": "ServiceAccount", "name": "postroad-operator", "namespace": namespace}
    name = f"postroad-operator-{namespace}"
    role["metadata"]["name"] = binding["metadata"]["name"] = binding["roleRef"]["name"] = name
    binding["subjects"] = [subject]
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": subject["name"], "namespace": namespace},
    }
    await api.create(SERVICE_ACCOUNT, account)
    lease_role, lease_binding = shipped("Role"), shipped("RoleBinding")
    lease_role["metadata"]["namespace"] = lease_binding["metadata"]["namespace"] = namespace
    lease_binding["subjects"] = [subject]
    await api.create(LEASE_ROLE, lease_role)
    await api.create(LEASE_BINDING, lease_binding)
    made = [(ROLE, await api.create(ROLE, role)), (BINDING, await api.create(BINDING, binding))]
    answer = await api.call(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{subject['name']}/token",
        body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    assert answer
    server = RecordingApi(with_token(api.access, answer["status"]["token"]))
    yield server
    await server.close()
    for kind, each in made:
        await api.delete(kind, each)


async def _with_role(api: ApiServer, namespace: str, named: str, path: Path) -> AsyncIterator[None]:
    role, binding = (shipped(kind, named, path) for kind in ("ClusterRole", "ClusterRoleBinding"))
    name = f"{named}-{namespace}"
    role["metadata"]["name"] = binding["metadata"]["name"] = binding["roleRef"]["name"] = name
    binding["subjects"] = [
        {"kind": "ServiceAccount", "name": "postroad-operator", "namespace": namespace}
    ]
    made = [(ROLE, await api.create(ROLE, role)), (BINDING, await api.create(BINDING, binding))]
    yield
    for kind, each in made:
        await api.delete(kind, each)


@pytest.fixture
async def writes_secrets(
    api: ApiServer, unprivileged: RecordingApi, namespace: str
) -> AsyncIterator[None]:
    """The operator's account has the role of `manifests/users.yaml` too."""
    async for each in _with_role(api, namespace, "postroad-operator-users", USERS):
        yield each


@pytest.fixture
async def gives_rights(
    api: ApiServer, unprivileged: RecordingApi, namespace: str
) -> AsyncIterator[None]:
    """The operator's account has the role of `manifests/executors.yaml` too."""
    async for each in _with_role(api, namespace, "postroad-operator-executors", EXECUTORS):
        yield each
