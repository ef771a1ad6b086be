"""A migration stops at any step, and James works before the next one: each mail ends once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from postroad import open_queue
from postroad.adapters.rabbitmq.transfers import QueueDepth
from postroad.domain.queues.entries import Partition
from postroad.errors import BlobMissing, BlobsUnavailable
from postroad.james import migration
from postroad.james.blobs import LargeBlob
from postroad.james.migration import Migration
from postroad.ports.mail_queue import MailQueue

SLICE = datetime(2026, 1, 2, 10, tzinfo=UTC)
MAILS = 3


class Stopped(BaseException):
    """The process was killed."""


class FakeJames:
    """James' servers, in the roles of tables, blobs and broker at once."""

    def __init__(self, mails: int = MAILS) -> None:
        self.ids = [uuid4() for _ in range(mails)]
        self.ready = {"JamesMailQueue-workqueue-spool": [self.body(each) for each in self.ids]}
        self.held: list[tuple[str, bytes]] = []
        self.marks: set[UUID] = set()
        self.lost_blobs: set[str] = set()
        self.slow_blobs: dict[str, asyncio.Event] = {}
        self.large_blobs: set[str] = set()
        self.read_alone = self.most_alone = 0
        self.cancelled: list[str] = []
        self.consumers = 0
        self.delivered: list[UUID] = []
        self.left: int | None = None

    def body(self, enqueue_id: UUID) -> bytes:
        found: dict[str, Any] = {
            "enqueueId": str(enqueue_id), "recipients": ["b@example.net"], "name": "x",
            "sender": None, "state": None, "errorMessage": None, "lastUpdated": None,
            "attributes": {}, "remoteAddr": None, "remoteHost": None, "perRecipientHeaders": {},
            "headerBlobId": f"header {enqueue_id}", "bodyBlobId": f"body {enqueue_id}",
        }  # fmt: skip
        return json.dumps(found).encode()

    def row(self, enqueue_id: UUID) -> dict[str, Any]:
        return {
            "queuename": "spool", "enqueueid": enqueue_id, "enqueuedtime": datetime(2026, 1, 2, 10),  # noqa: DTZ001
            "name": "x", "state": None, "headerblobid": f"header {enqueue_id}",
            "bodyblobid": f"body {enqueue_id}", "attributes": None, "errormessage": None,
            "sender": None, "recipients": ["b@example.net"], "remotehost": None,
            "remoteaddr": None, "lastupdated": None, "perrecipientspecificheaders": None,
        }  # fmt: skip

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Stopped

    def restart(self, left: int | None = None) -> None:
        """Let the broker have back what a killed process held, and stop the next one elsewhere."""
        for queue, body in reversed(self.held):
            self.ready[queue].insert(0, body)
        self.held.clear()
        self.left = left

    def deliver_one(self) -> None:
        """James' consumer: what is marked is acked, anything else delivered, acked and marked."""
        work = self.ready["JamesMailQueue-workqueue-spool"]
        if work:
            enqueue_id = UUID(json.loads(work.pop(0))["enqueueId"])
            if enqueue_id not in self.marks:
                self.delivered.append(enqueue_id)
                self.marks.add(enqueue_id)

    # As Transfers.

    async def declare(self, queue: str, *, passive: bool = False) -> Any:
        if passive and queue not in self.ready:
            return None
        waiting = self.ready.setdefault(queue, [])
        return QueueDepth(len(waiting), self.consumers)

    async def get(self, queue: str, limit: int) -> list[Any]:
        self.step()
        found = self.ready[queue][:limit]
        del self.ready[queue][:limit]
        self.held += [(queue, body) for body in found]
        return [HeldBody(queue, body) for body in found]

    async def move(self, messages: list[Any], queue: str) -> None:
        self.step()
        for each in messages:
            self.held.remove((each.queue, each.body))
            self.ready[queue].append(each.body)
        self.step()

    async def ack(self, messages: list[Any]) -> None:
        self.step()
        for each in messages:
            self.held.remove((each.queue, each.body))

    # As JamesTables.

    async def browse_start(self) -> datetime:
        return SLICE

    async def events(self) -> list[Any]:
        return []

    async def places(self) -> list[Partition]:
        return [Partition(SLICE, 0)]

    async def rows(self, _: Partition) -> AsyncIterator[list[Any]]:
        yield [self.row(each) for each in self.ids]

    async def is_marked(self, enqueue_id: UUID) -> bool:
        return enqueue_id in self.marks

    async def mark(self, enqueue_id: UUID) -> None:
        self.step()
        self.marks.add(enqueue_id)
        self.step()

    # As JamesBlobs.

    async def content(self, header: str, body: str, *, is_alone: bool = False) -> bytes:
        self.step()
        if header in self.large_blobs:
            if not is_alone:
                raise LargeBlob("large")
            self.read_alone += 1
            self.most_alone = max(self.most_alone, self.read_alone)
            await asyncio.sleep(0.001)
            self.read_alone -= 1
        if header in self.lost_blobs:
            raise BlobMissing(f"no blob {header}")
        if header in self.slow_blobs:
            try:
                await self.slow_blobs[header].wait()
            except asyncio.CancelledError:
                self.cancelled.append(header)
                raise
        return f"{header}\r\n\r\n{body}".encode()


class HeldBody:
    def __init__(self, queue: str, body: bytes) -> None:
        self.queue, self.body = queue, body


def started(james: FakeJames, queue: MailQueue | None, lanes: int = 1) -> Migration:
    fake = cast("Any", james)
    return Migration("spool", fake, fake, [fake] * lanes, queue, lambda *_: None)


