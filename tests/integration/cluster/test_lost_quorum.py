"""Most nodes of a kind are away: clients get transient errors meanwhile, and mail flows again by
itself."""

from __future__ import annotations

import asyncio

import pytest

from integration.cluster.load import Load, mail_of, under_load, variables_of
from integration.cluster.operator_view import operator_of
from postroad.errors import PostroadError
from stack.clusters import Cluster


async def is_refused_for_now(load: Load) -> None:
    """Enqueue until the deadline of the mail: a transient error, 451 at an intake."""
    assert load.queue is not None
    with pytest.raises(PostroadError) as refused:
        await load.queue.enqueue(mail_of("refused"))
    assert refused.value.transient


@pytest.mark.parametrize(
    ("kind", "condition"), [("cassandra", "ViewReady"), ("rabbitmq", "BrokerReady")]
)
async def test_without_a_quorum_mail_waits_and_goes_on_by_itself_afterwards(
    cluster: Cluster, kind: str, condition: str
) -> None:
    variables = variables_of(cluster)
    away = [name for name in cluster.nodes if name.startswith(kind)][1:]
    async with under_load(cluster, variables) as load, operator_of(variables) as operator:
        assert load.queue is not None
        await operator.until(lambda found: found["Ready"]["status"] == "True")
        await load.progresses()

        for name in away:
            await asyncio.to_thread(cluster.kill, name)
        await is_refused_for_now(load)
        handed_out = load.delivered.total()
        await is_refused_for_now(load)
        assert load.delivered.total() == handed_out
        found = await operator.until(lambda found: found[condition]["status"] == "False")
        assert found["Ready"]["status"] == "False"
        if kind == "cassandra":
            with pytest.raises(PostroadError) as unknown:
                await load.queue.size()
            assert unknown.value.transient
        else:  # the view knows the size without the broker
            await load.queue.size()
        print({name: (each["status"], each["message"]) for name, each in found.items()})

        await asyncio.to_thread(cluster.start, *away)
        await operator.until(lambda found: found["Ready"]["status"] == "True")
        await load.progresses()
        await load.queue.size()

    load.report(f"{kind}: no quorum")
    assert load.violations == []
