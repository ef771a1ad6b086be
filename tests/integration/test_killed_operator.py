"""An operator that is killed behind any of its requests is followed by one that ends the same way.

A real process over real servers: SIGKILL behind a request to the API server, RabbitMQ, its
management API, Cassandra or S3, while a MailQueue is created, changed, given other users and
deleted. One position of each is tried; `POSTROAD_KILL_EVERY=1` tries all of them, 3 each third one,
and that the tests find an operator which deletes in the wrong order.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import servers
from postroad.adapters.cassandra.session import Session
from postroad.adapters.kubernetes.api_requests import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import FIELD_MANAGER
from support.crds import install_crds
from support.killed_operator import ACTS, Rounds, create, delete, rounds_over
from support.namespaces import new_namespace

EVERY = int(os.environ.get("POSTROAD_KILL_EVERY", "0"))

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(7200 if EVERY else 240),
]


@pytest.fixture
async def rounds(tmp_path: Path) -> AsyncIterator[Rounds]:
    """An operator of this source, and a QueueCluster with a keyspace of its own."""
    keyspace = servers.fresh()
    api = ApiServer(load_access(Path(os.environ["KUBECONFIG"])), FIELD_MANAGER)
    variables = {**os.environ, "POSTROAD_CASSANDRA_KEYSPACE": keyspace}
    try:
        await install_crds(api)
        async with (
            new_namespace(api) as namespace,
            rounds_over(api, variables, namespace, tmp_path) as made,
        ):
            yield made
    finally:
        await api.close()
        session = Session(servers.cassandra(keyspace))
        await session.run("DROP KEYSPACE IF EXISTS {keyspace}")
        await session.close()


def positions_of(requests: Sequence[str]) -> Sequence[int]:
    """Return the positions to be tried of so many requests."""
    return range(0, len(requests), EVERY) if EVERY else [4 * len(requests) // 5]


async def test_a_killed_operator_is_followed_by_one_that_ends_the_same_way(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    await rounds.learn()
    tried = {act: [*positions_of(rounds.requests[act])] for act in ACTS}
    behind: list[str] = []
    different: list[str] = []

    def show(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    for number in range(max(map(len, tried.values()))):
        await rounds.start()  # what a process declares once, each has still to declare
        try:
            async for act, request in rounds.life(
                {a: t[number : number + 1] for a, t in tried.items()}
            ):
                behind.append(request)
                show(f"killed at {act.__name__} {tried[act][number]}, behind {request}")
        except AssertionError as error:
            different.append(str(error))
            show(str(error))
        await rounds.remove()

    for act in ACTS:
        show(f"{act.__name__}: {len(rounds.requests[act])} positions, {len(tried[act])} tried")
    assert different == []
    assert len(behind) >= 0.9 * sum(map(len, tried.values()))
    assert [len(rounds.ends[act]["events"]) for act in ACTS] == [1, 2, 2, 0]


@pytest.mark.skipif(not EVERY, reason="POSTROAD_KILL_EVERY is not set")
async def test_an_operator_that_deletes_in_the_wrong_order_is_found(rounds: Rounds) -> None:
    await rounds.learn()
    await rounds.carried_out(create)
    rounds.module = "support.careless_operator"
    await rounds.start()

    with pytest.raises(AssertionError, match="bucket: True instead of False"):
        await rounds.killed(delete, 0)