async def queued(queue: MailQueue) -> list[UUID]:
    return [UUID(view.mail.attributes["james.enqueue-id"]) async for view in queue.browse()]


@pytest.fixture
async def queue() -> AsyncIterator[MailQueue]:
    async with open_queue(f"memory://q{uuid4().hex}", create=True) as opened:
        yield opened


async def test_stop_at_each_step_with_james_at_work_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migration, "TOGETHER", 1)
    monkeypatch.setattr(migration, "TAKEN", 2)
    at, stops = 0, 0
    while True:
        at += 1
        james = FakeJames()
        james.restart(left=at)
        async with open_queue(f"memory://q{uuid4().hex}", create=True) as queue:
            try:
                await started(james, queue).move(with_hidden=False)
            except Stopped:
                stops += 1
            is_done = james.left is not None and james.left > 0
            james.restart()
            james.deliver_one()
            await started(james, queue).move(with_hidden=False)

            assert sorted(await queued(queue) + james.delivered) == sorted(james.ids), at
            assert james.marks == set(james.ids)
            assert not any(james.ready.values())
        if is_done:
            break
    assert stops > 4 * MAILS


async def test_mail_without_its_blob_waits_at_james_again(queue: MailQueue) -> None:
    james = FakeJames()
    james.lost_blobs = {f"header {james.ids[1]}"}
    run = started(james, queue)

    await run.move(with_hidden=False)

    assert run.tally.moved == 2
    assert list(run.tally.failed) == [str(james.ids[1])]
    assert run.tally.hidden == {}
    [left] = james.ready["JamesMailQueue-workqueue-spool"]
    assert json.loads(left)["enqueueId"] == str(james.ids[1])
    assert james.marks == {james.ids[0], james.ids[2]}


async def test_rows_without_a_message_are_left_unless_wanted(queue: MailQueue) -> None:
    james = FakeJames()
    james.ready["JamesMailQueue-workqueue-spool"].pop()
    run = started(james, queue)
    await run.move(with_hidden=False)
    assert (run.tally.moved, run.tally.his, len(run.tally.hidden)) == (2, 0, 1)

    again = started(james, queue)
    await again.move(with_hidden=True)
    assert (again.tally.moved, again.tally.hidden) == (1, {})
    assert sorted(await queued(queue)) == sorted(james.ids)


async def test_rows_without_a_message_are_those_of_a_james_that_consumes(queue: MailQueue) -> None:
    james = FakeJames()
    james.ready["JamesMailQueue-workqueue-spool"].pop()
    james.consumers = 1
    run = started(james, queue)

    await run.move(with_hidden=False)

    assert (run.tally.moved, run.tally.his, run.tally.hidden) == (2, 1, {})


async def test_copy_touches_neither_marks_nor_messages(queue: MailQueue) -> None:
    james = FakeJames()
    james.marks = {james.ids[0]}
    for _ in range(2):
        run = started(james, queue)
        await run.copy(with_hidden=False)
        assert run.tally.moved == 2

    assert sorted(await queued(queue)) == sorted(james.ids[1:])
    assert james.marks == {james.ids[0]}
    assert len(james.ready["JamesMailQueue-workqueue-spool"]) == MAILS


async def test_a_slow_mail_holds_up_no_other_of_its_lane(queue: MailQueue) -> None:
    james = FakeJames(mails=40)
    slow = f"header {james.ids[0]}"
    james.slow_blobs[slow] = asyncio.Event()
    run = started(james, queue)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(run.move(with_hidden=False))
        while run.tally.moved < 39:
            await asyncio.sleep(0)
        assert james.ids[0] not in james.marks
        james.slow_blobs[slow].set()
    assert run.tally.moved == 40
    assert not james.held


async def test_progress_of_a_run_that_goes_on_begins_with_what_was_taken(queue: MailQueue) -> None:
    james = FakeJames(mails=20)
    taken = james.ready["postroad-migration-spool"] = james.ready["JamesMailQueue-workqueue-spool"]
    james.ready["JamesMailQueue-workqueue-spool"] = []
    run, left = started(james, queue), list[int]()
    run._progress = lambda _, remaining: left.append(remaining)

    await run.move(with_hidden=False)

    assert (left[0] > 0, left[-1], taken) == (True, 0, [])


async def test_large_mails_are_read_one_at_a_time_beside_the_others(queue: MailQueue) -> None:
    james = FakeJames(mails=40)
    james.large_blobs = {f"header {each}" for each in james.ids[:30]}
    run = started(james, queue, lanes=4)

    await run.move(with_hidden=False)

    assert (run.tally.moved, run.tally.failed, james.most_alone) == (40, {}, 1)
    assert await started(james, None).survey() == {}


async def test_the_first_error_of_a_lane_ends_the_others(
    queue: MailQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "TOGETHER", 1)
    monkeypatch.setattr(migration, "TAKEN", 1)
    james = FakeJames(mails=3)  # the first lane holds two, of which it waits for the first
    slow, _, away = (f"header {each}" for each in james.ids)
    james.slow_blobs[slow] = asyncio.Event()
    content = james.content

    async def asked(header: str, body: str, *, is_alone: bool) -> bytes:
        if header == away:
            raise BlobsUnavailable("the store is away")
        return await content(header, body, is_alone=is_alone)

    monkeypatch.setattr(james, "content", asked)
    async with asyncio.timeout(10):
        with pytest.raises(BlobsUnavailable):
            await started(james, queue, lanes=2).move(with_hidden=False)
    assert james.cancelled == [slow]
    assert james.marks == set()
