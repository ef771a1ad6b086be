"""What every `View` promises of the watermark that a purge sets in a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from contract.view_contract import (
    HOUR,
    NO_TRAITS,
    NOW,
    PARTITION,
    REMOVED,
    REPLACED,
    START,
    entry,
    key,
    time_of,
)
from postroad.domain.queues.entries import (
    Ending,
    EndingKind,
    Mark,
    Partition,
    PurgeWatermark,
    Traits,
)
from postroad.ports.marks import Counts, PartitionVersion
from postroad.ports.view import View

T = TypeVar("T")

WATERMARK = PurgeWatermark(key(5).enqueue_id, NOW)
PURGED = Mark(ending=REMOVED)
EXPIRED = Ending(EndingKind.EXPIRED, NOW)
LAST = key(10**9).enqueue_id


async def all_of(items: AsyncIterator[T]) -> list[T]:
    return [each async for each in items]


class PurgeWatermarkContract:
    """Subclasses provide the fixture `view`."""

    async def test_a_line_removes_all_entries_up_to_it_at_once(self, view: View) -> None:
        for number in (1, 5, 6):
            await view.insert(entry(number))

        assert await view.set_watermark(PARTITION, WATERMARK) is None

        marks = await asyncio.gather(*(view.mark(key(number)) for number in (1, 5, 6)))
        assert marks == [PURGED, PURGED, None]
        assert await view.mark(key(1)) == PURGED
        assert await view.mark(key(6)) is None

    async def test_a_line_is_drawn_through_one_partition_of_one_queue(self, view: View) -> None:
        await view.set_watermark(PARTITION, WATERMARK)

        assert await view.mark(key(1, Partition(START, 2))) is None
        assert (await view.version(Partition(START, 2))).watermark is None

    async def test_what_ended_before_the_line_keeps_its_mark(self, view: View) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.end(key(2), REPLACED, NO_TRAITS)

        await view.set_watermark(PARTITION, WATERMARK)

        assert await view.mark(key(1)) == Mark(delivered_at=NOW)
        assert await view.mark(key(2)) == Mark(ending=REPLACED)
        assert await view.end(key(2), EXPIRED, NO_TRAITS) == Mark(ending=REPLACED)
        assert await view.mark_published(key(2), key(9).enqueue_id)

    async def test_behind_a_watermark_no_entry_takes_another_ending(self, view: View) -> None:
        await view.set_watermark(PARTITION, WATERMARK)

        assert await view.end(key(5), REPLACED, NO_TRAITS) == PURGED
        together = [(key(number), REMOVED, NO_TRAITS) for number in (5, 6)]
        assert not await view.end_together(together)

        assert await view.mark(key(5)) == PURGED
        assert await view.mark(key(6)) is None

    async def test_beyond_a_watermark_entries_end_as_ever(self, view: View) -> None:
        await view.set_watermark(PARTITION, WATERMARK)

        assert await view.end(key(6), REPLACED, NO_TRAITS) is None
        assert await view.end(key(6), EXPIRED, NO_TRAITS) == Mark(ending=REPLACED)
        together = [(key(number), REMOVED, NO_TRAITS) for number in (7, 8)]
        assert await view.end_together(together)
        assert not await view.end_together(together)

        assert await view.mark(key(7)) == PURGED
        assert await view.mark(key(9)) is None

    async def test_entries_on_both_sides_of_a_watermark_end_at_the_same_time(
        self, view: View
    ) -> None:
        await view.set_watermark(PARTITION, WATERMARK)

        ended = await asyncio.gather(
            *(view.end(key(number), EXPIRED, NO_TRAITS) for number in range(1, 10))
        )

        assert ended == [PURGED] * 5 + [None] * 4

    async def test_a_delivery_is_marked_behind_a_line(self, view: View) -> None:
        await view.set_watermark(PARTITION, WATERMARK)

        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        assert await view.mark(key(1)) == Mark(delivered_at=NOW)

    async def test_of_a_watermark_and_an_ending_one_comes_first(self, view: View) -> None:
        before, found = await asyncio.gather(
            view.set_watermark(PARTITION, WATERMARK), view.end(key(1), REPLACED, NO_TRAITS)
        )

        assert before is None
        mark = await view.mark(key(1))
        assert mark == (Mark(ending=REPLACED) if found is None else PURGED)
        assert found in (None, PURGED)

    async def test_a_line_only_moves_on(self, view: View) -> None:
        older = PurgeWatermark(key(3).enqueue_id, NOW - HOUR)
        further = PurgeWatermark(key(7).enqueue_id, NOW + HOUR)
        await view.set_watermark(PARTITION, WATERMARK)

        assert await view.set_watermark(PARTITION, older) == WATERMARK
        assert await view.set_watermark(PARTITION, WATERMARK) == WATERMARK
        assert (await view.version(PARTITION)).watermark == WATERMARK
        assert await view.set_watermark(PARTITION, further) == WATERMARK

        assert (await view.version(PARTITION)).watermark == further
        assert await view.mark(key(7)) == replace(PURGED, ending=replace(REMOVED, at=NOW + HOUR))

    async def test_of_lines_drawn_at_once_the_furthest_stays(self, view: View) -> None:
        watermarks = [PurgeWatermark(key(number).enqueue_id, NOW) for number in (3, 9, 6)]

        before = await asyncio.gather(*(view.set_watermark(PARTITION, each) for each in watermarks))

        assert (await view.version(PARTITION)).watermark == watermarks[1]
        assert None in before

    async def test_a_line_is_no_mark_of_any_entry(self, view: View) -> None:
        later = Traits(("example.net",), NOW + HOUR, False)
        held = Traits(("example.net",), NOW + HOUR, True)
        for number, traits in ((1, NO_TRAITS), (6, later), (7, held)):
            await view.mark_delivered(key(number), NOW, traits)
        await view.set_watermark(PARTITION, WATERMARK)

        marks = [found async for found, _ in view.marks(PARTITION)]
        assert marks == [key(number).enqueue_id for number in (1, 6, 7)]
        assert await view.count_marks(PARTITION, NOW) == Counts(3, 1, 1)
        assert await view.count_marks(PARTITION, NOW, WATERMARK.through) == Counts(2, 1, 1)
        marked = [(found, False) for found in marks]
        assert await all_of(view.marked(PARTITION, LAST)) == marked
        assert await all_of(view.marked(PARTITION, key(6).enqueue_id)) == marked[:2]

    async def test_rows_are_counted_after_an_id(self, view: View) -> None:
        delayed = {"due_at": NOW + HOUR}
        for number, changes in ((1, delayed), (5, {}), (6, {}), (7, delayed)):
            await view.insert(replace(entry(number), **changes))  # type: ignore[arg-type]

        assert await view.count_rows(PARTITION, NOW, WATERMARK.through) == Counts(2, 1, 0)

    async def test_names_of_bytes_are_listed_up_to_an_id(self, view: View) -> None:
        numbers = range(1, 9)
        await asyncio.gather(*(view.insert(entry(number)) for number in numbers))

        found = await all_of(view.blob_keys(PARTITION, key(7).enqueue_id))

        entries = [entry(number) for number in range(1, 8)]
        assert found == [(each.enqueue_id, each.blob_key) for each in entries]

    async def test_marked_entries_are_listed_with_replacements_under_way(self, view: View) -> None:
        for number in (1, 2):
            await view.end(key(number), REPLACED, NO_TRAITS)
        await view.end(key(3), REMOVED, NO_TRAITS)
        await view.mark_delivered(key(4), NOW, NO_TRAITS)
        await view.mark_published(key(1), key(9).enqueue_id)
        await view.set_watermark(PARTITION, PurgeWatermark(LAST, NOW))

        found = await all_of(view.marked(PARTITION, LAST))

        assert found == [(key(number).enqueue_id, number == 2) for number in (1, 2, 3, 4)]

    async def test_blobs_are_deleted_up_to_where_it_is_recorded(self, view: View) -> None:
        assert (await view.version(PARTITION)).are_blobs_deleted
        await view.set_watermark(PARTITION, WATERMARK)
        assert not (await view.version(PARTITION)).are_blobs_deleted

        await view.mark_blobs_deleted(PARTITION, key(3).enqueue_id)
        assert not (await view.version(PARTITION)).are_blobs_deleted
        await view.mark_blobs_deleted(PARTITION, WATERMARK.through)
        assert (await view.version(PARTITION)).are_blobs_deleted

        await view.set_watermark(PARTITION, PurgeWatermark(key(6).enqueue_id, NOW))
        assert not (await view.version(PARTITION)).are_blobs_deleted

    async def test_signs_tell_that_a_mark_was_written(self, view: View) -> None:
        assert await view.version(PARTITION) == PartitionVersion()
        began = await time_of(view)
        version = [PartitionVersion()]
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: view.mark_delivered(key(6), NOW, NO_TRAITS),
            lambda: view.end(key(7), REMOVED, NO_TRAITS),
            lambda: view.end_together([(key(8), REMOVED, NO_TRAITS)]),
            lambda: view.set_watermark(PARTITION, WATERMARK),
        ]
        for number, write in enumerate(writes, 1):
            await asyncio.sleep(0.005)  # the view's clock goes on
            await write()
            version.append(await view.version(PARTITION))
            assert version[number] != version[number - 1]

        last = version[-1]
        assert (last.watermark, last.purged) == (WATERMARK, WATERMARK.through)
        soon = await time_of(view) + timedelta(seconds=5)
        assert last.settled(soon)
        assert not last.settled(began - timedelta(milliseconds=1))
        assert PartitionVersion().settled(datetime.min.replace(tzinfo=UTC))

    async def test_deleting_marks_takes_the_line_along(self, view: View) -> None:
        await view.set_watermark(PARTITION, WATERMARK)

        await view.delete_marks(PARTITION)

        assert await view.mark(key(1)) is None
        assert (await view.version(PARTITION)).watermark is None
