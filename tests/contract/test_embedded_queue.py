"""The mail queue contract over the embedded engine: as the owner of a store, and as its client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from contract.keyed_enqueue_contract import KeyedEnqueueContract
from contract.mail_queue_contract import (
    DelayedMailQueueContract,
    MailQueueContract,
    RejectContract,
    RetryContract,
)
from contract.manageable_mail_queue_contract import (
    DelayedManageableMailQueueContract,
    HoldContract,
    ManageableMailQueueContract,
)
from contract.operation_events_contract import OperationEventsContract
from contract.outcomes_contract import KeepingHarness, OutcomesContract
from contract.queue_harness import Consumer, eventually, names, plain_mail
from postroad import open_queue
from postroad.adapters.disk.event_spool import FileEventSpool
from postroad.adapters.disk.files import DiskFiles
from postroad.adapters.disk.shared_state import DirectorySharedState
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Outcome
from postroad.embedded.log import lanes
from postroad.embedded.log.lanes import write
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.options import FreeSpace, StoreLimits, StoreOptions
from postroad.embedded.log.spool_files import SMALL, Kept, SpoolFiles
from postroad.embedded.mail_queue import EmbeddedQueue
from postroad.embedded.opening import describe, open_store
from postroad.embedded.rpc import rpc, serving
from postroad.embedded.rpc.receiver import SpoolReceiver
from postroad.embedded.rpc.rpc import BURST, FrameKind
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.maintenance import Maintenance
from postroad.errors import EntryLost, InvalidQueueURL, QueueNotFound, StoreDamaged, StoreFull
from postroad.ports.mail_queue import MailQueue
from support.memory.clock import ManualClock, SeededRandomness
from support.outcomes import kept_in_log

T = TypeVar("T")
OPTIONS = StoreOptions(
    segment_bytes=32 * 1024,
    segment_envelopes=64,
    sync_wait=timedelta(0),
    free_wait=timedelta(0),
    steps=(timedelta(seconds=1), timedelta(minutes=1)),
)
"""Small segments, so that the contract crosses many of their ends."""

OPTIONS_WITHOUT_ROOM = replace(OPTIONS, least_free_inodes=1 << 60)


class Inline:
    """Blocking calls made at once: the same order every time."""

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(0)
        return work(*arguments)

    async def close(self) -> None:
        pass


class EmbeddedHarness:
    """Handles on stores in one directory. Virtual time, real files, real sockets."""

    def __init__(self, root: Path, options: StoreOptions = OPTIONS) -> None:
        self.clock, self.options = ManualClock(), options
        self._root = root
        self._handles: list[EmbeddedQueue] = []
        self._names = 0

    async def open(self) -> MailQueue:
        return await self._open("outgoing")

    async def new_name(self) -> MailQueue:
        self._names += 1
        return await self._open(f"other-{self._names}")

    async def _open(self, name: str) -> EmbeddedQueue:
        root, files = self._root / name, DiskFiles()
        root.mkdir(exist_ok=True)

        async def engine() -> tuple[Engine, Maintenance]:
            layout, options = describe(files, root, self.options, create=True)
            randomness = SeededRandomness(len(self._handles))
            opened = Engine(files, layout, options, self.clock, randomness, Inline(), Inline())
            return opened, await open_store(opened)

        handle = self._handle(root, engine)
        self._handles.append(handle)
        return await handle.open()

    def _handle(
        self,
        root: Path,
        engine: Callable[[], Awaitable[tuple[Engine, Maintenance]]],
        receiver: SpoolReceiver | None = None,
    ) -> EmbeddedQueue:
        return EmbeddedQueue(
            str(root),
            DiskFiles(),
            Layout(root, root),
            self.clock,
            engine,
            receiver,
            DirectorySharedState(root / "shared_state", self.clock),
            event_spool=FileEventSpool(root / "events.sqlite"),
        )

    async def outcome(self, work: asyncio.Future[T], within: timedelta) -> bool:
        """Virtual time passes in steps; in each, sockets get the chance to deliver."""
        end = self.clock.elapsed() + within
        while not work.done() and self.clock.elapsed() < end:
            await asyncio.wait({work}, timeout=0.002)
            await self.clock.advance(min(timedelta(milliseconds=250), end - self.clock.elapsed()))
        await asyncio.wait({work}, timeout=0.01)
        return work.done()

    async def kept(self) -> Mapping[UUID, AttemptOutcomes]:
        await self._handles[0].maintain()  # a checkpoint writes what no caller waits for
        await self.close()
        return kept_in_log(self._root / "outgoing")

    async def close(self) -> None:
        for handle in reversed(self._handles):
            await handle.close()


class ClientHarness(EmbeddedHarness):
    """The same, when another process owns the stores."""

    async def _open(self, name: str) -> EmbeddedQueue:
        await super()._open(name)
        return await super()._open(name)


class ReceiverHarness(EmbeddedHarness):
    """The same, when this handle stores the mails for the owner of the stores."""

    async def _open(self, name: str) -> EmbeddedQueue:
        await super()._open(name)
        root, files = self._root / name, DiskFiles()
        layout, options = describe(files, root, self.options, create=False)
        limits = StoreLimits(options, FreeSpace(files, layout, lambda: 0.0))
        randomness = SeededRandomness(len(self._handles))
        receiver = SpoolReceiver(
            SpoolFiles(files, layout), limits, self.clock, randomness, Inline()
        )
        handle = self._handle(root, _never, receiver)
        self._handles.append(handle)
        return await handle.open()


async def _never() -> tuple[Engine, Maintenance]:
    raise AssertionError("who shares the owner's lock never becomes the owner")


@pytest.fixture(
    params=[EmbeddedHarness, ClientHarness, ReceiverHarness], ids=["owner", "client", "receiver"]
)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeepingHarness]:
    harness: EmbeddedHarness = request.param(tmp_path)
    yield harness
    await harness.close()


class TestMailQueue(MailQueueContract):
    """Over a directory."""


class TestRetry(RetryContract):
    """Over a directory."""


class TestReject(RejectContract):
    """Over a directory."""


class TestDelayed(DelayedMailQueueContract):
    """Over a directory."""


class TestManageable(ManageableMailQueueContract):
    """Over a directory."""


class TestHold(HoldContract):
    """Over a directory."""


class TestOutcomes(OutcomesContract):
    """Over a directory."""


class TestKeyedEnqueue(KeyedEnqueueContract):
    """Over a directory."""


class TestOperationEvents(OperationEventsContract):
    """Over the embedded engine."""


class TestDelayedManageable(DelayedManageableMailQueueContract):
    """Over a directory."""


@pytest.fixture
def page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be read from the page cache also where temporary ones lie in memory: tmpfs refuses
    RWF_NOWAIT."""
    preadv = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda file, buffers, offset, _flags=0: preadv(file, buffers, offset)
    )


