"""A store on a lossy disk, what the world outside saw of it, and what it may hold after a cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TypeVar, cast
from uuid import UUID

from crash.lossy import Disk, Event, LossyFiles
from postroad.domain.mail.mail import Mail, Outcome
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.layout import file_of, offset_of
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.log.slots import slots_on_disk
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.embedded.offline_tools.spool_scan import EVERYWHERE
from postroad.embedded.opening import describe, open_store
from postroad.embedded.rpc.connection import OwnerConnection
from postroad.embedded.rpc.receiver import SpoolReceiver
from postroad.embedded.rpc.serving import MAX_LEASED_SLOTS
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import BlobMissing
from postroad.ports.mail_queue import Operation
from support.memory.clock import ManualClock, SeededRandomness

T = TypeVar("T")
ROOT = PurePosixPath("/store")
OPTIONS = StoreOptions(
    segment_bytes=4096 + 8 + 1800,
    segment_envelopes=8,
    steps=(timedelta(minutes=1), timedelta(hours=1)),
    sync_wait=timedelta(0),
    free_wait=timedelta(0),
    checkpoint_every=timedelta(days=3650),
    pool_files=8,
)
"""Segments of a handful of records, and checkpoints only when a test takes them."""


class Inline:
    """Blocking calls made at once, in the order in which they were asked for."""

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(0)
        return work(*arguments)

    async def close(self) -> None:
        pass


def content_of(name: str) -> bytes:
    """Return a content that no other mail has, in length either."""
    return f"Subject: {name}\r\n\r\n".encode() + name.encode() * (20 + sum(name.encode()) % 40)


async def start(
    files: LossyFiles,
    clock: ManualClock | None = None,
    seed: int = 0,
    options: StoreOptions = OPTIONS,
) -> OwnedQueue:
    """Open the store on a disk."""
    layout, options = describe(files, ROOT, options, create=True)
    engine = Engine(
        files, layout, options, clock or ManualClock(), SeededRandomness(seed), Inline(), Inline()
    )
    maintenance = await open_store(engine)
    return OwnedQueue("crash", engine, maintenance)


@asynccontextmanager
async def opened(
    disk: Disk, clock: ManualClock | None = None, seed: int = 0, options: StoreOptions = OPTIONS
) -> AsyncIterator[tuple[LossyFiles, OwnedQueue]]:
    """Recover the store on a disk, and close it. Raises: what recovery raises."""
    files = LossyFiles(disk)
    queue = await start(files, clock, seed, options)
    try:
        await queue.maintenance.recovering
        queue.engine.check()
        yield files, queue
    finally:
        await queue.close()
    assert files.open_files == 0, "a closed store has closed its files"


class ReceiversOwner:
    """The owner as a receiver sees it: slots that it leases, mails that are queued."""

    lost = None

    def __init__(self, queue: OwnedQueue) -> None:
        self._queue = queue
        self._slots: set[int] = set()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.waiting = 0
        """Mails that are stored and not announced, while it is not open."""

    async def call(self, operation: str, *, kind: int) -> list[int]:
        assert operation == "lend"
        slots = await self._queue.lease_slots(MAX_LEASED_SLOTS, kind)
        self._slots.update(slots)
        return slots

    def tell(self, operation: str, **arguments: object) -> None:
        assert operation == "refused"

    async def store(self, envelope: bytes) -> bytes:
        self.waiting += 1
        await self.is_open.wait()
        self.waiting -= 1
        enqueue_id, queued = self._queue.accept_stored(envelope, self._slots)
        await queued
        return enqueue_id.bytes


def a_receiver(files: LossyFiles, queue: OwnedQueue) -> SpoolReceiver:
    """Return what a receiver of this store has."""
    engine = queue.engine
    contents = SpoolFiles(files, engine.layout)
    return SpoolReceiver(contents, engine.limits, engine.clock, SeededRandomness(7), Inline())


class Outside:
    """The world outside: it uses the queue, and notes in the journal what it saw."""

    def __init__(self, files: LossyFiles, queue: OwnedQueue) -> None:
        self.files, self.queue = files, queue
        self.receiver, self.owner = a_receiver(files, queue), ReceiversOwner(queue)
        self.items: dict[str, SpoolItem] = {}
        self.consumer = queue.consumer(1000)

    async def enqueue(self, name: str, count: int = 1, delay: timedelta = timedelta(0)) -> None:
        recipients = tuple(f"{name}{number}@example.net" for number in range(count))
        self.files.note("offered", name, recipients)
        mail = Mail("a@example.org", recipients, content_of(name), name=name)
        await self.queue.enqueue(mail, delay)
        self.files.note("accepted", name)

    async def stream(self, name: str) -> None:
        """Enqueue a mail that has a file of its own, since its length is not known before."""

        async def chunks() -> AsyncIterator[bytes]:
            yield content_of(name)

        recipients = (f"{name}0@example.net",)
        self.files.note("offered", name, recipients)
        await self.queue.enqueue(Mail("a@example.org", recipients, chunks(), name=name))
        self.files.note("accepted", name)

    async def enqueue_portion(self, *names: str) -> None:
        """Several at once."""
        mails = []
        for name in names:
            recipients = (f"{name}0@example.net",)
            self.files.note("offered", name, recipients)
            mails.append(Mail("a@example.org", recipients, content_of(name), name=name))
        for name, found in zip(names, await self.queue.enqueue_portion(mails), strict=True):
            assert isinstance(found, UUID)
            self.files.note("accepted", name)

    async def receive(self, name: str) -> None:
        """The same, by way of a process that stores the mail itself."""
        recipients = (f"{name}0@example.net",)
        self.files.note("offered", name, recipients)
        mail = Mail("a@example.org", recipients, content_of(name), name=name)
        await self.receiver.enqueue(cast("OwnerConnection", self.owner), mail)
        self.files.note("accepted", name)

    async def lease(self) -> SpoolItem:
        item = await asyncio.wait_for(self.consumer.next(), 60)
        name = item.mail.name or ""
        self.items[name] = item
        return item

    async def transmit(self, name: str, recipients: tuple[str, ...] | None = None) -> None:
        """Hand the mail to its next hop, and record that it took it."""
        item = self.items[name]
        chosen = item.mail.recipients if recipients is None else recipients
        self.files.note("transmitted", name, chosen)
        await item.record(dict.fromkeys(chosen, Outcome.delivered("250 ok")))
        self.files.note("recorded", name, chosen)

    async def fail(self, name: str, recipient: str) -> None:
        self.files.note("failing", name, (recipient,))
        await self.items[name].record({recipient: Outcome.failed("550 no")})
        self.files.note("failed", name, (recipient,))

    async def done(self, name: str) -> None:
        """End a mail; recipients without a record were transmitted to just now."""
        item = self.items.pop(name)
        self.files.note("transmitted", name, item.mail.recipients)
        await item.done()
        self.files.note("recorded", name, item.mail.recipients)

    async def end(self, name: str) -> None:
        """Lease whatever is due until it is this mail, and end it."""
        while name not in self.items:
            await self.lease()
        await self.done(name)

    async def forget(self) -> None:
        """Let the log forget mails that ended: new segments begin, and a checkpoint removes old
        ones."""
        for number in range(12):
            await self.enqueue(f"passing{number}")
            await self.end(f"passing{number}")
        await self.queue.maintenance.checkpoint()

    async def retry(self, name: str, delay: timedelta) -> None:
        await self.items.pop(name).retry(delay, error="451 later")

    async def reject(self, name: str) -> None:
        await self.items.pop(name).reject("given up")
        self.files.note("rejected", name)

    async def change(self, operation: str, name: str) -> None:
        """Change one mail; the journal has whether there was one to change."""
        self.files.note(f"{operation} begins", name)
        count = await self.queue.change(Operation(operation), Selector(name=name))
        self.files.note(operation if count else f"{operation} in vain", name)


@dataclass
class Expected:
    """What was promised about one mail up to a cut, and what is in doubt."""

    recipients: tuple[str, ...]
    is_accepted: bool = False
    must_not_come: set[str] = field(default_factory=set)
    may_be_gone: set[str] = field(default_factory=set)
    has_failed: set[str] = field(default_factory=set)
    is_removed: bool = False
    may_be_removed: bool = False
    is_held: bool | None = False
    was_held: bool | None = False
    is_dead: bool | None = False

    def learn(self, event: Event) -> None:
        """Take in what the world saw of this mail."""
        for name, value in FACTS.get(event.kind, {}).items():
            setattr(self, name, value)
        match event.kind:
            case "transmitted":
                self.may_be_gone.update(event.recipients)
            case "recorded":
                self.must_not_come.update(event.recipients)
            case "failed":
                self.has_failed.update(event.recipients)
            case "requeue begins":
                self.has_failed.clear()
            case "remove in vain":
                self.may_be_removed = self.is_removed
            case "hold begins" | "release begins":
                self.was_held, self.is_held = self.is_held, None
            case "hold in vain" | "release in vain":
                self.is_held = self.was_held
            case _:
                pass


FACTS: dict[str, dict[str, bool | None]] = {
    "accepted": {"is_accepted": True},
    "remove begins": {"may_be_removed": True},
    "remove": {"is_removed": True},
    "hold": {"is_held": True},
    "release": {"is_held": False},
    "rejected": {"is_dead": True},
    "requeue begins": {"is_dead": None},
    "requeue": {"is_dead": False},
}
"""What some events say at once."""


def promises(events: Iterable[Event]) -> dict[str, Expected]:
    """Return what the events promise about each mail."""
    found: dict[str, Expected] = {}
    for event in events:
        if event.kind == "offered":
            found[event.mail] = Expected(event.recipients)
        elif event.mail in found:
            found[event.mail].learn(event)
    return found


class Broken(AssertionError):
    """A promise was broken."""


async def check(queue: OwnedQueue, events: Iterable[Event], *, strict: bool = True) -> set[object]:
    """Compare a recovered queue with what was promised; return its state. Raises: Broken.

    P1 nothing accepted is lost; P2 no recorded recipient is attempted again; P3 no mail is there
    twice; P4 each mail is whole, and was offered.
    """
    expected = promises(events)
    live = [view async for view in queue.browse()]
    dead = [view async for view in queue.dead_letters()]
    failures = await _failures(queue)
    names = [view.mail.name or "" for view in (*live, *dead)]
    if len(set(names)) < len(names):
        raise Broken(f"P3: a mail is there twice: {sorted(names)}")
    for view in (*live, *dead):
        name = view.mail.name or ""
        if name not in expected:
            raise Broken(f"P4: {name} was never offered")
        mail, found = expected[name], set(view.mail.recipients)
        if mail.is_removed:
            raise Broken(f"P2: {name} was removed, and is back")
        finished = mail.must_not_come | (mail.has_failed if view.reason is None else set())
        if found & finished:
            raise Broken(f"P2: {name} comes again for {found & finished}")
        if not found <= set(mail.recipients):
            raise Broken(f"P4: {name} has recipients that were not offered")
        if not mail.is_accepted and strict and found != set(mail.recipients):
            raise Broken(f"P4: {name} was never accepted and lacks recipients")
        if mail.is_held is not None and view.reason is None and view.held != mail.is_held:
            raise Broken(f"{name}: held is {view.held}")
    for name, mail in expected.items():
        here = {to for v in (*live, *dead) if v.mail.name == name for to in v.mail.recipients}
        here |= failures.get(name, set())
        left = set(mail.recipients) - mail.must_not_come - mail.may_be_gone
        if mail.is_accepted and not mail.may_be_removed and not left <= here:
            raise Broken(f"P1: {name} is lost for {left - here}")
        if mail.is_dead and not mail.may_be_removed and name not in {v.mail.name for v in dead}:
            raise Broken(f"P1: the dead letter {name} is lost")
    await _check_contents(queue, set(expected))
    return {
        (v.mail.name, v.mail.recipients, v.enqueue_id, v.held, v.attempt, v.reason)
        for v in (*live, *dead)
    }


async def _failures(queue: OwnedQueue) -> dict[str, set[str]]:
    """Return the failed recipients of each mail: they wait for their report, and are not lost."""
    engine, found = queue.engine, dict[str, set[str]]()
    for entry in engine.index.walk():
        waiting = await engine.reader.read(entry)
        found[waiting.envelope.name or ""] = {to for to, _ in waiting.failures.values()}
    return found


async def _check_contents(queue: OwnedQueue, names: set[str]) -> None:
    """P4: every live entry has its content, and every file that calls itself whole is whole."""
    engine = queue.engine
    known = {content_of(name) for name in names}
    slots = [entry.slot for segment in engine.segments() for entry in segment.live.values()]
    if len(set(slots)) < len(slots):
        raise Broken("P4: two mails share a spool file")
    for dead in (False, True):
        for entry in engine.index.walk(dead=dead):
            waiting = await engine.reader.read(entry)
            if _read(queue, waiting.slot, waiting.mail_id) != content_of(
                waiting.envelope.name or ""
            ):
                raise Broken(f"P4: {waiting.envelope.name} lost its content")
    files = engine.files
    for slot in slots_on_disk(files, engine.layout, EVERYWHERE):
        if slot == file_of(slot):
            end = engine.spool_files.size(slot)
        found = engine.spool_files.verify(slot) if offset_of(slot) < end else None
        if found is not None and _read(queue, slot, found[0].mail_id) not in known:
            raise Broken(f"P4: slot {slot} calls junk a mail")


def _read(queue: OwnedQueue, slot: int, mail_id: bytes) -> bytes | None:
    try:
        return queue.engine.spool_files.read(slot, mail_id)[0]
    except BlobMissing:
        return None
