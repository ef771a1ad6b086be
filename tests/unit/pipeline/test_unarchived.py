"""What the lake has and what of the view is named beside it are, together, all that there was."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from postroad.adapters.memory.view import MemoryView
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import EPOCH, moment_of
from postroad.domain.values.instants import LATEST
from postroad.pipeline.archive.archive import LEEWAY, Versions, near, unarchived, with_view
from postroad.pipeline.archive.planning import Coverage, Gap, Stretch
from postroad.ports.view import Limits
from support.archive_story import NO_STOP, Entries, Story, happen
from support.in_memory_cluster import WINDOW

HOUR = timedelta(hours=1)
READING = (ViewConfiguration(WINDOW, 3), ViewConfiguration(2 * WINDOW, 1))
"""The second is one that the queue had before."""


async def beside(story: Story) -> Versions:
    view, limits = story.process.queue._engine.view, story.cluster.tables.limits
    assert isinstance(view, MemoryView)
    first = limits.content_start or limits.browse_start
    if first is None:
        return {}
    archived = await story.lake.slices(first)
    return await unarchived(view, READING, archived, first, story.cluster.clock.now() + HOUR)


async def answered(story: Story, versions: Versions) -> Entries:
    read = await story.source.read(versions)
    return story.lake.entries | read.entries


@pytest.mark.parametrize("seed", range(6))
async def test_lake_and_view_are_whole_whatever_happened(story: Story, seed: int) -> None:
    """Also after runs that were stopped, and while mail waits in slices that are archived."""
    chance = random.Random(seed)
    await story.run()  # cleanup waits for the archive from now on
    await story.cluster.enqueue(story.process, "first")
    for number in range(60):
        await happen(story, chance)
        if number % 5 == 0:
            assert await answered(story, await beside(story)) == story.had


async def test_without_an_archive_the_view_is_all_there_is(story: Story) -> None:
    assert await beside(story) == {}
    chance = random.Random(1)
    for _ in range(30):
        await happen(story, chance, deeds=8)
    present = {key: story.had[key] for key in story.cluster.tables.rows}

    assert await answered(story, await beside(story)) == present
    assert len(present) > 3


async def test_what_is_archived_is_read_until_its_slice_is_drained(story: Story) -> None:
    await story.run()
    await story.cluster.enqueue(story.process, "waits", delay=7200)
    await story.cluster.enqueue(story.process, "ends")
    (slice_start,) = {each.slice_start for each in story.cluster.tables.rows}
    for _ in range(3):
        assert {each.slice_start for each in await beside(story)} == {slice_start}
        await story.maintain(2 * WINDOW)
        await story.try_to_archive(NO_STOP)
    assert {line.state for line in story.lake.entries.values()} == {"waiting"}

    await story.process.queue.remove(Selector.all())
    story.note()
    assert {each.slice_start for each in await beside(story)} == {slice_start}
    await story.try_to_archive(NO_STOP)
    await story.maintain()
    assert story.cluster.tables.slices[slice_start].drained
    before = await beside(story)
    assert await answered(story, before) == story.had
    await story.try_to_archive(NO_STOP)

    assert await beside(story) == {}
    assert story.lake.whole == story.had


async def test_slices_of_another_time_are_left_out(story: Story) -> None:
    """Those of a mail begin with its id, less a leeway."""
    for name in ("one", "two", "three"):
        await story.cluster.enqueue(story.process, name)
        await story.maintain(timedelta(hours=3))
    versions = await beside(story)
    rows = story.cluster.tables.rows
    last = max(rows)
    since = moment_of(rows[last].mail_id) - LEEWAY

    found = near(versions, Stretch(since, since + 8 * HOUR), WINDOW)

    assert len({each.slice_start for each in versions}) == 3
    assert set(found) == {last.partition}
    assert set(near(versions, Stretch(since - 6 * HOUR, since), WINDOW)) == set(versions) - set(
        found
    )
    assert near(versions, Stretch(EPOCH, LATEST), WINDOW) == versions


def test_the_view_fills_what_the_lake_lacks_from_content_start_on() -> None:
    at = [EPOCH + number * HOUR for number in range(6)]
    stretch = Stretch(at[0], at[5])
    lacking = (Gap(at[0], at[1]), Gap(at[2], at[4]))

    found = with_view(Coverage(stretch, lacking, at[4]), Limits(at[4], at[3]))

    assert found == Coverage(stretch, (Gap(at[0], at[1]), Gap(at[2], at[3])))
    assert with_view(Coverage(stretch, lacking, at[4]), Limits(at[4], None)) == Coverage(stretch)
