"""The lake of a queue in a directory says what its callers saw, in each cell of an answer, or names
what it lacks: over random histories, with dead letters that stay, delays, holds, kills and
damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import cast
from uuid import uuid4

import pytest

from crash.lossy import LossyFiles
from crash.world import OPTIONS, ROOT, start
from postroad import Mail, Selector
from postroad.embedded.history import LEEWAY
from postroad.embedded.log.layout import Layout
from postroad.embedded.store.archive import DAMAGED, DroppedName, read_archive
from postroad.pipeline.archive.archive import Run
from postroad.pipeline.archive.idle_runs import idle_run
from postroad.pipeline.archive.lake_files import KEPT_STATES, LakeFiles, LastRead, digest_of
from postroad.pipeline.archive.planning import Gap, Stretch, coverage_of
from postroad.pipeline.spark.jobs.store_archiving import StoreRun, archive_history
from postroad.pipeline.spark.lake.store_lake import StoreLake
from support.memory.clock import ManualClock
from support.plain_store_lake import Killed, PlainStoreLake, cells_of
from support.store_ledger import HOUR, KINDS, MINUTE, Cells, RandomHistory

LAYOUT = Layout(ROOT, ROOT / "mail")


class World:
    """An archived store, what happens in it, and its lake."""

    def __init__(self, seed: int) -> None:
        self.files, self.clock, self.lake = LossyFiles(), ManualClock(), PlainStoreLake()
        self.seed = seed

    async def open(self, *, archived: bool = True) -> None:
        if archived:
            self.files.make_directory(LAYOUT.archive)
        self.queue = await start(self.files, self.clock)
        await self.queue.maintenance.recovering
        self.history = RandomHistory(self.queue, self.clock, self.seed)

    def run(self, lake: PlainStoreLake | None = None) -> StoreRun:
        there = cast("StoreLake", lake or self.lake)
        return archive_history(there, self.files, LAYOUT, str, self.clock, uuid4())

    async def checkpoint(self) -> None:
        await self.queue.maintenance.checkpoint()

    def lacking(self, stretch: Stretch) -> tuple[Gap, ...]:
        times = self.lake.known
        begun, through = (None, None) if times is None else times
        return coverage_of(stretch, self.lake.missing, begun, through).lacking

    def differing(self, got: Cells | None = None) -> dict[object, tuple[int, int]]:
        """The cells, in hours that lack nothing, that differ from the ledger."""
        want = self.history.ledger.cells
        got = cells_of(self.lake.lines()) if got is None else got
        return {
            (*cell, kind): (want[cell][kind], got[cell][kind])
            for cell in {*want, *got}
            for kind in KINDS
            if want[cell][kind] != got[cell][kind]
            and not self.lacking(Stretch(cell[0], cell[0] + HOUR))
        }

    def archived(self) -> list[str]:
        found = read_archive(self.files, LAYOUT)
        assert found is not None
        return [str(each) for each in found.segments]


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    found = World(getattr(request, "param", 0))
    await found.open()
    yield found
    await found.queue.close()


SEEDS = pytest.mark.parametrize("world", range(12), indirect=True)


@SEEDS
async def test_lake_equals_what_callers_saw_although_mail_and_dead_letters_stay(
    world: World,
) -> None:
    for number in range(150):
        await world.history.step()
        if number % 40 == 39:
            world.run()
            assert world.differing() == {}
    assert world.history.dead_letters
    await world.clock.advance(2 * MINUTE)
    await world.checkpoint()

    world.run()

    assert world.differing() == {}
    assert world.lake.missing == ()
    assert world.lacking(Stretch(world.clock.now() - 9 * HOUR, world.clock.now() - LEEWAY)) == ()
    assert trace(world) == Counter(world.history.states())


def trace(world: World) -> Counter[tuple[str, ...]]:
    """The states of the entries of each mail."""
    found: dict[str, list[str]] = {}
    for line in sorted(world.lake.lines(), key=lambda line: str(line["enqueue_id"])):
        found.setdefault(line["mail_id"], []).append(line["state"])
    return Counter(map(tuple, found.values()))


@SEEDS
async def test_runs_that_are_killed_behind_any_commit_lose_and_repeat_nothing(
    world: World,
) -> None:
    chance = Random(world.seed)
    for _ in range(150):
        await world.history.step()
        if chance.random() < 0.2:
            world.lake.left = chance.randrange(1, 8)
            try:
                world.run()
            except Killed:
                pass
            world.lake.left = -1
            assert world.differing() == {}
    await world.clock.advance(2 * MINUTE)
    await world.checkpoint()

    world.run()

    assert world.differing() == {}
    assert world.lake.missing == ()
    assert trace(world) == Counter(world.history.states())


@SEEDS
async def test_damage_of_archived_files_is_named_and_no_damaged_file_is_deleted(
    world: World,
) -> None:
    chance, aside = Random(world.seed), set[str]()
    for number in range(150):
        await world.history.step()
        if number % 25 == 24:
            await world.checkpoint()
            for name in world.archived():
                *_, end, salt = name.split(".")
                had = world.lake.read_segments().get(salt, 0)
                if had < int(end) and chance.random() < 0.3:
                    damage(world, name, chance, had)
                    aside.add(name + DAMAGED)
            found = world.run()
            assert world.differing() == {}
            assert (found.run.counts["unreadable"] > 0) == bool(found.damaged)
            assert aside <= set(world.files.names(LAYOUT.archive))
    assert aside
    assert world.lake.missing
    await world.clock.advance(2 * MINUTE)
    await world.checkpoint()
    world.run()
    assert world.differing() == {}


def damage(world: World, name: str, chance: Random, had: int) -> None:
    """Cut a file, turn bits of it, or take its header: of what the lake has not."""
    file = world.files.open(LAYOUT.archive / name)
    end = int(name.split(".")[4])
    how = chance.choice(("cut", "flip", "header"))
    if how == "cut":
        file.truncate(chance.randrange(0, end))
    elif how == "header":
        file.pwrite(0, bytes(64))
    else:
        where = chance.randrange(max(had, 4096 + OPTIONS.segment_envelopes), end - 4)
        file.pwrite(where, bytes(255 - each for each in file.pread(where, 4)))
    file.close()


async def one_mail(world: World) -> None:
    """Let a mail pass, and its segment go to the archive."""
    await world.queue.enqueue(Mail(None, ("a@b.example",), b"x"))
    await (await world.history.consumer.next()).done()
    await world.clock.advance(2 * HOUR)
    for _ in range(2):
        await world.checkpoint()


def is_whole(world: World, *, since: timedelta) -> bool:
    now = world.clock.now() - LEEWAY
    return world.lacking(Stretch(now - since, now)) == ()


async def test_run_without_new_records_commits_nothing_and_knows_more_time(world: World) -> None:
    for _ in range(50):
        await world.history.step()
    await world.checkpoint()
    first = world.run()
    assert first.run.counts["entries"] == len(world.lake.entries)
    world.lake.commits.clear()

    second = world.run()

    assert set(second.run.counts.values()) == {0}
    assert world.lake.commits == []
    await world.clock.advance(HOUR)
    world.run()
    assert world.lake.commits == ["put_times"]
    assert is_whole(world, since=HOUR)


def idle(world: World, known: LakeFiles) -> Run | None:
    return idle_run(world.files, LAYOUT, known, world.clock, uuid4())


def whole(world: World, known: LakeFiles) -> Run:
    """A run as with Spark, after which the files of the lake say what it had read."""
    found = world.run()
    assert world.lake.known is not None
    known.put_times(world.lake.known)
    known.put_last_read(LastRead(digest_of(found.ends), found.run.began))
    return found.run


@SEEDS
async def test_run_that_is_idle_without_spark_is_one_that_would_commit_nothing(
    world: World, tmp_path: Path
) -> None:
    known, idles = LakeFiles(tmp_path), list[bool]()
    assert idle(world, known) is None, "the first run makes the tables"
    for number in range(60):
        if number % 3 == 0:
            await world.history.step()
        if number % 4 == 0:
            await world.clock.advance(MINUTE)
            await world.checkpoint()
        found = idle(world, known)
        idles.append(found is not None)
        if found is None:
            whole(world, known)
            continue
        world.lake.known = known.times()
        world.lake.commits.clear()
        wanted = world.run().run
        assert (dict(found.counts), world.lake.commits) == (dict(wanted.counts), [])
    assert {*idles} == {True, False}
    assert world.differing() == {}


async def test_run_is_not_idle_a_day_behind_the_last_that_expired_states(
    world: World, tmp_path: Path
) -> None:
    known = LakeFiles(tmp_path)
    await world.checkpoint()
    whole(world, known)
    assert idle(world, known) is not None
    await world.clock.advance(KEPT_STATES)

    assert idle(world, known) is None


async def test_run_is_not_idle_where_the_archive_dropped_a_segment(
    world: World, tmp_path: Path
) -> None:
    known = LakeFiles(tmp_path)
    await world.history.step()
    await world.checkpoint()
    whole(world, known)
    assert idle(world, known) is not None
    dropped = DroppedName(1, 2)
    world.files.open(LAYOUT.archive / str(dropped), create=True).close()

    assert idle(world, known) is None


async def test_counts_of_entries_add_up_to_the_lines(world: World) -> None:
    counted = 0
    for _ in range(6):
        for _ in range(20):
            await world.history.step()
        counted += world.run().run.counts["entries"]

    assert counted == len(world.lake.entries) > 50


async def test_records_behind_the_checkpoint_are_lacking(world: World) -> None:
    await one_mail(world)
    await world.queue.enqueue(Mail(None, ("a@b.example",), b"x"))
    await world.clock.advance(2 * HOUR)

    world.run()

    assert not is_whole(world, since=HOUR)
    await world.checkpoint()
    world.run()
    assert is_whole(world, since=9 * HOUR)


async def test_segments_that_were_dropped_are_a_gap(world: World) -> None:
    await one_mail(world)
    (name,) = world.archived()
    obsolete, created, *_ = name.split(".")
    world.files.unlink(LAYOUT.archive / name)
    world.files.open(LAYOUT.archive / f"dropped.{created}.{obsolete}", create=True).close()
    world.files.open(LAYOUT.archive / "notes.txt", create=True).close()

    world.run()

    assert len(world.lake.missing) == 1
    assert not is_whole(world, since=3 * HOUR)
    assert [each for each in world.files.names(LAYOUT.archive) if "begun" not in each] == [
        "notes.txt"
    ]


async def test_time_without_an_archive_is_lacking(world: World) -> None:
    await one_mail(world)
    world.run()
    del world.files.disk.names[LAYOUT.archive]
    await one_mail(world)
    world.files.make_directory(LAYOUT.archive)
    world.run()
    await one_mail(world)
    await world.clock.advance(HOUR)

    world.run()

    assert not is_whole(world, since=4 * HOUR)
    assert is_whole(world, since=2 * HOUR)


async def test_another_lake_begins_where_the_first_one_read(world: World) -> None:
    await one_mail(world)
    world.run()
    await one_mail(world)
    world.lake = PlainStoreLake()

    world.run()

    assert is_whole(world, since=HOUR)
    assert not is_whole(world, since=5 * HOUR)


async def test_lake_of_a_store_that_kept_nothing_before_begins_now() -> None:
    world = World(0)
    await world.open(archived=False)
    for _ in range(20):
        await one_mail(world)
    world.files.make_directory(LAYOUT.archive)

    world.run()
    await world.clock.advance(HOUR)
    world.run()

    assert not is_whole(world, since=3 * HOUR)
    assert is_whole(world, since=HOUR - 2 * LEEWAY)
    await world.queue.close()


async def test_damage_in_the_log_is_named_and_left_to_verify(world: World) -> None:
    await world.queue.enqueue(Mail(None, ("a@b.example",), b"x"), HOUR)
    await world.queue.enqueue(Mail(None, ("b@b.example",), b"x"), HOUR)
    await world.checkpoint()
    segment = world.queue.engine.lanes[3600].segments[0]
    path = LAYOUT.segment(segment.lane, segment.sequence)
    world.files.open(path).pwrite(segment.end - 40, b"damaged!")

    found = world.run()

    assert list(found.damaged) == [path.name]
    assert path.name in world.files.names(LAYOUT.log)
    assert len(world.lake.entries) == 1
    assert world.lacking(Stretch(world.clock.now() - HOUR, world.clock.now())) != ()


async def test_record_of_another_program_is_counted_and_its_file_is_set_aside(
    world: World,
) -> None:
    world.queue.engine.lane(0).append(4, b"no FINISH")
    await one_mail(world)
    (name,) = world.archived()

    found = world.run()

    assert found.run.counts["unreadable"] == 1
    assert list(found.damaged) == [name]
    assert name + DAMAGED in world.files.names(LAYOUT.archive)
    assert [line["state"] for line in world.lake.lines()] == ["delivered"]
    assert not is_whole(world, since=3 * HOUR)


async def test_mail_that_waits_for_months_is_followed_to_its_end(world: World) -> None:
    await world.queue.enqueue(Mail(None, ("a@b.example",), b"x", name="held"))
    await world.queue.hold(Selector(name="held"))
    await world.checkpoint()
    world.run()
    for _ in range(4):
        await world.clock.advance(timedelta(days=25))
        await world.queue.enqueue(Mail(None, ("a@b.example",), b"x", name="passes"))
        await (await world.history.consumer.next()).done()
        await world.checkpoint()
        world.run()
    await world.queue.remove(Selector(name="held"))
    removed = world.clock.now()
    await world.checkpoint()

    world.run()

    (line,) = [each for each in world.lake.lines() if each["state"] == "removed"]
    assert line["ended_at"] == removed
    assert world.lake.missing == ()
    assert not [each for each in world.lake.named if each.mail_id]
