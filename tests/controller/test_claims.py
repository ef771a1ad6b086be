"""Of two QueueClusters over one keyspace, the first keeps it, unless the second may adopt it."""

from __future__ import annotations

import pytest

from postroad.controller.kubernetes.api import ADOPT, QUEUE_CLUSTER
from support import resources
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")


async def test_a_conflict_names_the_first_which_keeps_the_keyspace_when_it_is_replaced(
    operator: Running,
) -> None:
    await operator.apply_cluster()
    await operator.until_ready("main", QUEUE_CLUSTER)
    await operator.apply(resources.queue_cluster(operator.namespace, "second"))

    refused = await operator.until(
        lambda found: found["ViewReady"]["reason"] == "ResourceConflict", "second", QUEUE_CLUSTER
    )
    assert f"{operator.namespace}/main" in refused["ViewReady"]["message"]
    assert f"{ADOPT}=" in refused["ViewReady"]["message"]

    first = await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main")
    assert first is not None
    await operator.api.delete(QUEUE_CLUSTER, first)
    await operator.until(
        lambda found: "does not exist" in found["ViewReady"]["message"], "second", QUEUE_CLUSTER
    )
    await operator.apply_cluster()
    await operator.until_ready("main", QUEUE_CLUSTER)
    found = await operator.conditions("second", QUEUE_CLUSTER)
    assert found["ViewReady"]["reason"] == "ResourceConflict"


async def test_the_annotation_lets_the_second_adopt_the_keyspace(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.until_ready("main", QUEUE_CLUSTER)
    await operator.apply(resources.queue_cluster(operator.namespace, "second"))
    refused = await operator.until(
        lambda found: found["ViewReady"]["reason"] == "ResourceConflict", "second", QUEUE_CLUSTER
    )
    claim = refused["ViewReady"]["message"].partition(f"{ADOPT}=")[2].rstrip(")")

    change = {"metadata": {"annotations": {ADOPT: claim}}}
    assert await operator.api.patch(QUEUE_CLUSTER, operator.namespace, "second", change)

    await operator.until_ready("second", QUEUE_CLUSTER)
    await operator.until(
        lambda found: found["ViewReady"]["reason"] == "ResourceConflict", "main", QUEUE_CLUSTER
    )
