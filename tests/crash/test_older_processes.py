"""Processes of this release and of an older one on one store, as during a rolling upgrade: the
first owns it, the other one is its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from support.releases import HERE, LONGEST_ANSWER, Peer, unpack_older

Start = Callable[[str], Awaitable[Peer]]
SENDER = "s@x.example"


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a process of a release, `old` or `new`, that opens the store."""
    older, peers = unpack_older(tmp_path / "older"), list[Peer]()

    async def start(release: str) -> Peer:
        path = older if release == "old" else HERE
        peers.append(await Peer.start(release, path, tmp_path / f"{len(peers)}.log", {}))
        await peers[-1].ask("open", url=f"embedded://{tmp_path / 'store'}")
        return peers[-1]

    yield start
    for peer in peers:
        await peer.kill()


async def test_an_older_client_leaves_priorities_and_expired_mail_as_they_are(
    start: Start,
) -> None:
    new, old = await start("new"), await start("old")
    await new.ask("enqueue", sender=SENDER, names=["urgent"], priority=50)
    await new.ask("enqueue", sender="e@x.example", names=["expired"], priority=-100)
    await old.ask("enqueue", sender=SENDER, names=["plain"])
    assert await old.ask("browse") == ["expired", "plain", "urgent"]

    assert await new.ask("change", operation="expire", sender="e@x.example") == 1
    for operation, changed in (("hold", 2), ("release", 2)):
        assert await old.ask("change", operation=operation, sender=SENDER) == changed
    assert await old.ask("dead_letters") == ["expired"]
    assert await old.ask("change", operation="requeue", sender="e@x.example") == 1

    assert await new.ask("priorities") == {"urgent": 50, "expired": -100, "plain": 0}
    await old.ask("consume", rejects=True)
    async with asyncio.timeout(LONGEST_ANSWER):
        while await new.ask("size"):
            await asyncio.sleep(0.05)
    await old.end()
    await new.end()
    assert sorted(old.transmitted) == ["expired", "plain", "urgent"]


async def test_an_older_owner_refuses_expire_and_drops_priorities(start: Start) -> None:
    old, new = await start("old"), await start("new")
    await new.ask("enqueue", sender=SENDER, names=["urgent"], priority=50)

    with pytest.raises(AssertionError, match="InvalidInput"):
        await new.ask("change", operation="expire", sender=SENDER)

    assert await new.ask("browse") == await old.ask("browse") == ["urgent"]
    assert await new.ask("priorities") == {"urgent": 0}
    assert await new.ask("change", operation="hold", sender=SENDER) == 1
    await new.end()
    await old.end()
    again = await start("new")
    assert await again.ask("priorities") == {"urgent": 0}
    await again.end()


async def test_an_older_owner_counts_an_attempt_of_mail_that_is_put_off(start: Start) -> None:
    old, new = await start("old"), await start("new")
    await new.ask("enqueue", sender=SENDER, names=["rests"])

    assert await new.ask("put_off") == 1
    assert await new.ask("size") == 0

    await new.end()
    await old.end()
