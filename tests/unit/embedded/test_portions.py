"""Mails that are queued together share the syncs; each is queued whole, or has its error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles, Sync
from crash.world import OPTIONS, Inline, start
from postroad.domain.mail.mail import Mail
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.embedded.store.owner import OwnedQueue
from postroad.embedded.store.spool_writing import SpoolWriter
from postroad.errors import MailTooLarge, StoreFailed, StoreFull
from postroad.telemetry import metrics

T = TypeVar("T")
LIMIT, QUEUED = 100_000, 10


def mail(name: str, octets: int = 2000) -> Mail:
    return Mail("a@example.org", (f"{name}@example.net",), bytes(octets), name=name)


@pytest.fixture
async def files() -> LossyFiles:
    return LossyFiles()


@pytest.fixture
async def queue(files: LossyFiles) -> AsyncIterator[OwnedQueue]:
    options = replace(OPTIONS, largest_mail=LIMIT, segment_bytes=2**20, segment_envelopes=100)
    queue = await start(files, options=options)
    await queue.maintenance.recovering
    await queue.enqueue_portion([mail(str(each)) for each in range(QUEUED)])  # makes files
    yield queue
    await queue.close()


async def names(queue: OwnedQueue) -> list[str]:
    return [view.mail.name or "" async for view in queue.browse()]


async def test_a_portion_costs_one_sync_of_its_file_and_one_of_the_log(
    queue: OwnedQueue, files: LossyFiles
) -> None:
    before = len(files.journal.steps)

    ids = await queue.enqueue_portion([mail(f"m{each}") for each in range(40)])

    assert sum(isinstance(step, Sync) for step in files.journal.steps[before:]) == 2
    assert [view.enqueue_id async for view in queue.browse()][QUEUED:] == ids
    assert (await names(queue))[QUEUED:] == [f"m{each}" for each in range(40)]


async def test_mails_of_all_sizes_are_queued_in_their_order(queue: OwnedQueue) -> None:
    sizes = [0, 70_000, 300, 9000, 300, LIMIT, 20_000]

    ids = await queue.enqueue_portion([mail(f"m{each}", each) for each in sizes])

    found = {view.enqueue_id: view.size_bytes async for view in queue.browse()}
    assert [found[each] for each in ids if isinstance(each, UUID)] == sizes
    consumer = queue.consumer(100)
    contents = [await (await consumer.next()).content() for _ in range(QUEUED + 7)]
    assert [len(each) for each in contents[QUEUED:]] == sizes


async def test_behind_a_mail_that_is_refused_none_is_begun(queue: OwnedQueue) -> None:
    found = await queue.enqueue_portion([mail("a"), mail("b", LIMIT + 1), mail("c")])

    assert isinstance(found[0], UUID)
    assert isinstance(found[1], MailTooLarge)
    assert found[2] is found[1]
    assert (await names(queue))[QUEUED:] == ["a"]


async def test_a_file_that_the_disk_refuses_costs_the_mails_of_other_files_nothing(
    queue: OwnedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(mail("before", 5000))
    honest, free = SpoolFiles.store, len(queue.engine.slots)

    def refused(self: SpoolFiles, *mails: Any) -> Any:
        if len(mails[0].content) == 2000:
            raise StoreFailed("Input/output error")
        return honest(self, *mails)

    monkeypatch.setattr(SpoolFiles, "store", refused)
    found = await queue.enqueue_portion([mail("a"), mail("b", 5000), mail("c")])

    assert [type(each) for each in found] == [StoreFailed, UUID, StoreFailed]
    assert (await names(queue))[QUEUED:] == ["before", "b"]
    while queue.engine.slots._cleaning is not None:
        await asyncio.sleep(0)
    assert len(queue.engine.slots) == free - 3, "refused slots wait for the next start"


class Gated(Inline):
    """Threads whose work waits for a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        self.begun += 1
        await self.gate.wait()
        return await super().run(work, *arguments)


async def test_the_slots_of_a_cancelled_portion_are_free_when_its_thread_has_ended(
    queue: OwnedQueue,
) -> None:
    engine, threads = queue.engine, Gated()
    engine.spool_writer = SpoolWriter(engine.spool_files, threads)
    free = len(engine.slots)
    assert free > 2
    storing = asyncio.ensure_future(queue.enqueue_portion([mail("a"), mail("b")]))
    while not threads.begun:
        await asyncio.sleep(0)

    storing.cancel()
    await asyncio.wait({storing})
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(engine.slots) == free - 2, "the thread still writes"
    threads.gate.set()
    while len(engine.slots) < free:
        await asyncio.sleep(0.001)

    assert len(await names(queue)) == QUEUED


async def test_mails_that_come_while_a_file_is_synced_share_its_next_sync(
    queue: OwnedQueue, files: LossyFiles
) -> None:
    engine, threads = queue.engine, Gated()
    engine.spool_writer = SpoolWriter(engine.spool_files, threads)
    first = asyncio.ensure_future(queue.enqueue(mail("first")))
    while not threads.begun:
        await asyncio.sleep(0)
    others = [asyncio.ensure_future(queue.enqueue(mail(f"m{each}"))) for each in range(8)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert threads.begun == 1, "one thread at a time writes to a file"
    before = len(files.journal.steps)
    threads.gate.set()
    await asyncio.gather(first, *others)

    path = engine.layout.spool_file(next(iter(engine.index.walk())).slot)
    spool = files.disk.names[path.parent][path.name]
    synced = [step for step in files.journal.steps[before:] if step == Sync(spool)]
    assert len(synced) == threads.begun == 2


async def test_a_sync_that_fails_is_the_error_of_each_mail_that_shares_it(
    queue: OwnedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, error = SpoolFiles.store, StoreFull("no space")
    monkeypatch.setattr(SpoolFiles, "store", lambda *_: (_ for _ in ()).throw(error))

    found = await asyncio.gather(
        *(queue.enqueue(plain_mail()) for _ in range(3)), return_exceptions=True
    )

    assert found == [error] * 3
    monkeypatch.setattr(SpoolFiles, "store", honest)
    assert await queue.enqueue(plain_mail())
    assert len(await names(queue)) == QUEUED + 1


async def test_each_mail_of_a_portion_is_counted(queue: OwnedQueue) -> None:
    def count() -> float:
        name, labels = "postroad_enqueued_mails_total", metrics.of_queue(queue.name)
        values = dict(zip(("namespace", "name"), labels, strict=True))
        return REGISTRY.get_sample_value(name, values) or 0

    before = count()
    await queue.enqueue_portion([mail("a"), mail("b")])

    assert count() - before == 2
