"""What the archive keeps is what the view had, however the run was stopped; what it could not keep
is named."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import uuid4

import pytest

from postroad.domain.queues.entries import EntryKey
from postroad.domain.queues.selection import Selector
from support.archive_story import NO_STOP, Story, happen
from support.in_memory_cluster import WINDOW


@pytest.mark.parametrize("seed", range(20))
async def test_the_lake_has_what_the_view_had(story: Story, seed: int) -> None:
    chance = random.Random(seed)
    await story.run()  # switches the archive on
    await story.cluster.enqueue(story.process, "first")
    for _ in range(80):
        await happen(story, chance)
    await story.drain()

    assert story.lake.whole == story.had
    assert story.lake.missing == ()
    before = (dict(story.lake.entries), dict(story.lake.lines), len(story.source.read_partitions))
    await story.run()
    assert (story.lake.entries, story.lake.lines, len(story.source.read_partitions)) == before


async def lose_one(story: Story) -> EntryKey:
    """Let cleanup pass a slice that the archive never saw; return an entry of it."""
    await story.cluster.enqueue(story.process, "lost")
    await story.process.queue.remove(Selector.all())
    lost = max(story.cluster.tables.rows)
    for _ in range(64):
        await story.maintain(timedelta(hours=2))
    assert story.cluster.tables.rows == {}
    return lost


@pytest.mark.parametrize("commits", [0, 1, 2, 3, NO_STOP])
async def test_an_archive_that_was_away_names_what_cleanup_passed(
    story: Story, commits: int
) -> None:
    await story.run()
    await story.cluster.enqueue(story.process, "kept")
    await story.finish(random.Random(1))
    for _ in range(3):
        await story.maintain()
        await story.run()
    kept, limits = dict(story.lake.whole), story.cluster.tables.limits

    lost = await lose_one(story)
    await story.try_to_archive(commits)
    await story.run()

    assert story.lake.whole == kept
    assert kept
    (gap,) = story.lake.missing
    assert gap.first == limits.archived_through
    assert gap.first <= lost.slice_start < gap.before
    limits = story.cluster.tables.limits
    assert limits.archived_through is not None
    assert limits.archived_through >= gap.before

    more = await lose_one(story)
    await story.run()
    assert [gap.first <= each.slice_start < gap.before for each in (lost, more)] == [True, False]
    assert any(each.first <= more.slice_start < each.before for each in story.lake.missing)
    assert gap.first == story.lake.missing[0].first


async def test_a_slice_that_cleanup_deletes_while_it_is_read_is_not_kept(story: Story) -> None:
    """Its entries stay as they were read before."""
    await story.cluster.enqueue(story.process, "mail")
    (key,) = story.cluster.tables.rows
    await story.maintain(2 * WINDOW)
    await story.run()
    assert story.lake.entries[key].state == "waiting"
    await story.process.queue.remove(Selector.all())
    await story.maintain()
    story.cluster.tables.rows.clear()

    await story.run()

    assert story.lake.entries[key].state == "waiting"
    assert story.lake.whole == {}
    assert story.cluster.tables.limits.archived_through == key.slice_start


async def test_a_run_of_some_slices_leaves_the_others_to_the_next(story: Story) -> None:
    await story.run()  # switches the archive on
    await story.cluster.enqueue(story.process, "first")
    (first,) = story.cluster.tables.rows
    await story.maintain(2 * WINDOW)
    await story.cluster.enqueue(story.process, "second")
    (second,) = story.cluster.tables.rows.keys() - {first}
    await story.process.queue.remove(Selector.all())
    for _ in range(3):
        await story.maintain(2 * WINDOW)

    run = await story.archive.run(uuid4(), lambda start: start > first.slice_start)

    assert story.lake.whole.keys() == {second}
    assert story.cluster.tables.limits.archived_through == first.slice_start
    assert (run.counts["asked"], run.counts["rows"]) == (1, 1)
    assert story.lake.runs[-1] == run
    await story.run()
    assert story.lake.whole.keys() == {first, second}
    assert story.lake.missing == ()
