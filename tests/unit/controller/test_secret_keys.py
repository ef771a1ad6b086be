"""Secrets of servers whose keys another program names, as a bucket claim does."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.controller.credentials import read_credentials
from postroad.controller.kubernetes.api import SECRET
from postroad.controller.pods.manifests import wanted_children
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.errors import CredentialsMissing
from support import resources, spec_cases
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

NAMESPACE = "mail"
CLAIM = {"accessKey": "AWS_ACCESS_KEY_ID", "secretKey": "AWS_SECRET_ACCESS_KEY"}


def cluster(**keys: dict[str, str]) -> QueueClusterSpec:
    def login(server: str) -> dict[str, Any]:
        return {"secretRef": {"name": server, "keys": keys.get(server, {})}}

    return QueueClusterSpec.model_validate(
        {
            "rabbitmq": spec_cases.RABBITMQ | login("rabbitmq"),
            "cassandra": spec_cases.CASSANDRA | login("cassandra"),
            "s3": login("s3"),
        }
    )


async def with_secrets(**more: dict[str, str]) -> MemoryKubernetes:
    api = MemoryKubernetes(KubernetesWorld(MachineClock()))
    for each in resources.secrets(NAMESPACE):
        name = each["metadata"]["name"]
        wanted = resources.secret(NAMESPACE, name, more[name]) if name in more else each
        await api.create(SECRET, wanted)
    return api


async def test_the_operator_reads_the_keys_that_the_spec_names() -> None:
    claim = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s3cr3t"}
    api = await with_secrets(s3=claim, cassandra={"user": "c", "password": "p"})

    found = await read_credentials(
        api, NAMESPACE, cluster(s3=CLAIM, cassandra={"username": "user"})
    )

    assert {name: each.get_secret_value() for name, each in found.s3.values.items()} == {
        "accessKey": "AKIA",
        "secretKey": "s3cr3t",
    }
    assert found.cassandra.values["username"].get_secret_value() == "c"
    assert found.rabbitmq.values["username"].get_secret_value() == "postroad"


async def test_other_keys_of_a_secret_that_is_the_same_are_read_anew() -> None:
    api = await with_secrets(s3={"accessKey": "a", "secretKey": "b", "other": "c"})

    before = await read_credentials(api, NAMESPACE, cluster())
    after = await read_credentials(
        api, NAMESPACE, cluster(s3={"secretKey": "other"}), before=before
    )

    assert after.s3.values["secretKey"].get_secret_value() == "c"
    assert after.s3.version != before.s3.version
    assert after.cassandra is before.cassandra


async def test_a_key_that_the_secret_lacks_has_its_name_of_the_spec_in_the_message() -> None:
    api = await with_secrets()

    with pytest.raises(CredentialsMissing, match="AWS_ACCESS_KEY_ID"):
        await read_credentials(api, NAMESPACE, cluster(s3=CLAIM))


def test_pods_have_the_values_under_the_usual_names_whatever_the_keys_are() -> None:
    metadata = {"namespace": NAMESPACE, "name": "out", "uid": "u1", "generation": 1}
    spec = {"clusterRef": {"name": "main"}, "workers": {"handler": {"mx": {}}}}
    queue = Queue.of({"metadata": metadata, "spec": spec})

    built = wanted_children(queue, PodContext(cluster(s3=CLAIM), "postroad:1"))

    (worker,) = (child for kind, child in built if kind.name == "Deployment")
    volumes = {each["name"]: each for each in worker["spec"]["template"]["spec"]["volumes"]}
    (source,) = volumes["s3"]["projected"]["sources"]
    assert source["secret"]["items"] == [
        {"key": "AWS_ACCESS_KEY_ID", "path": "accessKey"},
        {"key": "AWS_SECRET_ACCESS_KEY", "path": "secretKey"},
    ]
    (source,) = volumes["cassandra"]["projected"]["sources"]
    assert source["secret"]["items"][0] == {"key": "username", "path": "username"}
