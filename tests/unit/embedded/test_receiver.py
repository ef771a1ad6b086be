"""A receiver stores mails for the owner: what it announces, when, and what happens to slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TypeVar, cast

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from postroad.domain.mail.mail import Mail
from postroad.embedded.log.envelopes import decode_envelope
from postroad.embedded.log.layout import Layout, first_slot, kind_of, places_of
from postroad.embedded.log.options import FreeSpace, StoreLimits, StoreOptions
from postroad.embedded.log.spool_files import SMALL, SpoolFiles
from postroad.embedded.rpc.connection import OwnerConnection
from postroad.embedded.rpc.receiver import FEW, LATELY, QUICK_SECONDS, STALL_SECONDS, SpoolReceiver
from postroad.errors import MailTooLarge, PostroadError, StoreFailed, StoreFull, StoreUnavailable
from postroad.ports.files import DiskSpace
from support.memory.clock import ManualClock, SeededRandomness

T = TypeVar("T")
LEASED = 32
ROOT = PurePosixPath("/store")
LAYOUT = Layout(ROOT, ROOT / "mail")


def slot_numbered(kind: int, number: int) -> int:
    """Of all slots of a kind, in the order of files and places."""
    file, place = divmod(number, places_of(kind))
    return first_slot(kind, file) + place


class Owner:
    """Leases slots, and takes what is stored; or fails."""

    def __init__(self, files: LossyFiles) -> None:
        self.files, self.leased = files, 0
        self.refusal: PostroadError | None = None
        self.stored: list[bytes] = []
        self.told: list[str] = []

    async def call(self, operation: str, *, kind: int) -> list[int]:
        assert operation == "lend"
        if self.refusal is not None:
            raise self.refusal
        slots = [slot_numbered(kind, self.leased + each) for each in range(LEASED)]
        self.leased += LEASED
        self.files.make_directory(LAYOUT.spool_directory(0))
        for path in {LAYOUT.spool_file(each) for each in slots}:
            if path.name not in self.files.names(path.parent):
                self.files.open(path, create=True)
        return slots

    def tell(self, operation: str, *, reason: str) -> None:
        assert operation == "refused"
        self.told.append(reason)

    async def store(self, envelope: bytes) -> bytes:
        if self.refusal is not None:
            raise self.refusal
        self.stored.append(envelope)
        return len(self.stored).to_bytes(16, "big")


class Threads:
    """Counts what is not done in place."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate: asyncio.Event | None = None

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        return work(*arguments)

    async def close(self) -> None:
        pass


class Bench:
    """A receiver, its files and its owner."""

    def __init__(self, options: StoreOptions | None = None) -> None:
        self.files, self.clock, self.threads = LossyFiles(), ManualClock(), Threads()
        self.files.make_directory(LAYOUT.spool_directory(0))
        self.owner, self.contents = Owner(self.files), SpoolFiles(self.files, LAYOUT)
        limits = StoreLimits(options or StoreOptions(), FreeSpace(self.files, LAYOUT, lambda: 0.0))
        self.receiver = SpoolReceiver(
            self.contents, limits, self.clock, SeededRandomness(1), self.threads
        )

    async def enqueue(self, mail: Mail, owner: Owner | None = None) -> int:
        connection = cast("OwnerConnection", owner or self.owner)
        return (await self.receiver.enqueue(connection, mail)).int

    def slots(self) -> list[int]:
        """Return the numbers of the slots of stored mails, of each kind from 0."""
        found = [decode_envelope(envelope).slot for envelope in self.owner.stored]
        return [each - first_slot(kind_of(each), 0) for each in found]


async def test_an_announced_mail_lies_whole_in_its_slot() -> None:
    bench = Bench()

    assert await bench.enqueue(plain_mail()) == 1

    waiting = decode_envelope(bench.owner.stored[0])
    found = bench.contents.verify(waiting.slot)
    assert found is not None
    header, envelope = found
    assert header.mail_id == waiting.mail_id
    assert header.content_length == waiting.size_bytes == len(plain_mail().content)  # type: ignore[arg-type]
    assert envelope["to"] == list(waiting.envelope.recipients) == list(plain_mail().recipients)
    content, shape = bench.contents.read(waiting.slot, waiting.mail_id)
    assert content == plain_mail().content
    assert shape is not None


async def test_each_slot_is_used_once_and_more_are_asked_for_before_they_are_needed() -> None:
    bench = Bench()

    for _ in range(LEASED - FEW):
        await bench.enqueue(plain_mail())
        await asyncio.sleep(0)
    assert bench.owner.leased == LEASED
    for _ in range(2 * FEW):
        await bench.enqueue(plain_mail())
        await asyncio.sleep(0)

    assert bench.owner.leased == 2 * LEASED
    assert sorted(bench.slots()) == list(range(LEASED + FEW))


