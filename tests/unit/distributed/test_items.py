"""What an item in flight costs in requests."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.adapters.memory.blobs import MemoryBlobs
from postroad.distributed.dequeue.items import MAX_KEPT
from postroad.domain.mail.mail import Mail, Outcome
from postroad.errors import BlobMissing, BlobsUnavailable, EntryEnded, QueueClosed
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process


async def _leased(cluster: InMemoryCluster, process: Process, mail: Mail) -> Item:
    await process.queue.enqueue(mail)
    return await Consumer(cluster, process.queue).next()


def _count(process: Process, operation: str) -> int:
    return sum(step.operation == operation for step in process.faults.steps)


async def test_fifty_refusals_with_texts_of_their_own_are_one_request(
    cluster: InMemoryCluster, process: Process
) -> None:
    refused = {f"r{n}@x.example": Outcome.failed(f"550 no r{n}") for n in range(50)}
    item = await _leased(cluster, process, plain_mail(recipients=tuple(refused)))

    await item.record(refused)

    assert _count(process, "record") == 1


@pytest.fixture
def slow_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other readers run before a request for bytes is answered."""
    get = MemoryBlobs.get

    async def later(blobs: MemoryBlobs, key: str) -> bytes:
        await asyncio.sleep(0)
        return await get(blobs, key)

    monkeypatch.setattr(MemoryBlobs, "get", later)


@pytest.mark.usefixtures("slow_bucket")
async def test_a_content_is_fetched_once_for_many_sites(
    cluster: InMemoryCluster, process: Process
) -> None:
    content = b"x" * MAX_KEPT
    item = await _leased(cluster, process, plain_mail(content=content))
    before = _count(process, "get")

    first = await asyncio.gather(*(_read(item) for _ in range(150)))
    then = [await _read(item) for _ in range(150)]

    assert {*first, *then} == {content}
    assert _count(process, "get") == before + 1


async def test_a_large_content_is_not_kept(cluster: InMemoryCluster, process: Process) -> None:
    content = b"x" * (MAX_KEPT + 1)
    item = await _leased(cluster, process, plain_mail(content=content))
    before = _count(process, "get")

    assert [await _read(item), await _read(item)] == [content, content]
    assert _count(process, "get") == before + 2


@pytest.mark.usefixtures("slow_bucket")
@pytest.mark.parametrize("size", [1, MAX_KEPT, MAX_KEPT + 1])
async def test_the_bytes_of_a_mail_are_missing_once(
    cluster: InMemoryCluster, process: Process, size: int
) -> None:
    item = await _leased(cluster, process, plain_mail(content=b"x" * size))
    cluster.world.bucket("bucket").objects.clear()

    found = await asyncio.gather(*(_read(item) for _ in range(3)), return_exceptions=True)

    assert [type(each) for each in found] == [BlobMissing, EntryEnded, EntryEnded]
    assert len(cluster.tables.dead_letters) == 1


@pytest.mark.parametrize("size", [2, MAX_KEPT + 1])
async def test_content_that_the_object_store_cuts_is_not_transmitted(
    cluster: InMemoryCluster, process: Process, size: int
) -> None:
    """A proxy before the store, or a disk behind it, lost the end."""
    item = await _leased(cluster, process, plain_mail(content=b"x" * size))
    objects = cluster.world.bucket("bucket").objects
    [key] = [each for each in objects if each.endswith(str(item.mail_id))]
    whole = objects[key]
    objects[key] = whole[:-1]

    with pytest.raises(BlobsUnavailable):
        await _read(item)

    objects[key] = whole
    assert await _read(item) == whole
    await item.done()


async def test_a_mail_that_all_got_is_no_dead_letter(
    cluster: InMemoryCluster, process: Process
) -> None:
    item = await _leased(cluster, process, plain_mail())
    await item.record(dict.fromkeys(item.mail.recipients, Outcome.delivered("250 ok")))

    await item.reject("too late")

    cluster.check_nothing_is_left()


async def test_an_item_that_has_ended_does_nothing_more(
    cluster: InMemoryCluster, process: Process
) -> None:
    item = await _leased(cluster, process, plain_mail())
    (recipient,) = item.mail.recipients
    await item.done()

    for call in (
        _read(item),
        item.content(),
        item.shape(),
        item.record({recipient: Outcome.delivered("250 ok")}),
        item.retry(timedelta(minutes=1)),
        item.reject("no"),
        item.done(),
    ):
        with pytest.raises(EntryEnded):
            await call


async def test_a_handle_closes_itself_behind_a_block(process: Process) -> None:
    async with process.queue as queue:
        assert queue is process.queue

    with pytest.raises(QueueClosed):
        await queue.enqueue(plain_mail())


async def _read(item: Item) -> bytes:
    return b"".join([chunk async for chunk in item.stream()])
