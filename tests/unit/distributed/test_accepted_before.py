"""A mail that another store had before: its age counts from then, and nothing else does."""

from __future__ import annotations

from datetime import timedelta

from contract.queue_harness import plain_mail
from support.in_memory_cluster import InMemoryCluster, Process


async def test_a_mail_is_as_old_as_its_acceptance_and_its_entry_begins_now(
    cluster: InMemoryCluster, process: Process
) -> None:
    now = cluster.clock.now()
    for name, age in (("old", timedelta(days=3)), ("ahead", -timedelta(days=3))):
        await process.queue.enqueue(plain_mail(name), key=name, accepted_at=now - age)

    _, item = await cluster.take(process)
    assert (item.accepted_at, item.enqueued_at) == (now - timedelta(days=3), now)
    assert f"/{now:%Y/%m/%d}/" in next(iter(cluster.blobs))
    found = {each.mail.name: each.accepted_at async for each in process.queue.browse()}
    assert found == {"old": now - timedelta(days=3), "ahead": now}