@pytest.mark.parametrize(
    ("error", "step"), [(StoreFull("no space"), 1), (StoreFailed("an error of the disk"), 2)]
)
async def test_a_mail_that_cannot_be_stored_is_not_announced_but_counted(
    error: PostroadError, step: int
) -> None:
    """A slot in which the disk failed is not used again."""
    bench = Bench()
    await bench.enqueue(plain_mail())
    calls = bench.files.calls
    bench.files.fail = dict.fromkeys(range(calls, calls + 100), error)

    with pytest.raises(type(error)):
        await bench.enqueue(plain_mail())

    bench.files.fail = {}
    await bench.enqueue(plain_mail())
    first, second = bench.slots()
    assert second == first + step
    assert bench.owner.told == ["full" if isinstance(error, StoreFull) else "other"]


async def test_a_slot_whose_file_is_missing_is_a_failure_of_the_disk() -> None:
    """The mail is refused for now, and the slot is not used again."""
    bench = Bench()
    await bench.enqueue(plain_mail())
    (first,) = bench.slots()
    bench.contents.close()
    (name,) = bench.files.names(LAYOUT.spool_directory(0))
    path = LAYOUT.spool_directory(0) / name
    bench.files.unlink(path)

    with pytest.raises(StoreFailed, match="missing"):
        await bench.enqueue(plain_mail())

    assert bench.owner.told == ["other"]
    bench.files.open(path, create=True)
    await bench.enqueue(plain_mail())
    assert bench.slots() == [first, first + 2]


async def test_who_cannot_borrow_hears_why_and_may_ask_again() -> None:
    bench = Bench()
    bench.owner.refusal = StoreFull("no inodes")

    with pytest.raises(StoreFull):
        await bench.enqueue(plain_mail())

    bench.owner.refusal = None
    assert await bench.enqueue(plain_mail()) == 1


async def test_slots_of_an_owner_that_went_are_not_used_with_another() -> None:
    bench = Bench()
    await bench.enqueue(plain_mail())
    bench.owner.refusal = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await bench.enqueue(plain_mail())

    other = Owner(LossyFiles())
    other.leased = 5 * LEASED
    await bench.enqueue(plain_mail(), other)

    bench.owner = other
    assert bench.slots()[0] >= 5 * LEASED


async def test_where_storing_takes_long_threads_do_it() -> None:
    bench = Bench()
    slow = timedelta(seconds=QUICK_SECONDS)
    honest = bench.files.do

    def do(step: object) -> None:
        bench.clock.jump(slow)
        honest(step)  # type: ignore[arg-type]

    bench.files.do = do  # type: ignore[method-assign]
    for _ in range(LATELY):
        await bench.enqueue(plain_mail())
    assert bench.threads.calls == 0, "once is no proof"
    for _ in range(LATELY):
        await bench.enqueue(plain_mail())
    assert bench.threads.calls == LATELY
    bench.files.do = honest  # type: ignore[method-assign]
    for _ in range(2 * LATELY):
        await bench.enqueue(plain_mail())

    assert bench.threads.calls == LATELY + 1, "the first quick one tells"


async def test_what_is_too_large_or_finds_no_room_costs_no_slot() -> None:
    bench = Bench(StoreOptions(largest_mail=10))
    with pytest.raises(MailTooLarge):
        await bench.enqueue(plain_mail())
    bench = Bench()
    bench.files.free = DiskSpace(1000, None)
    with pytest.raises(StoreFull):
        await bench.enqueue(plain_mail())

    assert bench.owner.leased == 0
    assert bench.owner.told == ["full"]


async def test_asking_whether_a_mail_finds_room_takes_none() -> None:
    bench = Bench(StoreOptions(least_free_bytes=1000))
    bench.files.free = DiskSpace(100_000, None)

    answers = [bench.receiver.has_room(size) for size in (99_000, 99_001, 99_000)]

    assert answers == [True, False, True]
    assert await bench.enqueue(plain_mail()) == 1


async def test_a_disk_that_stalls_is_waited_for_in_threads() -> None:
    bench = Bench()
    honest = bench.files.do

    def do(step: object) -> None:
        bench.clock.jump(timedelta(seconds=STALL_SECONDS))
        honest(step)  # type: ignore[arg-type]

    await bench.enqueue(plain_mail())
    bench.files.do = do  # type: ignore[method-assign]
    await bench.enqueue(plain_mail())
    assert bench.threads.calls == 0
    bench.files.do = honest  # type: ignore[method-assign]
    for _ in range(2 * LATELY):
        await bench.enqueue(plain_mail())

    assert bench.threads.calls == LATELY, "until it was quick for a while"


async def test_a_mail_whose_client_was_sent_away_gives_its_slot_back_when_its_thread_ends() -> None:
    bench = Bench()
    gate = bench.threads.gate = asyncio.Event()
    large = Mail("a@x.example", ("b@y.example",), bytes(SMALL + 1))
    sending = asyncio.create_task(bench.enqueue(large))
    while not bench.threads.calls:
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait({sending})
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await bench.enqueue(large)

    assert sending.cancelled()
    assert bench.slots() == [0]
