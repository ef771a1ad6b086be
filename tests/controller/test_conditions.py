"""An error becomes one condition, which names what to do, and passes when its cause does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    MAIL_QUEUE,
    NAMESPACE,
    QUEUE_CLUSTER,
)
from support.memory.fault_injection import away, no_fault
from support.resources import intake, mail_queue, queue_cluster, secret, secrets, workers
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")


async def test_a_cluster_that_does_not_exist_is_waited_for(operator: Running) -> None:
    await operator.apply(mail_queue(operator.namespace, clusterRef={"name": "later"}))
    conditions = await operator.until(lambda found: found["Ready"]["status"] == "False")
    await operator.settle()

    assert conditions["Ready"]["reason"] == "ClusterNotFound"
    assert "QueueCluster later" in conditions["Ready"]["message"]
    assert conditions["Reconciling"]["status"] == "True"
    assert "Stalled" not in conditions
    assert len(await operator.until_told("ClusterNotFound")) == 1

    await operator.apply(*secrets(operator.namespace))
    await operator.apply(queue_cluster(operator.namespace, name="later"))
    await operator.until_ready()


async def test_a_missing_secret_is_named_and_waited_for(operator: Running) -> None:
    made = secrets(operator.namespace)
    await operator.apply(*made[1:], queue_cluster(operator.namespace))
    await operator.apply(mail_queue(operator.namespace))
    conditions = await operator.until(lambda found: found["Ready"]["status"] == "False")
    cluster = await operator.until(
        lambda found: found["Ready"]["status"] == "False", "main", QUEUE_CLUSTER
    )

    for found in (conditions, cluster):
        assert found["Ready"]["reason"] == "CredentialsMissing"
        assert "Secret rabbitmq" in found["Ready"]["message"]
        assert "`username` and `password`" in found["Ready"]["message"]

    await operator.apply(made[0])
    await operator.until_ready()


async def test_an_incomplete_secret_is_named_without_its_values(operator: Running) -> None:
    made = secrets(operator.namespace)
    half = secret(operator.namespace, "cassandra", {"username": "only-half"})
    await operator.apply(made[0], half, made[2], queue_cluster(operator.namespace))
    await operator.apply(mail_queue(operator.namespace))
    conditions = await operator.until(lambda found: found["Ready"]["status"] == "False")

    assert "no key password" in conditions["Ready"]["message"]
    assert "only-half" not in json.dumps(conditions)


async def test_wrong_credentials_are_one_event_and_no_hot_loop(operator: Running) -> None:
    operator.right_password = "another"
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, name="locked"))
    conditions = await operator.until(
        lambda found: found["ViewReady"]["reason"] == "CredentialsRefused", "locked"
    )
    await operator.settle()

    assert conditions["Ready"]["reason"] == "CredentialsRefused"
    assert conditions["ViewReady"]["status"] == "False"
    assert conditions["BrokerReady"]["status"] == "Unknown", "whose keyspace it is comes first"
    assert conditions["ConfigurationAccepted"]["status"] == "Unknown"
    assert conditions["Stalled"]["reason"] == "CredentialsRefused"
    warnings = await operator.until_told("CredentialsRefused", "Warning")
    assert sorted(each["regarding"]["name"] for each in warnings) == ["locked", "main"]
    everything = json.dumps([await operator.queue("locked"), warnings])
    assert "s3cr3t" not in everything
    assert operator.refusals < 30

    login = {"username": "postroad", "password": "another"}
    await operator.apply(secret(operator.namespace, "cassandra", login))
    await operator.until_ready("locked")
    assert operator.settings[-1].cassandra.password is not None
    assert "another" not in repr(operator.settings[-1])


async def test_a_condition_names_a_server_that_is_away_and_the_children_stay(
    operator: Running,
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers()))
    await operator.until_ready()
    before = await operator.status()

    for server, condition, concurrency, others in (
        ("broker", "BrokerReady", 9, ("ViewReady", "BlobsReady", "ConfigurationAccepted")),
        ("view", "ViewReady", 10, ("BrokerReady", "BlobsReady")),
        ("blobs", "BlobsReady", 11, ("BrokerReady", "ViewReady", "ConfigurationAccepted")),
    ):
        operator.faults.plan = away(server)
        await operator.change({"workers": workers() | {"concurrency": concurrency}})
        conditions = await operator.until(
            lambda found, which=condition: found[which]["status"] == "False"  # type: ignore[misc]
        )

        assert conditions[condition]["reason"].endswith("Unavailable")
        assert conditions["Reconciling"]["status"] == "True"
        assert {conditions[each]["status"] for each in others} == {"True"}
        of_pods = await operator.configuration_of_pods()
        assert of_pods["POSTROAD_WORKER_CONCURRENCY"] == str(concurrency)
        status = await operator.status()
        assert status["configuration"] == before["configuration"]
        assert status["history"] == before["history"]
        assert status["size"] == 0

        operator.faults.plan = no_fault
        await operator.until_ready()


MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"cpu": "x"}}}]}},
        "KubernetesRefused",
        "quantities must match",
    ),
    (
        {"spec": {"containers": [{"name": "worker", "livenessProbe": {"httpGt": {}}}]}},
        "KubernetesRefused",
        "httpGt",
    ),
    ({"spec": {"containers": None}}, "KubernetesRefused", "containers"),
    (
        {"spec": {"containers": [{"name": "worker", "securityContext": {"capabilities": []}}]}},
        "InvalidSpec",
        "securityContext.capabilities must be an object",
    ),
]
"""Templates of workers, with the reason and the message of the condition."""


async def test_a_malformed_template_is_reported_once_and_stalls(operator: Running) -> None:
    await operator.apply_cluster()
    names = [f"malformed-{number}" for number in range(len(MALFORMED))]
    for name, (template, _, _) in zip(names, MALFORMED, strict=True):
        malformed = workers() | {"template": template}
        await operator.apply(mail_queue(operator.namespace, name, workers=malformed))

    for name, (_, reason, said) in zip(names, MALFORMED, strict=True):
        conditions = await operator.until(
            lambda found: found["WorkersReady"]["status"] == "False", name
        )
        assert conditions["WorkersReady"]["reason"] == reason
        assert said in conditions["WorkersReady"]["message"]
        assert conditions["Stalled"]["status"] == "True"
        assert conditions["ConfigurationAccepted"]["status"] == "True"

        await operator.change({"workers": {"template": None}}, name)
        await operator.until_ready(name)


async def test_an_object_of_a_childs_name_with_another_owner_stays(operator: Running) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "outgoing-queue", "namespace": operator.namespace},
        "data": {"theirs": "kept"},
    }
    await operator.api.create(CONFIG_MAP, theirs)
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers()))
    conditions = await operator.until(lambda found: found["WorkersReady"]["status"] == "False")

    assert conditions["WorkersReady"]["reason"] == "NameTaken"
    found = await operator.api.get(CONFIG_MAP, operator.namespace, "outgoing-queue")
    assert found
    assert found["data"] == {"theirs": "kept"}

    await operator.api.delete(CONFIG_MAP, found)
    await operator.until_ready()


async def test_a_schedule_of_the_pipeline_that_is_none_is_named_by_its_field(
    operator: Running,
) -> None:
    await operator.apply_cluster()
    pipeline = {"archive": {"schedule": "30 3 * *"}}
    await operator.apply(mail_queue(operator.namespace, pipeline=pipeline))
    await operator.until_ready()

    conditions = await operator.conditions()
    assert conditions["PipelineReady"]["reason"] == "InvalidSpec"
    assert "spec.pipeline.archive.schedule" in conditions["PipelineReady"]["message"]


async def test_a_network_that_is_none_stops_no_pods_and_is_named(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, intake=intake()))
    await operator.until_ready()

    await operator.change({"intake": intake("10.0.0.1/8")})
    conditions = await operator.until(lambda found: found["Ready"]["status"] == "False")

    assert conditions["Ready"]["reason"] == "InvalidSpec"
    assert "spec.intake.listeners.0.from.0" in conditions["Ready"]["message"]
    assert "write 10.0.0.0/8" in conditions["Ready"]["message"]
    assert conditions["Stalled"]["status"] == "True"
    deployment = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-intake")
    assert deployment, "what ran before goes on"


async def test_an_open_relay_is_a_condition_until_it_is_closed(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, intake=intake("10.0.0.0/8", "0.0.0.0/0")))
    await operator.until_ready()

    conditions = await operator.conditions()
    assert conditions["RelayRestricted"]["status"] == "False"
    assert conditions["RelayRestricted"]["reason"] == "OpenRelay"

    await operator.change({"intake": intake("10.0.0.0/8")})
    await operator.until(lambda found: "RelayRestricted" not in found)


@pytest.fixture
async def neighbour(api: ApiServer) -> AsyncIterator[str]:
    """Another namespace."""
    created = await api.create(
        NAMESPACE,
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"generateName": "test-", "labels": {"mail": "yes"}},
        },
    )
    yield created["metadata"]["name"]
    await api.delete(NAMESPACE, created)


async def test_another_namespace_needs_the_clusters_leave_and_its_secrets(
    api: ApiServer, namespace: str, neighbour: str
) -> None:
    operator = Running(api, namespace, also=(neighbour,))
    await operator.start()
    try:
        await operator.apply_cluster()
        reference = {"name": "main", "namespace": namespace}
        await operator.apply(mail_queue(neighbour, clusterRef=reference, workers=workers()))
        await operator.until_ready("main", QUEUE_CLUSTER)
        there = operator.at(neighbour)
        conditions = await there.until(lambda found: "Stalled" in found)
        assert conditions["Ready"]["reason"] == "ClusterNotAllowed"

        allowed = {"from": "Selector", "selector": {"matchLabels": {"mail": "yes"}}}
        await api.patch(QUEUE_CLUSTER, namespace, "main", {"spec": {"allowedNamespaces": allowed}})
        conditions = await there.until(
            lambda found: found["WorkersReady"]["reason"] == "CredentialsMissing"
        )
        assert conditions["ConfigurationAccepted"]["status"] == "True"
        assert f"namespace {neighbour}" in conditions["WorkersReady"]["message"]

        await operator.apply(*secrets(neighbour))
        await there.until_ready()
        await api.delete(MAIL_QUEUE, await there.queue())
        await there.until_gone(MAIL_QUEUE, "outgoing")
    finally:
        await operator.stop()
