"""A QueueCluster gets the credentials of the operator's pod only where the operator was started to
lend them: users who may create one must not act with them."""

from __future__ import annotations

import pytest

from postroad.controller.kubernetes.api import QUEUE_CLUSTER
from postroad.controller.status import conditions as condition
from postroad.errors import AmbientCredentialsDenied
from support.operator_in_memory import World, reasons


@pytest.mark.parametrize("lent", [False, True])
async def test_a_cluster_without_credentials_of_s3_needs_leave(lent: bool) -> None:
    world = World(ambient_credentials=lent)
    await world.declare()
    await world.change(QUEUE_CLUSTER, "main", s3={"secretRef": None})

    found = await world.cluster()

    denied = {} if lent else dict.fromkeys(
        (
            condition.READY,
            condition.BROKER_READY,
            condition.VIEW_READY,
            condition.BLOBS_READY,
        ),
        AmbientCredentialsDenied.__name__,
    )  # fmt: skip
    assert reasons(found).items() >= denied.items()
    if not lent:
        assert "--ambient-credentials" in str(found["conditions"])
        with pytest.raises(AmbientCredentialsDenied):
            await world.queue()
    assert (world.connections.last((await world.found())["metadata"]["uid"]) is not None) is lent
    await world.close()
