"""What every `View` promises of the line that a purge draws through a partition."""

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
    key,
    time_of,
    turn,
)
from postroad.domain.entries import Ending, EndingKind, Mark, PurgeLine, Traits
from postroad.domain.slices import Partition
from postroad.ports.marks import Counts, Signs
from postroad.ports.view import View

T = TypeVar("T")

LINE = PurgeLine(key(5).enqueue_id, NOW)
PURGED = Mark(ending=REMOVED)
EXPIRED = Ending(EndingKind.EXPIRED, NOW)
LAST = key(10**9).enqueue_id


async def all_of(items: AsyncIterator[T]) -> list[T]:
    return [each async for each in items]


class PurgeLineContract:
    """Subclasses provide the fixture `view`."""

    async def test_a_line_removes_all_turns_up_to_it_at_once(self, view: View) -> None:
        for number in (1, 5, 6):
            await view.insert(turn(number))

        assert await view.draw_line(PARTITION, LINE) is None

        marks = await asyncio.gather(*(view.mark(key(number)) for number in (1, 5, 6)))
        assert marks == [PURGED, PURGED, None]
        assert await view.mark(key(1)) == PURGED
        assert await view.mark(key(6)) is None

    async def test_a_line_is_drawn_through_one_partition_of_one_queue(self, view: View) -> None:
        await view.draw_line(PARTITION, LINE)

        assert await view.mark(key(1, Partition(START, 2))) is None
        assert (await view.signs(Partition(START, 2))).line is None

    async def test_what_ended_before_the_line_keeps_its_mark(self, view: View) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.end(key(2), REPLACED, NO_TRAITS)

        await view.draw_line(PARTITION, LINE)

        assert await view.mark(key(1)) == Mark(delivered_at=NOW)
        assert await view.mark(key(2)) == Mark(ending=REPLACED)
        assert await view.end(key(2), EXPIRED, NO_TRAITS) == Mark(ending=REPLACED)
        assert await view.mark_published(key(2), key(9).enqueue_id)

    async def test_behind_a_line_no_turn_takes_another_ending(self, view: View) -> None:
        await view.draw_line(PARTITION, LINE)

        assert await view.end(key(5), REPLACED, NO_TRAITS) == PURGED
        together = [(key(number), REMOVED, NO_TRAITS) for number in (5, 6)]
        assert not await view.end_together(together)

        assert await view.mark(key(5)) == PURGED
        assert await view.mark(key(6)) is None

    async def test_beyond_a_line_turns_end_as_ever(self, view: View) -> None:
        await view.draw_line(PARTITION, LINE)

        assert await view.end(key(6), REPLACED, NO_TRAITS) is None
        assert await view.end(key(6), EXPIRED, NO_TRAITS) == Mark(ending=REPLACED)
        together = [(key(number), REMOVED, NO_TRAITS) for number in (7, 8)]
        assert await view.end_together(together)
        assert not await view.end_together(together)

        assert await view.mark(key(7)) == PURGED
        assert await view.mark(key(9)) is None

    async def test_turns_on_both_sides_of_a_line_end_at_the_same_time(self, view: View) -> None:
        await view.draw_line(PARTITION, LINE)

        ended = await asyncio.gather(
            *(view.end(key(number), EXPIRED, NO_TRAITS) for number in range(1, 10))
        )

        assert ended == [PURGED] * 5 + [None] * 4

    async def test_a_delivery_is_marked_behind_a_line(self, view: View) -> None:
        await view.draw_line(PARTITION, LINE)

        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        assert await view.mark(key(1)) == Mark(delivered_at=NOW)

    async def test_of_a_line_and_an_ending_one_comes_first(self, view: View) -> None:
        before, found = await asyncio.gather(
            view.draw_line(PARTITION, LINE), view.end(key(1), REPLACED, NO_TRAITS)
        )

        assert before is None
        mark = await view.mark(key(1))
        assert mark == (Mark(ending=REPLACED) if found is None else PURGED)
        assert found in (None, PURGED)

    async def test_a_line_only_moves_on(self, view: View) -> None:
        older = PurgeLine(key(3).enqueue_id, NOW - HOUR)
        further = PurgeLine(key(7).enqueue_id, NOW + HOUR)
        await view.draw_line(PARTITION, LINE)

        assert await view.draw_line(PARTITION, older) == LINE
        assert await view.draw_line(PARTITION, LINE) == LINE
        assert (await view.signs(PARTITION)).line == LINE
        assert await view.draw_line(PARTITION, further) == LINE

        assert (await view.signs(PARTITION)).line == further
        assert await view.mark(key(7)) == replace(PURGED, ending=replace(REMOVED, at=NOW + HOUR))

    async def test_of_lines_drawn_at_once_the_furthest_stays(self, view: View) -> None:
        lines = [PurgeLine(key(number).enqueue_id, NOW) for number in (3, 9, 6)]

        before = await asyncio.gather(*(view.draw_line(PARTITION, each) for each in lines))

        assert (await view.signs(PARTITION)).line == lines[1]
        assert None in before

    async def test_a_line_is_no_mark_of_any_turn(self, view: View) -> None:
        later = Traits(("example.net",), NOW + HOUR, False)
        held = Traits(("example.net",), NOW + HOUR, True)
        for number, traits in ((1, NO_TRAITS), (6, later), (7, held)):
            await view.mark_delivered(key(number), NOW, traits)
        await view.draw_line(PARTITION, LINE)

        marks = [found async for found, _ in view.marks(PARTITION)]
        assert marks == [key(number).enqueue_id for number in (1, 6, 7)]
        assert await view.count_marks(PARTITION, NOW) == Counts(3, 1, 1)
        assert await view.count_marks(PARTITION, NOW, LINE.through) == Counts(2, 1, 1)
        marked = [(found, False) for found in marks]
        assert await all_of(view.marked(PARTITION, LAST)) == marked
        assert await all_of(view.marked(PARTITION, key(6).enqueue_id)) == marked[:2]

    async def test_rows_are_counted_after_an_id(self, view: View) -> None:
        delayed = {"due_at": NOW + HOUR}
        for number, changes in ((1, delayed), (5, {}), (6, {}), (7, delayed)):
            await view.insert(replace(turn(number), **changes))  # type: ignore[arg-type]

        assert await view.count_rows(PARTITION, NOW, LINE.through) == Counts(2, 1, 0)

    async def test_names_of_bytes_are_listed_up_to_an_id(self, view: View) -> None:
        numbers = range(1, 9)
        await asyncio.gather(*(view.insert(turn(number)) for number in numbers))

        found = await all_of(view.blob_keys(PARTITION, key(7).enqueue_id))

        turns = [turn(number) for number in range(1, 8)]
        assert found == [(each.enqueue_id, each.blob_key) for each in turns]

    async def test_marked_turns_are_listed_with_replacements_under_way(self, view: View) -> None:
        for number in (1, 2):
            await view.end(key(number), REPLACED, NO_TRAITS)
        await view.end(key(3), REMOVED, NO_TRAITS)
        await view.mark_delivered(key(4), NOW, NO_TRAITS)
        await view.mark_published(key(1), key(9).enqueue_id)
        await view.draw_line(PARTITION, PurgeLine(LAST, NOW))

        found = await all_of(view.marked(PARTITION, LAST))

        assert found == [(key(number).enqueue_id, number == 2) for number in (1, 2, 3, 4)]

    async def test_a_line_is_swept_up_to_where_it_is_said(self, view: View) -> None:
        assert (await view.signs(PARTITION)).is_swept
        await view.draw_line(PARTITION, LINE)
        assert not (await view.signs(PARTITION)).is_swept

        await view.mark_swept(PARTITION, key(3).enqueue_id)
        assert not (await view.signs(PARTITION)).is_swept
        await view.mark_swept(PARTITION, LINE.through)
        assert (await view.signs(PARTITION)).is_swept

        await view.draw_line(PARTITION, PurgeLine(key(6).enqueue_id, NOW))
        assert not (await view.signs(PARTITION)).is_swept

    async def test_signs_tell_that_a_mark_was_written(self, view: View) -> None:
        assert await view.signs(PARTITION) == Signs()
        began = await time_of(view)
        signs = [Signs()]
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: view.mark_delivered(key(6), NOW, NO_TRAITS),
            lambda: view.end(key(7), REMOVED, NO_TRAITS),
            lambda: view.end_together([(key(8), REMOVED, NO_TRAITS)]),
            lambda: view.draw_line(PARTITION, LINE),
        ]
        for number, write in enumerate(writes, 1):
            await asyncio.sleep(0.005)  # the view's clock goes on
            await write()
            signs.append(await view.signs(PARTITION))
            assert signs[number] != signs[number - 1]

        last = signs[-1]
        assert (last.line, last.purged) == (LINE, LINE.through)
        soon = await time_of(view) + timedelta(seconds=5)
        assert last.settled(soon)
        assert not last.settled(began - timedelta(milliseconds=1))
        assert Signs().settled(datetime.min.replace(tzinfo=UTC))

    async def test_deleting_marks_takes_the_line_along(self, view: View) -> None:
        await view.draw_line(PARTITION, LINE)

        await view.delete_marks(PARTITION)

        assert await view.mark(key(1)) is None
        assert (await view.signs(PARTITION)).line is None
