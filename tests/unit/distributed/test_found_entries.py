"""Entries that another reader of the view found are changed as any operation changes them: by their
rows and marks as they are then."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from postroad.distributed.administration.administration import EntryChange
from postroad.distributed.dequeue.items import BYTES_MISSING
from postroad.domain.delivery.events import EventRule
from postroad.domain.queues.entries import EntryKey, slice_of
from postroad.domain.queues.names import key_of_bytes
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import id_at
from postroad.errors import InvalidInput
from postroad.ports.delivery import Topic
from support.in_memory_cluster import NAME, WINDOW, InMemoryCluster, Process

ALL = Selector.all()
HOUR = timedelta(hours=1)


async def keys_of(process: Process) -> list[EntryKey]:
    """The keys of all rows of the present slice."""
    view, start = process.queue._engine.view, slice_of(process.clock.now(), WINDOW)
    found = await view.occupied([start], 2)
    return sorted([row.key for each in found async for row in view.rows(each)])


async def test_only_what_is_selected_and_waits_is_changed(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "one", "two", "removed")
    keys = await keys_of(process)
    await process.queue.remove(Selector(name="removed"))

    held = await process.queue.change_found(EntryChange.HOLD, keys, Selector(name="one"))
    removed = await process.queue.change_found(EntryChange.REMOVE, keys, ALL)

    assert (held, removed) == (1, 2)  # the held one under its successor
    assert [each async for each in process.queue.browse()] == []
    assert cluster.blobs == {}


async def test_a_change_of_one_entry_twice_changes_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    keys = await keys_of(process)

    assert await process.queue.change_found(EntryChange.HOLD, keys, ALL) == 1
    assert await process.queue.change_found(EntryChange.HOLD, keys, ALL) == 0
    assert await process.queue.change_found(EntryChange.RELEASE, keys, ALL) == 1
    with pytest.raises(InvalidInput):
        await process.queue.change_found(EntryChange.HOLD, keys, Selector())


async def test_what_is_changed_has_events_of_the_entries_it_waits_under(
    cluster: InMemoryCluster, process: Process
) -> None:
    queue = process.queue
    await queue.shared_state.publish(Topic.STREAMS, "crm", EventRule("crm").text(), HOUR)
    await cluster.enqueue(process, "one", "two")
    keys = await keys_of(process)
    await queue.hold(Selector(name="one"))
    (held,) = [each async for each in queue.browse(Selector(name="one"))]

    assert await queue.change_found(EntryChange.HOLD, keys, ALL) == 1
    assert await queue.change_found(EntryChange.REMOVE, keys, Selector(name="one")) == 1
    assert await queue.change_found(EntryChange.REMOVE, keys, Selector(name="one")) == 0

    kept = [json.loads(each) for each in cluster.world.events(str(NAME)).waiting["crm"].values()]
    assert [(each["type"], each["data"]["name"]) for each in kept] == [
        ("Held", "one"),
        ("Held", "two"),
        ("Removed", "one"),
    ]
    assert kept[2]["data"]["enqueue_id"] == str(held.enqueue_id)


async def test_a_delayed_mail_gets_another_message_and_a_held_one_none(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "delayed", delay=600)
    await cluster.enqueue(process, "held")
    await process.queue.hold(Selector(name="held"))
    keys = await keys_of(process)
    cluster.broker.lose_everything()

    assert await process.queue.change_found(EntryChange.REPUBLISH, keys, ALL) == 1
    (delayed,) = [v async for v in process.queue.browse(Selector(name="delayed"))]
    assert delayed.due_at is not None
    await cluster.deliver(process, timedelta(minutes=11))
    assert cluster.transmitted.total() == 1


async def test_mail_whose_bytes_are_missing_becomes_a_dead_letter_and_other_mail_waits(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "whole", "lost", "ended")
    keys = await keys_of(process)
    views = {v.mail.name: v async for v in process.queue.browse()}
    for name in ("lost", "ended"):
        view = views[name]
        del cluster.blobs[key_of_bytes(NAME, view.accepted_at, view.mail_id)]
    await process.queue.remove(Selector(name="ended"))

    change = EntryChange.GIVE_UP_WITHOUT_BYTES
    assert await process.queue.change_found(change, keys, ALL) == 1
    assert await process.queue.change_found(change, keys, ALL) == 0

    (dead_letter,) = [each async for each in process.queue.dead_letters()]
    assert (dead_letter.mail.name, dead_letter.reason) == ("lost", BYTES_MISSING)
    assert [v.mail.name async for v in process.queue.browse()] == ["whole"]


async def test_of_objects_that_were_found_only_those_without_a_mail_are_deleted(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail", delay=10**6)
    now = process.clock.now()
    orphan = key_of_bytes(NAME, now, id_at(now, 0, 1))
    cluster.blobs[orphan] = b"bytes"
    live = [key for key in cluster.blobs if key != orphan]
    await cluster.pass_time(7 * HOUR)
    young_at = process.clock.now()
    young = key_of_bytes(NAME, young_at, id_at(young_at, 0, 2))
    cluster.blobs[young] = b"bytes"

    found = [orphan, young, *live, f"{NAME}/readme"]
    assert await process.queue.delete_orphans(found) == 1

    assert sorted(cluster.blobs) == sorted([young, *live])
