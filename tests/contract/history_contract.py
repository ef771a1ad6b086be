"""What every configuration history does.

Source: 000 Decision (eventSourcing); ADR 0005.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroad.domain.configuration.history import ConfigurationEvent, Rollout, decide, fold
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import ConfigurationConflict
from postroad.ports.view import History, Recorded

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def event(
    history: tuple[ConfigurationEvent, ...], buckets: int, minutes: int = 60
) -> ConfigurationEvent:
    wanted = ViewConfiguration(timedelta(minutes=minutes), buckets)
    decided = decide(history, wanted, at=NOON, by="test", generation=buckets).event
    assert decided is not None
    return decided


FIRST = event((), 1)
SECOND = event((FIRST,), 2)
REFUSED = event((FIRST, SECOND), 3, minutes=25)


class HistoryContract:
    """Subclasses provide the fixture `history`: a new and empty one."""

    async def test_a_new_history_is_empty(self, history: History) -> None:
        assert await history.load() == Recorded((), None)

    async def test_events_are_loaded_equal_and_in_order(self, history: History) -> None:
        for each in (FIRST, SECOND, REFUSED):
            await history.append(each)

        assert (await history.load()).events == (FIRST, SECOND, REFUSED)

    async def test_another_event_under_a_taken_sequence_is_a_conflict(
        self, history: History
    ) -> None:
        await history.append(FIRST)
        await history.append(SECOND)

        with pytest.raises(ConfigurationConflict) as raised:
            await history.append(event((FIRST,), 7))

        assert raised.value.transient
        assert (await history.load()).events == (FIRST, SECOND)

    async def test_appending_the_same_event_again_changes_nothing(self, history: History) -> None:
        await history.append(FIRST)
        await history.append(FIRST)

        assert (await history.load()).events == (FIRST,)

    async def test_a_rollout_moves_from_what_was_seen(self, history: History) -> None:
        await history.append(FIRST)

        assert await history.advance(None, Rollout(1, 1))
        assert await history.advance(Rollout(1, 1), Rollout(2, 1))
        assert await history.advance(Rollout(2, 1), Rollout(2, 2))

        assert (await history.load()).rollout == Rollout(2, 2)

    async def test_a_rollout_that_another_process_moved_stays(self, history: History) -> None:
        await history.append(FIRST)
        await history.advance(None, Rollout(2, 1))

        assert not await history.advance(None, Rollout(1, 1))
        assert not await history.advance(Rollout(1, 1), Rollout(3, 1))

        assert (await history.load()).rollout == Rollout(2, 1)

    async def test_events_are_appended_beside_a_rollout(self, history: History) -> None:
        await history.append(FIRST)
        await history.advance(None, Rollout(1, 1))
        await history.append(SECOND)

        assert await history.load() == Recorded((FIRST, SECOND), Rollout(1, 1))

    async def test_a_history_may_begin_with_a_fold(self, history: History) -> None:
        """What an adoption brings back from a status."""
        begin = fold((FIRST, SECOND, REFUSED), entries=2)
        for each in begin:
            await history.append(each)

        assert (await history.load()).events == begin

    async def test_rivals_for_one_sequence_have_one_winner(self, history: History) -> None:
        rivals = [event((), buckets) for buckets in range(1, 9)]

        results = await asyncio.gather(
            *(history.append(each) for each in rivals), return_exceptions=True
        )

        winners = [each for each, result in zip(rivals, results, strict=True) if result is None]
        assert (await history.load()).events == tuple(winners)
        assert len(winners) == 1
        assert all(isinstance(each, ConfigurationConflict) for each in results if each)

    async def test_an_erased_history_is_empty_and_begins_anew(self, history: History) -> None:
        await history.append(FIRST)
        await history.append(SECOND)
        await history.advance(None, Rollout(2, 1))

        await history.erase()
        await history.erase()

        assert await history.load() == Recorded((), None)
        other = event((), 7)
        await history.append(other)
        assert await history.load() == Recorded((other,), None)
