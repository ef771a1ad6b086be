"""What a MailQueue needs of its servers follows from two resources, without a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from postroad.controller.cluster.clusters import Cluster
from postroad.controller.mailqueue.plan import QueuePlan, plan_of
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import BLOBS_READY, BROKER_READY, VIEW_READY, bad
from support import resources
from support.operator_in_memory import NAMESPACE, World


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    world = World()
    await world.declare()
    yield await world.clusters.open(await world.found())
    await world.close()


def queue(**spec: Any) -> Queue:
    found = resources.mail_queue(NAMESPACE, **spec)
    return Queue.of({**found, "metadata": {**found["metadata"], "uid": "u", "generation": 3}})


def test_plan_of_equal_resources_is_equal_and_frozen(cluster: Cluster) -> None:
    plan = plan_of(queue(), cluster, {})

    assert plan == plan_of(queue(), cluster, {})
    with pytest.raises(FrozenInstanceError):
        plan.broker = plan_of(queue(), cluster, {}).broker  # type: ignore[misc]


def test_plan_of_a_configured_queue_has_begun(cluster: Cluster) -> None:
    status = {"configuration": {"version": 1}}
    plans = [plan_of(queue(), cluster, each) for each in ({}, status)]

    assert [(each.broker.begun, each.bucket.begun) for each in plans] == [
        (False, False),
        (True, True),
    ]


@pytest.mark.parametrize("which", [BROKER_READY, BLOBS_READY, VIEW_READY])
def test_plan_of_a_server_that_is_away_leaves_the_others(cluster: Cluster, which: str) -> None:
    finding = bad(which, "Away", "no answer", retryable=True)
    plan = plan_of(queue(), replace(cluster, away={which: finding}), {})

    away = {
        BROKER_READY: plan.broker.away,
        BLOBS_READY: plan.bucket.away,
        VIEW_READY: plan.view.keyspace.away,
    }
    assert away == {each: finding if each == which else None for each in away}


@pytest.mark.parametrize(
    ("blobs", "expected"), [({}, "postroad-mail-outgoing"), ({"bucket": "shared"}, "shared")]
)
def test_plan_of_a_shared_bucket_does_not_own_it(
    cluster: Cluster, blobs: dict[str, Any], expected: str
) -> None:
    place = plan_of(queue(blobs=blobs), cluster, {}).place

    assert (place.bucket, place.owns_bucket) == (expected, not blobs)


def test_claims_of_the_queue_and_of_its_keyspace_have_their_own_holders(cluster: Cluster) -> None:
    plan: QueuePlan = plan_of(queue(), replace(cluster, adopted="theirs"), {})

    assert plan.place.holder.queue == "mail.outgoing"
    assert plan.place.holder.adopted == ""
    assert plan.view.keyspace.holder.queue == ""
    assert plan.view.keyspace.holder.adopted == "theirs"


def test_pods_of_the_cluster_s_namespace_use_the_versions_that_it_read(cluster: Cluster) -> None:
    own = plan_of(queue(), cluster, {}).workloads
    elsewhere = plan_of(queue(), replace(cluster, namespace="infra"), {}).workloads

    assert own.tls_versions == cluster.credentials.tls_versions
    assert elsewhere.tls_versions is None
