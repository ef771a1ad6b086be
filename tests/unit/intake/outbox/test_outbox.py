"""An outbox before a queue in memory: whatever the queue does, each acknowledged mail becomes one
entry of it, as it was accepted."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from postroad import open_queue
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers, MemoryWorld
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.delivery.events import AcceptedMail
from postroad.domain.mail.mail import (
    QUARANTINE,
    TENANT,
    DsnOptions,
    Mail,
    Origin,
    RecipientDsn,
)
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.selection import Selector
from postroad.errors import (
    BlobsRefused,
    BrokerUnavailable,
    EntryEnded,
    KeyReused,
    MailTooLarge,
    PostroadError,
    ViewUnavailable,
)
from postroad.intake.outbox import forwarder as forwarding
from postroad.intake.outbox import outbox as outboxes
from postroad.intake.outbox.entries import OUTBOX
from postroad.intake.outbox.forwarder import Forwarder
from postroad.intake.outbox.outbox import Outbox
from postroad.ports.events import EventLog
from postroad.ports.mail_queue import NO_DELAY, MailQueue

Fault = Callable[[], Exception | None]


class QuickClock(MachineClock):
    """A clock whose pauses are a hundred times as short."""

    async def sleep(self, duration: timedelta) -> None:
        await super().sleep(duration / 100)


class FaultyQueue:
    """A queue that fails before or after it has taken a mail, or never returns, as drawn."""

    def __init__(self, queue: DistributedQueue) -> None:
        self.queue = queue
        self.faults: list[str] = []
        """Of the next enqueues: "before", "after", "hang", or an empty string for none."""

        self.error: Exception = ViewUnavailable("away")
        self.is_away = False
        self.calls = 0
        self.refused: dict[str, Exception] = {}
        """By the names of mails."""

    async def enqueue(
        self,
        mail: Mail,
        delay: timedelta = NO_DELAY,
        *,
        key: str | None = None,
        accepted_at: datetime | None = None,
    ) -> UUID:
        self.calls += 1
        if (refusal := self.refused.get(mail.name or "")) is not None:
            raise refusal
        if self.is_away:
            raise self.error
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise self.error
        found = await self.queue.enqueue(mail, delay, key=key, accepted_at=accepted_at)
        if fault == "after":
            raise self.error
        if fault == "hang":
            await asyncio.Event().wait()
        return found


async def a_queue() -> DistributedQueue:
    name, servers = QueueName("mail", "outgoing"), MemoryServers(MemoryWorld(MachineClock()))
    parts = Parts(
        name=name,
        broker=servers.broker(name),
        view=servers.views().view(str(name)),
        blobs=servers.blobs("bucket"),
        configuration=FixedConfiguration(),
        clock=MachineClock(),
        randomness=SystemRandomness(),
    )
    return await DistributedQueue.open(parts, create_missing=True)


class Scene:
    """An outbox in a directory, and a faulty queue behind it."""

    def __init__(self, folder: Path, queue: FaultyQueue) -> None:
        self.folder, self.behind = folder, queue
        self.store: MailQueue
        self.outbox: Outbox
        self.forwarder: Forwarder

    @asynccontextmanager
    async def process(
        self,
        *,
        is_first: bool = False,
        size: int = 1 << 30,
        forwards: bool = True,
        opens: bool = True,
    ) -> AsyncIterator[Outbox]:
        """One life of the process. It ends as by a kill: nothing is forwarded in the end."""
        clock, randomness = QuickClock(), SystemRandomness()
        async with open_queue(f"embedded://{self.folder / 'store'}", create=True) as self.store:
            self.outbox = Outbox(
                "mail.outgoing", self.store, size, clock, randomness, is_first=is_first
            )
            if opens:
                self.outbox.opened(self.behind, None)
            self.forwarder = Forwarder(self.outbox, clock, randomness)
            running = asyncio.create_task(self.forwarder.run()) if forwards else None
            try:
                yield self.outbox
            finally:
                if running is not None:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)

    async def until_empty(self) -> None:
        async with asyncio.timeout(30):
            while self.outbox.mails or (await self.store.size()).size:
                await asyncio.sleep(0.01)

    async def queued(self) -> list[MailView]:
        return [each async for each in self.behind.queue.browse()]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    queue = await a_queue()
    yield Scene(tmp_path, FaultyQueue(queue))
    await queue.close()


CONTENT = b"Subject: x\r\n\r\nx\r\n"


def mail(name: str, content: Any = CONTENT, **more: Any) -> Mail:
    return Mail("a@x.example", ("b@y.example",), content, name=name, **more)


async def names(scene: Scene) -> list[str]:
    return sorted(each.mail.name or "" for each in await scene.queued())


async def test_while_the_queue_takes_mail_nothing_goes_into_the_outbox(scene: Scene) -> None:
    async with scene.process() as outbox:
        enqueue_id = await outbox.enqueue(mail("one"))
        assert (outbox.mails, (await scene.store.size()).size) == (0, 0)

    assert [each.enqueue_id for each in await scene.queued()] == [enqueue_id]


@pytest.mark.parametrize("is_first", [False, True])
async def test_mail_waits_while_the_queue_is_away_and_goes_on_by_itself(
    scene: Scene, is_first: bool
) -> None:
    scene.behind.is_away = True
    async with scene.process(is_first=is_first) as outbox:
        for number in range(5):
            await outbox.enqueue(mail(f"m{number}"))
        assert outbox.mails == 5
        assert outbox.octets == 5 * len(CONTENT)
        assert await scene.queued() == []

        scene.behind.is_away = False
        await scene.until_empty()

    assert outbox.octets == 0
    assert await names(scene) == [f"m{number}" for number in range(5)]


async def test_a_process_takes_mail_before_its_servers_have_answered(scene: Scene) -> None:
    async with scene.process(opens=False) as outbox:
        await outbox.enqueue(mail("one"))
        assert outbox.mails == 1
        outbox.opened(scene.behind, None)
        await scene.until_empty()

    assert await names(scene) == ["one"]


@pytest.mark.parametrize("fault", ["before", "after", "hang"])
@pytest.mark.parametrize("key", [None, "of the client"])
async def test_an_enqueue_whose_end_is_unknown_is_one_mail(
    scene: Scene, fault: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "MAX_WAIT", timedelta(milliseconds=100))
    scene.behind.faults = [fault]
    async with scene.process() as outbox:
        await outbox.enqueue(mail("one"), key=key)
        assert outbox.mails == 1
        await scene.until_empty()
        if key is not None:  # the client did not get its reply
            again = await outbox.enqueue(mail("one"), key=key)
            assert [each.enqueue_id for each in await scene.queued()] == [again]

    assert await names(scene) == ["one"]


async def test_a_client_that_repeats_its_key_while_the_mail_waits_has_one_mail(
    scene: Scene,
) -> None:
    scene.behind.is_away = True
    async with scene.process(is_first=True) as outbox:
        first = await outbox.enqueue(mail("one"), key="k")
        assert await outbox.enqueue(mail("one"), key="k") == first
        with pytest.raises(KeyReused):
            await outbox.enqueue(mail("one", b"other"), key="k")
        await outbox.compare()
        assert (outbox.mails, outbox.octets) == (1, len(CONTENT))
        scene.behind.is_away = False
        await scene.until_empty()

    assert await names(scene) == ["one"]


async def test_all_of_a_mail_survives_its_way_and_its_age_counts_from_acceptance(
    scene: Scene, tmp_path: Path
) -> None:
    whole = mail(
        "one",
        attributes={TENANT: "example", "of": "the client"},
        origin=Origin("client.example", "192.0.2.1", "ESMTPSA"),
        dsn=DsnOptions("HDRS", "envid", {"b@y.example": RecipientDsn(("FAILURE",), "rfc822;b@y")}),
        priority=7,
    )
    large = tmp_path / "large"
    large.write_bytes(random.randbytes(3 << 20))
    scene.behind.is_away = True
    async with scene.process() as outbox:
        before = MachineClock().now()
        await outbox.enqueue(whole, timedelta(hours=3))
        await outbox.enqueue(mail("held", attributes={QUARANTINE: "a virus"}))
        await outbox.enqueue(mail("large", large))
        after = MachineClock().now()
        scene.behind.is_away = False
        await scene.until_empty()

    found = {each.mail.name: each for each in await scene.queued()}
    one = found["one"]
    assert all(before <= each.accepted_at <= after for each in found.values())
    assert one.due_at is not None
    assert abs(one.due_at - before - timedelta(hours=3)) < timedelta(seconds=5)
    assert whole.attributes.items() <= one.mail.attributes.items()
    assert one.mail.attributes.keys() - whole.attributes.keys() == {"postroad.digest"}
    assert (one.mail.origin, one.mail.dsn, one.mail.priority) == (whole.origin, whole.dsn, 7)
    assert (found["held"].held, found["held"].mail.is_quarantined) == (True, True)
    assert found["large"].size_bytes == 3 << 20
    items = scene.behind.queue.dequeue()
    item = await anext(items)
    assert await item.content() == large.read_bytes()


async def test_beyond_its_size_mail_is_answered_as_without_an_outbox(scene: Scene) -> None:
    scene.behind.is_away = True
    scene.behind.error = BrokerUnavailable("away")
    async with scene.process(size=50) as outbox:
        for _ in range(50 // len(CONTENT)):
            await outbox.enqueue(mail("kept"))
        with pytest.raises(BrokerUnavailable):
            await outbox.enqueue(mail("more"))
        scene.behind.is_away = False
        await scene.until_empty()
        await outbox.enqueue(mail("later"))

    assert Counter(await names(scene)) == {"kept": 2, "later": 1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system is not mounted without rights")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_refuses_mail_loses_none_and_takes_it_again(
    scene: Scene, small_disk: Path
) -> None:
    scene.folder = small_disk
    scene.behind.is_away = True
    kept, content = list[str](), b"Subject: x\r\n\r\n" + b"y" * 500_000 + b"\r\n"

    async def fill() -> None:
        for number in range(100):
            await outbox.enqueue(mail(f"m{number}", content))
            kept.append(f"m{number}")

    def fill_the_rest() -> None:
        with (small_disk / "of others").open("wb", buffering=0) as file, suppress(OSError):
            for _ in range(100):
                file.write(bytes(1 << 20))
        assert not os.statvfs(small_disk).f_bavail

    async with scene.process() as outbox:
        with pytest.raises(ViewUnavailable):  # as without an outbox
            await fill()
        assert kept
        fill_the_rest()
    async with scene.process() as outbox:  # begun again on the full disk
        with pytest.raises(ViewUnavailable):
            await outbox.enqueue(mail("refused", content))
        (small_disk / "of others").unlink()
        scene.behind.is_away = False
        await scene.until_empty()
        await outbox.enqueue(mail("later", content))

    assert await names(scene) == sorted([*kept, "later"])


async def test_a_full_outbox_that_is_first_lets_mail_go_to_the_queue(scene: Scene) -> None:
    async with scene.process(is_first=True, size=1) as outbox:
        enqueue_id = await outbox.enqueue(mail("one"))

    assert [each.enqueue_id for each in await scene.queued()] == [enqueue_id]


async def test_what_the_queue_refuses_for_good_is_refused_at_once_or_a_dead_letter(
    scene: Scene,
) -> None:
    scene.behind.refused = {"large": MailTooLarge("too large")}
    async with scene.process() as outbox:
        with pytest.raises(MailTooLarge):
            await outbox.enqueue(mail("large"))
        assert outbox.mails == 0
    async with scene.process(is_first=True) as outbox:
        await outbox.enqueue(mail("large"))
        await outbox.enqueue(mail("other"))
        await scene.until_empty()
        (dead,) = [each async for each in scene.store.dead_letters()]
        assert (dead.mail.name, dead.reason) == ("large", "the queue refuses it: MailTooLarge")

        scene.behind.refused = {}  # an administrator has repaired it
        assert await scene.store.requeue(Selector.all()) == 1
        async with asyncio.timeout(30):
            while len(await scene.queued()) < 2:
                await asyncio.sleep(0.01)
    assert await names(scene) == ["large", "other"]


async def test_a_mail_that_fails_alone_keeps_no_place_and_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MAX_AT_ONCE", 2)
    monkeypatch.setattr(forwarding, "SET_ASIDE", timedelta(seconds=1))
    monkeypatch.setattr(forwarding, "MAX_PAUSE", timedelta(seconds=1))
    scene.behind.refused = {"bad": BlobsRefused("no")}
    async with scene.process(is_first=True) as outbox:
        await outbox.enqueue(mail("bad"))
        async with asyncio.timeout(30):
            number = 0
            while (await anext(scene.store.browse())).attempt == 0:
                await outbox.enqueue(mail(f"good{number}"))
                number += 1
                await asyncio.sleep(0.02)
        scene.behind.refused = {}
        await scene.until_empty()

    assert await names(scene) == sorted(["bad", *(f"good{each}" for each in range(number))])


async def test_mails_that_fail_alone_in_all_places_let_others_pass(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MAX_AT_ONCE", 2)
    monkeypatch.setattr(forwarding, "MAX_PAUSE", timedelta(seconds=1))
    bad, good = ["bad0", "bad1"], ["good0", "good1", "good2"]
    scene.behind.refused = dict.fromkeys(bad, ViewUnavailable("away for these"))
    async with scene.process(is_first=True) as outbox:
        for name in (*bad, *good):
            await outbox.enqueue(mail(name))
        async with asyncio.timeout(30):
            while await names(scene) != good:
                await asyncio.sleep(0.01)
        scene.behind.refused = {}
        await scene.until_empty()

    assert await names(scene) == [*bad, *good]


async def test_what_an_administrator_removes_is_counted_no_more(scene: Scene) -> None:
    async with scene.process(is_first=True, forwards=False) as outbox:
        for number in range(4):
            await outbox.enqueue(mail(f"m{number}"))
        (first, *_) = [each async for each in scene.store.browse()]
        await scene.store.remove(Selector(enqueue_id=first.enqueue_id))
        await outbox.compare()
        assert (outbox.mails, outbox.octets) == (3, 3 * len(CONTENT))


async def test_mail_of_an_earlier_process_is_counted_and_goes_on(scene: Scene) -> None:
    async with scene.process(is_first=True, forwards=False) as outbox:
        for number in range(3):
            await outbox.enqueue(mail(f"m{number}"))
    scene.behind.is_away = True
    async with scene.process() as outbox:
        async with asyncio.timeout(30):
            while not outbox._oldest_seconds():
                await asyncio.sleep(0.01)
        assert (outbox.mails, outbox.octets) == (3, 3 * len(CONTENT))
        scene.behind.is_away = False
        await scene.until_empty()
        assert outbox._oldest_seconds() == 0
    assert await names(scene) == ["m0", "m1", "m2"]


async def test_a_process_that_stops_between_enqueue_and_ack_repeats_no_mail(scene: Scene) -> None:
    """The worst line: the queue has the mail, and the outbox does not know it."""
    for fault in ("after", "hang"):
        async with scene.process(is_first=True, forwards=False) as outbox:
            await outbox.enqueue(mail(fault))
        scene.behind.faults, scene.behind.calls = [fault], 0
        async with scene.process():
            async with asyncio.timeout(30):
                while not scene.behind.calls or scene.behind.faults:
                    await asyncio.sleep(0.001)
                while fault not in await names(scene):
                    await asyncio.sleep(0.001)
            scene.behind.is_away = True
        scene.behind.is_away = False
        async with scene.process():
            await scene.until_empty()

    assert await names(scene) == ["after", "hang"]


@pytest.mark.parametrize("seed", range(5))
async def test_under_drawn_faults_each_acknowledged_mail_is_one_entry(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "MAX_WAIT", timedelta(milliseconds=20))
    draw = random.Random(seed)
    acknowledged: list[str] = []

    async def offer(outbox: Outbox, name: str) -> None:
        key = f"key {name}" if draw.random() < 0.3 else None
        for _ in range(2 if key is not None and draw.random() < 0.5 else 1):
            try:
                await outbox.enqueue(mail(name), key=key)
            except (PostroadError, EntryEnded):
                continue
            acknowledged.append(name)

    for life in range(6):
        async with scene.process(is_first=draw.random() < 0.3) as outbox:
            scene.behind.is_away = draw.random() < 0.3
            scene.behind.faults = draw.choices(["", "before", "after", "hang"], k=20)
            offers = [asyncio.create_task(offer(outbox, f"{life}.{each}")) for each in range(10)]
            await asyncio.sleep(draw.random() / 20)
            if draw.random() < 0.5:
                await asyncio.gather(*offers)
            for each in offers:
                each.cancel()
            await asyncio.gather(*offers, return_exceptions=True)
    scene.behind.is_away, scene.behind.faults = False, []
    async with scene.process():
        await scene.until_empty()

    found = Counter(await names(scene))
    assert set(acknowledged) <= found.keys()
    assert set(found.values()) == {1}


class NotedEvents:
    is_on = True

    def __init__(self) -> None:
        self.accepted: list[AcceptedMail] = []

    def note_accepted(self, accepted: AcceptedMail) -> None:
        self.accepted.append(accepted)

    async def flush(self) -> None:
        """As if all were durable."""


async def test_a_mail_is_accepted_once_under_the_id_that_the_queue_knows(scene: Scene) -> None:
    events = NotedEvents()
    content = b"Message-ID: <1@x.example>\r\n\r\nx\r\n"
    async with scene.process() as outbox:
        outbox.opened(scene.behind, cast("EventLog", events))
        direct = await outbox.enqueue(mail("direct", content))
        scene.behind.is_away = True
        await outbox.enqueue(mail("kept", content))
        assert [each.enqueue_id for each in events.accepted] == [direct]
        scene.behind.is_away = False
        await scene.until_empty()

    queued = {each.mail.name: each for each in await scene.queued()}
    noted = {each.envelope.name: each for each in events.accepted}
    assert len(events.accepted) == 2
    for name in ("direct", "kept"):
        assert noted[name].enqueue_id == queued[name].enqueue_id
        assert noted[name].message_id == "<1@x.example>"
    assert noted["kept"].accepted_at == queued["kept"].accepted_at


async def test_mail_that_another_program_put_there_goes_on_or_is_set_aside(scene: Scene) -> None:
    async with scene.process(forwards=False):
        await scene.store.enqueue(mail("plain"))
        await scene.store.enqueue(mail("odd", attributes={OUTBOX: '{"key": 1}'}))
    async with scene.process():
        await scene.until_empty()
        (dead,) = [each async for each in scene.store.dead_letters()]
        assert dead.mail.name == "odd"

    assert await names(scene) == ["plain"]
