"""What archived segments of a store make of its mails: the lines of a queue in a directory, as its
consumers saw it, in whatever order the segments come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import permutations
from pathlib import PurePath
from random import Random
from typing import Any, NamedTuple

import pytest

from crash.lossy import LossyFiles
from crash.world import OPTIONS, ROOT, start
from postroad import AttemptOutcomes, Mail, Outcome, Selector
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.entries import slice_of
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.segments import HEADER_BLOCK, read_header
from postroad.embedded.store.archive import end_of, frames_in, read_archive
from postroad.embedded.store.owner import OwnedQueue
from postroad.pipeline.archive.embedded_parts import HistoryPart, PartKind, parts_of
from support.memory.clock import ManualClock
from support.plain_fold import Line, lines_of

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LAYOUT = Layout(ROOT, ROOT / "mail")
DELIVERED = Outcome(OutcomeKind.DELIVERED, "250 ok", "mx.example.net")
DEFERRED = Outcome(OutcomeKind.DEFERRED, "450 later", "mx.example.net")
FAILED = Outcome(OutcomeKind.FAILED, "550 no", "mx.example.net")


def plain(address: str) -> str:
    return address


class Store:
    """An archived store, whose log goes to the archive where a test moves the clock."""

    def __init__(self) -> None:
        self.files, self.clock = LossyFiles(), ManualClock()
        self.queue: OwnedQueue

    async def open(self) -> None:
        self.files.make_directory(LAYOUT.archive)
        self.queue = await start(self.files, self.clock)
        await self.queue.maintenance.recovering
        self.consumer = self.queue.consumer(100)

    async def enqueue(self, name: str, *domains: str) -> None:
        to = tuple(f"{name}@{each}" for each in domains or ("b.example",))
        await self.queue.enqueue(Mail("a@Example.org", to, b"x" * 100, name=name))

    async def attempt(self, outcome: Outcome) -> Any:
        """Lease a mail; return it with what an attempt with this outcome is."""
        item = await self.consumer.next()
        return item, AttemptOutcomes.of(dict.fromkeys(item.mail.recipients, outcome), 0.5)

    async def move_all(self) -> dict[str, bytes]:
        """Let all that ended leave the log; return what the archive has."""
        await self.clock.advance(2 * HOUR)
        for _ in range(2):
            await self.queue.maintenance.checkpoint()
        found = read_archive(self.files, LAYOUT)
        assert found is not None
        paths = {str(each): LAYOUT.archive / str(each) for each in found.segments}
        return {name: self._read(path) for name, path in paths.items()}

    def _read(self, path: PurePath) -> bytes:
        file = self.files.open(path)
        return file.pread(0, file.size())


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    found = Store()
    await found.open()
    yield found
    await found.queue.close()


def histories(segments: dict[str, bytes]) -> dict[str, list[HistoryPart]]:
    """The parts of each mail."""
    found = defaultdict(list)
    for data in segments.values():
        for part in parts_in(data):
            found[part.mail_id].append(part)
    return found


def parts_in(data: bytes) -> list[HistoryPart]:
    header = read_header(data[:HEADER_BLOCK])
    assert header is not None
    frames, is_whole = frames_in(data, header, 0, end_of(data, header))
    assert is_whole
    return list(parts_of(header, frames, plain))


def lines_by_name(segments: dict[str, bytes]) -> dict[str, list[Line]]:
    """Lines by the name of the mail, in the order of its entries; those of whole histories."""
    found = {}
    for parts in histories(segments).values():
        lines, is_whole = lines_of(parts)
        if is_whole:
            found[lines[0]["recipients"][0].partition("@")[0]] = lines
    return found


async def test_a_mail_that_is_delivered_after_a_retry(store: Store) -> None:
    await store.enqueue("one", "b.example", "c.example")
    accepted = store.clock.now()
    await store.clock.advance(MINUTE)
    item, outcomes = await store.attempt(DEFERRED)
    await item.record({"one@b.example": DELIVERED})
    await item.retry(MINUTE, outcomes=outcomes)
    retried = store.clock.now()
    await store.clock.advance(2 * MINUTE)
    item, outcomes = await store.attempt(DELIVERED)
    await item.done(outcomes)

    first, second = lines_by_name(await store.move_all())["one"]

    assert first["slice_start"] == slice_of(accepted, HOUR)
    assert (first["sender"], first["sender_domain"]) == ("a@Example.org", "example.org")
    assert (first["domains"], first["domain_counts"]) == (["b.example", "c.example"], [1, 1])
    assert (first["recipient_count"], first["size_bytes"], first["attempt"]) == (2, 100, 0)
    assert (first["accepted_at"], first["enqueued_at"]) == (accepted, accepted)
    assert (first["state"], first["is_final"], first["ending"]) == ("replaced", True, "replaced")
    assert first["ended_at"] == retried
    assert first["successor"] == second["enqueue_id"]
    named = [(each["domain"], each["kind"], each["code"]) for each in first["outcomes"]]
    assert named == [("b.example", "deferred", 450), ("c.example", "deferred", 450)]
    assert second["recipients"] == ["one@c.example"]
    assert (second["accepted_at"], second["enqueued_at"]) == (accepted, retried)
    assert (second["attempt"], second["seconds"]) == (1, 0.5)
    assert (second["state"], second["ending"]) == ("delivered", None)
    assert second["delivered_at"] == retried + 2 * MINUTE


async def test_a_mail_that_is_given_up_and_its_dead_letter_requeued(store: Store) -> None:
    await store.enqueue("one")
    item, outcomes = await store.attempt(FAILED)
    await item.reject("550 no", outcomes)
    rejected = store.clock.now()
    await store.clock.advance(HOUR)
    await store.queue.requeue(Selector(name="one"))
    item, outcomes = await store.attempt(DELIVERED)
    await item.done(outcomes)

    first, second = lines_by_name(await store.move_all())["one"]

    assert (first["state"], first["ending"], first["ended_at"]) == (
        *("rejected", "rejected"),
        rejected,
    )
    assert first["outcomes"][0]["kind"] == "failed"
    assert first["successor"] is None
    assert second["state"] == "delivered"
    assert second["enqueued_at"] == rejected + HOUR


async def test_a_mail_that_is_removed(store: Store) -> None:
    await store.enqueue("one")
    await store.queue.hold(Selector(name="one"))
    await store.queue.remove(Selector(name="one"))

    first, second = lines_by_name(await store.move_all())["one"]

    assert (first["state"], second["state"], second["held"]) == ("replaced", "removed", True)
    assert second["ended_at"] >= second["enqueued_at"]
    assert second["outcomes"] is None


async def test_an_entry_that_is_written_again_is_one_line(store: Store) -> None:
    """Its consumer went away, so that recovery, or compaction, writes it again."""
    await store.enqueue("one")
    item, _ = await store.attempt(DELIVERED)
    await item.give_back()
    item, outcomes = await store.attempt(DELIVERED)
    await item.done(outcomes)

    (line,) = lines_by_name(await store.move_all())["one"]

    assert line["state"] == "delivered"


async def test_what_lacks_a_part_is_not_whole_and_each_order_makes_the_same(store: Store) -> None:
    await store.enqueue("one")
    item, outcomes = await store.attempt(DEFERRED)
    await item.retry(MINUTE, outcomes=outcomes)
    await store.clock.advance(2 * MINUTE)
    item, outcomes = await store.attempt(DELIVERED)
    await item.done(outcomes)
    found = histories(await store.move_all())
    (parts,) = (each for each in found.values() if len(each) == 5)
    whole = lines_of(parts)
    assert whole.is_whole

    for shuffled in permutations(parts):
        assert lines_of(shuffled) == whole
    assert lines_of([*parts, *parts]) == whole
    for missing in parts:
        left = lines_of([each for each in parts if each is not missing])
        assert left.is_whole == (missing.kind == PartKind.OUTCOMES)
        assert len(left.lines) == 2 - (missing.kind == PartKind.ENVELOPE)
    no_end = lines_of([each for each in parts if each.kind != PartKind.FINISH])
    assert [each["state"] for each in no_end.lines] == ["replaced", "waiting"]
    assert [each["is_final"] for each in no_end.lines] == [True, False]


class Story(NamedTuple):
    """What consumers saw of a mail: the states of its entries, in order."""

    states: list[str]


@pytest.mark.parametrize("seed", range(4))
async def test_random_stories_are_what_consumers_saw(store: Store, seed: int) -> None:
    draw, stories = Random(seed), dict[str, Story]()
    for number in range(40):
        name = f"m{number}"
        await store.enqueue(name, *draw.choice((("b.example",), ("b.example", "c.example"))))
        stories[name] = Story([])
        for _ in range(draw.randrange(5)):
            what = draw.choice(("retry", "hold", "back"))
            if what == "hold":
                await store.queue.hold(Selector(name=name))
                await store.queue.release(Selector(name=name))
                stories[name].states.extend(("replaced", "replaced"))
                continue
            item, outcomes = await store.attempt(DEFERRED)
            assert item.mail.name == name
            if what == "back":
                await item.give_back()
                continue
            await item.retry(timedelta(0), outcomes=outcomes)
            stories[name].states.append("replaced")
        end = draw.choice(("done", "remove", "reject"))
        if end == "remove":
            await store.queue.remove(Selector(name=name))
        else:
            item, outcomes = await store.attempt(DELIVERED if end == "done" else FAILED)
            await (item.done(outcomes) if end == "done" else item.reject("550", outcomes))
            if end == "reject":
                await store.queue.discard(Selector(name=name))
        stories[name].states.append(
            {"done": "delivered", "remove": "removed", "reject": "rejected"}[end]
        )
        await store.clock.advance(timedelta(seconds=draw.randrange(600)))
        if draw.random() < 0.3:
            await store.queue.maintenance.checkpoint()

    found = lines_by_name(await store.move_all())

    assert {name: [each["state"] for each in found[name]] for name in stories} == {
        name: story.states for name, story in stories.items()
    }


async def test_what_another_program_wrote_is_counted(store: Store) -> None:
    await store.enqueue("one")
    item, _ = await store.attempt(DELIVERED)
    await item.done()
    segments = await store.move_all()
    kinds = [each.kind for data in segments.values() for each in parts_in(data)]
    assert PartKind.UNREADABLE not in kinds


def test_the_segments_of_this_test_hold_few_records() -> None:
    assert OPTIONS.segment_envelopes == 8
