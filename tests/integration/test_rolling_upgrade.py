"""A rolling upgrade: processes of the release before and of this one work on one queue, each on
mail of the other; then only this release is left. Every mail comes once, or was removed."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from postroad.bootstrap.cluster import connect
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.names import QueueName
from postroad.settings import from_environment
from support.outcomes import kept_in
from support.releases import HERE, Peer, unpack_older
from support.servers import cql, object_keys

pytestmark = pytest.mark.needs("rabbitmq", "cassandra", "s3")

EACH = 5
"""Mails of each kind from each release."""

ENOUGH = 90
"""Seconds in which an awaited mail comes on a busy machine; it usually takes a tenth of that."""

KINDS = ("plain", "retry", "held", "long", "gone", "kept", "later", "reject")
"""`held` and `long` are held and released, `long` when the old process is gone; `gone` is removed
at once, `kept` is held, then removed; `later` is delayed and flushed."""

DELIVERED = tuple(kind for kind in KINDS if kind not in {"gone", "kept"})

Pair = tuple[Peer, Peer]


@pytest.fixture
def queue() -> QueueName:
    return QueueName(f"upgrade-{secrets.token_hex(4)}", "outgoing")


@pytest.fixture
async def peers(tmp_path: Path, queue: QueueName) -> AsyncIterator[Pair]:
    """An old and a new process, on a new queue that the old one made."""
    older = unpack_older(tmp_path)
    environment = {"POSTROAD_CASSANDRA_KEYSPACE": f"upgrade_{secrets.token_hex(4)}"}
    peers: list[Peer] = []
    try:
        for release, path in (("old", older), ("new", HERE)):
            log = tmp_path / f"{release}.log"
            peers.append(await Peer.start(release, path, log, environment))
            await peers[-1].ask("open", url=f"distributed://{queue}")
        old, new = peers
        yield old, new
    finally:
        for peer in peers:
            await peer.kill()
        servers = connect(from_environment({**os.environ, **environment}))
        await servers.broker(queue).delete()
        await servers.blobs(queue.bucket("postroad-")).drop()
        await servers.close()
        cql(f"DROP KEYSPACE IF EXISTS {environment['POSTROAD_CASSANDRA_KEYSPACE']}")


async def test_mail_goes_through_processes_of_two_releases_once(
    peers: Pair, queue: QueueName
) -> None:
    old, new = peers
    for peer in peers:
        await enqueue(peer)
    for kind in ("held", "long", "kept"):
        await change(peers, "hold", kind)
    await change(peers, "remove", "gone")
    await change(peers, "flush", "later")
    for peer in peers:
        waiting = names(*(kind for kind in KINDS if kind != "gone"))
        assert await peer.ask("browse") == waiting
        assert await peer.ask("size") == len(waiting)

    for peer in peers:
        await peer.ask("consume", rejects=True)
    await maintain(peers)
    await until(lambda: is_worked_off(peers))
    assert Counter(old.retried + new.retried) == dict.fromkeys(names("retry"), 2)
    # Each process had in flight what the other had retried.
    for peer, other in ((old, new), (new, old)):
        assert set(peer.retried) & {*other.retried, *other.transmitted}

    for peer in peers:
        await peer.ask("consume", rejects=False)
    await change(peers, "remove", "kept", own=True)
    await change(peers, "release", "held", own=True)
    await change(peers, "requeue", "reject")
    await maintain(peers)
    await old.end()
    for peer in peers:
        whose = sender("long", peer)
        assert await new.ask("change", operation="release", sender=whose) == EACH
    await until(lambda: is_empty(peers))
    await new.ask("maintain")

    assert transmitted(peers) == names(*DELIVERED)
    check_outcomes(peers, queue)
    assert await new.ask("browse") == await new.ask("dead_letters") == []
    await new.end()
    assert object_keys(queue.bucket("postroad-")) == []


def check_outcomes(peers: Pair, queue: QueueName) -> None:
    """Both processes keep those of their attempts, in the table that the old one made."""
    keyspace = peers[1].environment["POSTROAD_CASSANDRA_KEYSPACE"]
    marks = cql(f"SELECT queue, outcomes, seconds FROM {keyspace}.deleted_mails")
    kept = [kept_in(mark._asdict()) for mark in marks if mark.queue == str(queue)]
    kinds = Counter(each.counts[0].kind for each in kept if each is not None)
    assert kinds[OutcomeKind.DELIVERED] == len(transmitted(peers))
    assert kinds[OutcomeKind.DEFERRED] == sum(len(each.retried) for each in peers)


async def enqueue(peer: Peer) -> None:
    for kind in KINDS:
        mails = [each for each in names(kind) if f"-{peer.name}-" in each]
        delay = 3600 if kind == "later" else 0
        await peer.ask("enqueue", sender=sender(kind, peer), names=mails, delay=delay)


async def change(peers: Pair, operation: str, kind: str, *, own: bool = False) -> None:
    """Each process changes the mails that the other enqueued, or its own."""
    for peer, other in (peers, peers[::-1]):
        whose = sender(kind, peer if own else other)
        assert await peer.ask("change", operation=operation, sender=whose) == EACH


async def maintain(peers: Pair) -> None:
    for peer in peers:
        await peer.ask("maintain")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not await holds():
            await asyncio.sleep(0.2)


async def is_worked_off(peers: Pair) -> bool:
    """Whether only held mail is left, as both processes see it."""
    dead = [await peer.ask("dead_letters") for peer in peers]
    is_dead = dead == [names("reject")] * 2
    return is_dead and transmitted(peers) == names("plain", "retry", "later")


async def is_empty(peers: Pair) -> bool:
    done = len(transmitted(peers)) >= len(names(*DELIVERED))
    return done and await peers[1].ask("size") == 0


def transmitted(peers: Pair) -> list[str]:
    return sorted(peers[0].transmitted + peers[1].transmitted)


def sender(kind: str, peer: Peer) -> str:
    """The sender of all mails of one kind that one process enqueued."""
    return f"{kind}@{peer.name}.example"


def names(*kinds: str) -> list[str]:
    """The mails of these kinds, from both."""
    return sorted(
        f"{kind}-{release}-{number}"
        for kind in kinds
        for release in ("old", "new")
        for number in range(EACH)
    )
