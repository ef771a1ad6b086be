"""What a MailQueue wants and does not get has no effect on the other queues of its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postroad.controller.kubernetes.api import FINALIZER, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.errors import ClusterNotAllowed
from support import resources
from support.operator_in_memory import World, reasons


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.declare()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"view": resources.view("100h", 1)}, "SliceWindowTooLong"),
        ({"retry": {"lanes": ["170h"], "maxAge": "200h"}}, "RetryStepTooLong"),
    ],
    ids=["slices", "steps"],
)
async def test_a_queue_that_does_not_fit_is_refused_by_itself(
    world: World, spec: dict[str, object], reason: str
) -> None:
    """Also by an operator that has just started."""
    await world.add(resources.mail_queue("mail", "long", **spec))
    for _ in range(2):
        refused, cluster, neighbour = (
            await world.queue("long"),
            await world.cluster(),
            await world.queue(),
        )

        assert reasons(refused)["ConfigurationAccepted"] == reason
        assert "rowLifetime" in refused["conditions"][0]["message"]
        assert "configuration" not in refused
        assert "ViewReady" not in reasons(cluster)
        assert cluster["tables"]["compactionWindow"] == "12h"
        assert reasons(neighbour) == {}
        await world.restart()


async def test_a_window_that_is_refused_changes_no_table(world: World) -> None:
    """A manifest that was restored from long ago wants slices that the history does not allow."""
    await world.queue()
    world.kubernetes.admission = None  # as while the rules of the CRD are removed
    await world.change(MAIL_QUEUE, "outgoing", view=resources.view("80h", 3))

    refused, cluster = await world.queue(), await world.cluster()

    assert reasons(refused)["ConfigurationAccepted"] == "SliceWindowGrows"
    assert [each["type"] for each in refused["history"]][-1] == "ConfigurationRefused"
    assert cluster["tables"]["compactionWindow"] == "12h"


async def test_a_window_that_is_accepted_fits_the_files_of_the_tables(world: World) -> None:
    world.kubernetes.admission = None  # as while the rules of the CRD are removed
    await world.change(MAIL_QUEUE, "outgoing", view=resources.view("80h", 3))

    await world.queue()

    assert (await world.cluster())["tables"]["compactionWindow"] == "96h"


async def test_a_lifetime_too_short_for_a_queue_is_the_clusters_to_mend(world: World) -> None:
    """Its queues go on with the tables as they are, also after a restart of the operator."""
    await world.change(MAIL_QUEUE, "outgoing", retry={"lanes": ["1m"]})
    before = await world.queue(), await world.cluster()
    options = world.memory.schema.options
    await world.change(QUEUE_CLUSTER, "main", cassandra={"rowLifetime": "3h"})
    for _ in range(2):
        await world.restart()
        queue, cluster = await world.queue(), await world.cluster()

        assert reasons(cluster)["ViewReady"] == "ConfigurationRefused"
        assert "mail/outgoing" in str(cluster["conditions"])
        assert cluster["tables"] == before[1]["tables"]
        assert world.memory.schema.options == options
        assert reasons(queue) == {}


async def test_a_step_that_no_longer_fits_is_reported_and_the_queue_goes_on(world: World) -> None:
    await world.queue()
    await world.change(QUEUE_CLUSTER, "main", cassandra={"rowLifetime": "6h"})

    queue, cluster = await world.queue(), await world.cluster()

    assert reasons(queue)["ConfigurationAccepted"] == "RetryStepTooLong"
    assert queue["configuration"]["version"] == 1
    assert cluster["tables"]["rowLifetime"] == "6h"


FOREIGN = "elsewhere"
LONG = {"configuration": {"version": 1} | resources.view("100h", 1)}
"""Of a queue that another cluster accepted, or this one when it allowed the namespace."""


def foreign_queue() -> dict[str, object]:
    reference = {"name": "main", "namespace": "mail"}
    view = resources.view("100h", 1)
    made = resources.mail_queue(FOREIGN, "long", clusterRef=reference, view=view)
    return made | {"status": LONG}


async def test_a_queue_that_is_not_allowed_has_no_effect(world: World) -> None:
    await world.cluster()
    await world.add(foreign_queue())
    world.api.faults.steps.clear()

    with pytest.raises(ClusterNotAllowed):
        await world.queue("long", FOREIGN)
    assert not [each for each in world.api.faults.steps if "secrets" in each.operation]

    queue, cluster = await world.queue(), await world.cluster()
    assert reasons(queue) == {}
    assert "ViewReady" not in reasons(cluster)
    assert cluster["tables"]["compactionWindow"] == "12h"
    assert cluster["queues"] == 1


async def test_a_queue_that_is_not_allowed_blocks_no_deletion(world: World) -> None:
    """Also with a finalizer, which its owner can set."""
    await world.add(foreign_queue())
    for place in (("mail", "outgoing"), (FOREIGN, "long")):
        await world.user.patch(MAIL_QUEUE, *place, {"metadata": {"finalizers": [FINALIZER]}})

    assert await world.health.end(await world.found())
    (event,) = world.events()
    assert event["note"].endswith("use this cluster: mail/outgoing")

    await world.user.patch(MAIL_QUEUE, "mail", "outgoing", {"metadata": {"finalizers": None}})
    await world.user.delete(MAIL_QUEUE, await world.found("outgoing", MAIL_QUEUE))
    assert await world.health.end(await world.found()) is None


@pytest.mark.parametrize(
    ("labels", "queues", "reason"), [({"mail": "yes"}, 2, "ConfigurationRefused"), ({}, 1, None)]
)
async def test_a_namespace_that_is_selected_has_its_say(
    world: World, labels: dict[str, str], queues: int, reason: str | None
) -> None:
    name = {"name": FOREIGN, "labels": labels}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": name}
    await world.add(namespace, foreign_queue())
    allowed = {"from": "Selector", "selector": {"matchLabels": {"mail": "yes"}}}
    await world.change(QUEUE_CLUSTER, "main", allowedNamespaces=allowed)

    cluster = await world.cluster()

    assert cluster["queues"] == queues
    assert reasons(cluster).get("ViewReady") == reason