@pytest.mark.usefixtures("page_cache")
async def test_a_small_mail_is_at_hand_until_it_ends_and_a_damaged_one_is_not(
    tmp_path: Path,
) -> None:
    harness = EmbeddedHarness(tmp_path)
    queue = await harness.open()
    try:
        items = queue.dequeue()
        await queue.enqueue(plain_mail(content=b"whole"))
        item = await anext(items)
        kept = item.at_hand()
        assert kept is not None
        assert kept[0] == b"whole"
        item.forget_content()
        assert item.at_hand() == kept
        await item.done()
        assert item.at_hand() is None

        await queue.enqueue(plain_mail(content=b"spoilt"))
        damaged = await anext(items)
        damaged.forget_content()
        files = [each for each in tmp_path.rglob("*") if each.is_file()]
        [stored] = [each for each in files if b"spoilt" in each.read_bytes()]
        stored.write_bytes(stored.read_bytes().replace(b"spoilt", b"SPOILT"))
        assert damaged.at_hand() is None
    finally:
        await harness.close()


async def test_url_opens_a_directory_as_owner_and_then_as_client(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/outgoing"
    async with open_queue(url, create=True) as owner, open_queue(url) as client:
        await owner.enqueue(plain_mail("seen"))

        assert await names(client.browse()) == ["seen"]
        assert owner.name == client.name == f"{tmp_path}/outgoing"


async def test_url_of_a_store_that_was_never_created_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        await open_queue(f"embedded://{tmp_path}/nowhere")
    with pytest.raises(QueueNotFound):
        await open_queue(f"embedded://{tmp_path}")


@pytest.mark.parametrize("url", ["embedded://host/dir", "embedded://", "embedded:///"])
async def test_url_without_a_directory_is_refused(url: str) -> None:
    with pytest.raises(InvalidQueueURL):
        await open_queue(url)


async def test_client_browses_more_than_its_owner_sends_unasked(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/outgoing"
    count = 2 * BURST + 1
    async with open_queue(url, create=True) as owner, open_queue(url) as client:
        await asyncio.gather(*(owner.enqueue(plain_mail()) for _ in range(count)))

        async with asyncio.timeout(60):
            assert len([view async for view in client.browse()]) == count


async def test_client_takes_over_when_the_owner_goes(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/outgoing"
    owner = await open_queue(url, create=True)
    client = await open_queue(url)
    await owner.enqueue(plain_mail("first"))
    leased = await anext(owner.dequeue())
    await owner.close()

    enqueued = await client.enqueue(plain_mail("second"))
    items = client.dequeue()
    found = [await anext(items), await anext(items)]

    assert {each.enqueue_id for each in found} == {leased.enqueue_id, enqueued}
    await client.close()


async def test_item_of_an_owner_that_went_is_lost_and_its_mail_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_HANDOVER", timedelta(0))
    url = f"embedded://{tmp_path}/outgoing"
    owner = await open_queue(url, create=True)
    client = await open_queue(url)
    await client.enqueue(plain_mail("again"))
    items = client.dequeue()
    lost = await anext(items)
    await owner.close()

    found = await anext(items)

    assert found.mail_id == lost.mail_id
    with pytest.raises(EntryLost):
        await lost.done()
    with pytest.raises(EntryLost):
        await lost.content()
    await found.done()
    assert (await client.size()).size == 0
    await client.close()


async def test_recovered_mail_comes_once(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/outgoing"
    async with open_queue(url, create=True) as queue:
        for number in range(4):
            await queue.enqueue(plain_mail(f"{number}"))
        leaving = queue.dequeue()
        await (await anext(leaving)).retry(timedelta(0))
        await anext(leaving)

    async with open_queue(url) as queue:
        items = queue.dequeue()
        found = [(await anext(items)).mail.name for _ in range(4)]

        assert sorted(name or "" for name in found) == ["0", "1", "2", "3"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(items), 0.2)


async def test_spool_files_may_lie_in_another_directory(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/outgoing"
    async with open_queue(f"{url}?mail={tmp_path}/disks", create=True) as queue:
        await queue.enqueue(plain_mail("first"))
    assert not (tmp_path / "outgoing" / "mail").exists()

    async with open_queue(url) as again:
        item = await anext(again.dequeue())

        assert await item.content() == plain_mail().content


async def test_store_whose_log_is_gone_never_opens_empty(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/outgoing"
    async with open_queue(url, create=True) as queue:
        await queue.enqueue(plain_mail("kept"))
        await queue.maintain()
    for segment in (tmp_path / "outgoing" / "log").iterdir():
        segment.unlink()

    with pytest.raises(StoreDamaged):
        await open_queue(url, create=True)


@pytest.mark.parametrize("is_retried", [False, True])
async def test_delayed_mail_comes_to_a_consumer_that_waited_before_it_came(
    tmp_path: Path, is_retried: bool
) -> None:
    harness = EmbeddedHarness(tmp_path)
    queue = await harness.open()
    consumer, other = Consumer(harness, queue), Consumer(harness, queue)
    delay = timedelta(seconds=5)
    if is_retried:
        await queue.enqueue(plain_mail())
        item = await consumer.next()
        assert await other.nothing()
        await item.retry(delay, error="451 later")
    else:
        assert await other.nothing()
        await queue.enqueue(plain_mail(), delay)

    assert await other.nothing(delay - timedelta(seconds=1))
    assert (await other.next(timedelta(seconds=2))).mail == plain_mail().envelope
    await consumer.close()
    await other.close()
    await harness.close()


async def test_a_client_lets_the_owner_maintain_the_store(tmp_path: Path) -> None:
    harness = EmbeddedHarness(tmp_path)
    await harness.open()
    client = await harness.open()
    await client.enqueue(plain_mail())
    checkpoint = tmp_path / "outgoing" / "checkpoint"
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None

    await client.maintain()

    assert checkpoint.stat().st_mtime_ns != before
    await harness.close()


async def test_a_client_that_sends_nonsense_disturbs_no_other(tmp_path: Path) -> None:
    harness = EmbeddedHarness(tmp_path)
    queue = await harness.open()
    for nonsense in (
        b"GET / HTTP/1.1\r\n\r\n",
        rpc.frame(1, FrameKind.CALL, b"[]"),
        rpc.frame(1, FrameKind.CALL, b"{"),
        rpc.frame(1, FrameKind.CALL, b'{"op": "enqueue"}') + rpc.frame(1, FrameKind.END),
        rpc.frame(1, FrameKind.STORED, b"?"),
        rpc.frame(1, FrameKind.STORED, bytes(200)),
        rpc.HEAD.pack(6, 1, 99) + b"x",
    ):
        path = tmp_path / "outgoing" / "socket"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(nonsense)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()

        await queue.enqueue(plain_mail())
    assert (await queue.size()).size == 7
    await harness.close()


async def test_a_mail_beyond_what_is_free_finds_no_room(tmp_path: Path) -> None:
    async with open_queue(f"embedded://{tmp_path / 'outgoing'}", create=True) as queue:
        assert not queue.has_room(2**60)
        assert queue.has_room(1000), "asking takes no room"


async def test_what_a_receiver_refuses_its_owner_counts(tmp_path: Path) -> None:
    harness = ReceiverHarness(tmp_path, OPTIONS_WITHOUT_ROOM)
    queue = await harness.open()
    label = str(tmp_path / "outgoing")
    before = failures(label)

    with pytest.raises(StoreFull):
        await queue.enqueue(plain_mail())

    await queue.size()  # the owner reads in order: the refusal came before
    assert failures(label) == before + 1
    await harness.close()


def failures(label: str) -> float:
    return (
        REGISTRY.get_sample_value(
            "postroad_enqueue_failures_total", {"namespace": "", "name": label, "reason": "full"}
        )
        or 0.0
    )


async def test_fifty_refusals_with_texts_of_their_own_cost_at_most_three_syncs(
    harness: EmbeddedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = 0

    def counted(files: object, layout: object, batches: object, to_sync: object) -> None:
        nonlocal syncs
        syncs += to_sync is not None
        write(files, layout, batches, to_sync)  # type: ignore[arg-type]

    monkeypatch.setattr(lanes, "write", counted)
    refused = {f"r{n}@x.example": Outcome.failed(f"550 no r{n}") for n in range(50)}
    queue = await harness.open()
    await queue.enqueue(plain_mail(recipients=tuple(refused)))
    consumer = Consumer(harness, queue)
    item = await consumer.next()
    syncs = 0

    await eventually(harness, item.record(refused))

    assert 1 <= syncs <= 3
    await consumer.close()


async def test_a_content_is_read_once_for_many_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = SpoolFiles.read

    def counted(files: SpoolFiles, slot: int, mail_id: bytes) -> Kept:
        nonlocal reads
        reads += 1
        return read(files, slot, mail_id)

    monkeypatch.setattr(SpoolFiles, "read", counted)
    harness = EmbeddedHarness(tmp_path)
    queue = await harness.open()
    content = bytes(SMALL + 1)
    await queue.enqueue(plain_mail(content=content))
    item = await Consumer(harness, queue).next()

    contents = await asyncio.gather(*(item.content() for _ in range(150)))

    assert set(contents) == {content}
    assert reads == 1
    await harness.close()
