"""What every `View` promises, whatever it is made of. Subclasses provide the fixture `store`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Protocol
from uuid import UUID

import pytest

import servers
from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import (
    DsnOptions,
    Envelope,
    Origin,
    Outcome,
    OutcomeKind,
    RecipientDsn,
)
from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    Entry,
    EntryKey,
    Mark,
    Partition,
    PurgeWatermark,
    Traits,
    UndecodableRow,
)
from postroad.domain.queues.ownership import Identity
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.identifiers import LAST, id_at
from postroad.domain.values.instants import agreed_time
from postroad.ports.marks import Counts
from postroad.ports.view import ClosedSlice, DeadLetter, Limits, Record, View, ViewStore

HOUR = timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
START = datetime(2026, 1, 1, 10, tzinfo=UTC)
NOW = START + timedelta(minutes=7, milliseconds=123)
PARTITION = Partition(START, 1)
NO_TRAITS = Traits(())


def key(number: int, partition: Partition = PARTITION) -> EntryKey:
    """The place of the entry with this number; numbers are in the order of ids."""
    identifier = id_at(partition.slice_start + timedelta(milliseconds=number), 0, number * 7919)
    return EntryKey(partition.slice_start, partition.bucket_id, identifier)


async def time_of(view: View) -> datetime:
    """Return the time that most hosts of a view agree on."""
    agreed = agreed_time(await view.server_times())
    assert agreed is not None
    return agreed.time


async def soon(view: View) -> datetime:
    """Return a moment after all that was written until now."""
    return await time_of(view) + timedelta(seconds=1)


def entry(number: int = 1, partition: Partition = PARTITION) -> Entry:
    """An entry with as little in it as can be."""
    return Entry(
        key=key(number, partition),
        mail_id=UUID(int=number),
        envelope=Envelope("a@example.org", ("b@example.net",)),
        blob_key=f"queue/2026/01/01/{number}",
        size_bytes=1000,
        accepted_at=NOW,
        enqueued_at=NOW,
    )


FULL = replace(
    entry(),
    envelope=Envelope(
        sender="Jürgen@exämple.org",
        recipients=("b@example.net", "a@example.com", '"odd name"@example.net'),
        name="newsletter 7",
        attributes={"campaign": "spring", "empty": "", "ünï": "cödé ✉"},
        origin=Origin("mx.example.org", "192.0.2.7", "ESMTPS"),
        dsn=DsnOptions(
            ret="HDRS",
            envid="QQ314159",
            recipients={
                "b@example.net": RecipientDsn(("SUCCESS", "FAILURE"), "rfc822;b@example.net"),
                "a@example.com": RecipientDsn(("NEVER",)),
            },
        ),
    ),
    size_bytes=5_000_000_000,
    due_at=NOW + HOUR,
    held=True,
    attempt=3,
    last_error="451 4.7.1 greylisted",
    previous=(key(2), key(3)),
)

REMOVED = Ending(EndingKind.REMOVED, NOW)
REPLACED = Ending(
    EndingKind.REPLACED,
    NOW,
    successor=key(9),
    change=Change(("b@example.net",), NOW + HOUR, True, 2, "450 try later", (key(2),)),
)


def followed(successor: EntryKey, previous: tuple[EntryKey, ...]) -> Ending:
    """Return the ending of a replacement whose successor is another one."""
    assert REPLACED.change is not None
    change = replace(REPLACED.change, previous=previous)
    return replace(REPLACED, successor=successor, change=change)


REPLACED_PLAINLY = Ending(
    EndingKind.REPLACED,
    NOW,
    successor=key(9),
    change=Change(("b@example.net",), None, False, 0, None),
)


OUTCOMES = AttemptOutcomes(
    (
        OutcomeCount("example.net", "mx.example.net", OutcomeKind.DELIVERED, 250, None, "", 2),
        OutcomeCount(
            "exämple.org", "", OutcomeKind.DEFERRED, 0, BounceClass.RATE, "<address>: 'später'", 1
        ),
    ),
    1.5,
)


class Spoil(Protocol):
    """Makes what is stored undecodable, as another release or a person may, and reads what no
    operation of the view returns."""

    LEFT: ClassVar[timedelta] = timedelta(hours=1)
    """How long a spoilt row still lives."""

    async def row(self, entry: Entry) -> None:
        """Let a row hold what no envelope can be, for `LEFT`."""
        ...

    async def stored(self, entry: Entry) -> object:
        """Return what is really stored of a row."""
        ...

    async def mark(self, key: EntryKey) -> None:
        """Let a mark hold an ending that no release knows."""
        ...

    async def outcomes(self, key: EntryKey) -> AttemptOutcomes | None:
        """Return what a mark keeps of an attempt."""
        ...

    async def dead_letter(self, dead_letter: DeadLetter) -> None:
        """Let a dead letter hold what no envelope can be."""
        ...


class ViewContract:
    """The suite."""

    @pytest.fixture
    def spoil(self) -> Spoil:
        """What makes stored things undecodable, behind the view's back."""
        raise NotImplementedError

    @pytest.fixture
    def queue(self) -> str:
        """The name of a queue that no other test uses."""
        return f"test.{servers.fresh()}"

    @pytest.fixture
    def view(self, store: ViewStore, queue: str) -> View:
        return store.view(queue)

    # Rows

    @pytest.mark.parametrize(
        "wanted",
        [
            entry(),
            FULL,
            replace(entry(), envelope=Envelope(None, ("postmaster",))),
            replace(entry(), envelope=Envelope("a@b.c", ("b@c.d",), dsn=DsnOptions())),
            replace(entry(), envelope=Envelope("a@b.c", ("b@c.d",), priority=-100)),
            replace(entry(), envelope=Envelope("a@b.c", ("b@c.d",), origin=Origin(host="mx"))),
        ],
        ids=[
            "plain",
            "full",
            "null reverse-path",
            "DSN without values",
            "priority",
            "half an origin",
        ],
    )
    async def test_a_row_comes_back_as_it_was_inserted(self, view: View, wanted: Entry) -> None:
        await view.insert(wanted)

        assert await view.row(wanted.key) == wanted

    async def test_a_row_that_was_never_inserted_is_none(self, view: View) -> None:
        assert await view.row(key(1)) is None

    async def test_row_that_cannot_be_decoded_fails_none_beside_it(
        self, view: View, spoil: Spoil
    ) -> None:
        for number in (1, 2, 3):
            await view.insert(entry(number))
        await spoil.row(entry(2))

        found = [each async for each in view.rows(PARTITION)]

        assert [type(each) for each in found] == [Entry, UndecodableRow, Entry]
        assert [each.key for each in found] == [key(1), key(2), key(3)]
        assert found[1] == await view.row(key(2))
        assert found[1].mail_id == entry(2).mail_id

    async def test_row_that_cannot_be_decoded_is_counted_and_its_bytes_are_known(
        self, view: View, spoil: Spoil
    ) -> None:
        await view.insert(FULL)
        await spoil.row(FULL)

        assert await view.count_rows(PARTITION, NOW) == Counts(1, 0, 1)
        assert [each async for each in view.blob_keys(PARTITION, LAST)] == [
            (FULL.enqueue_id, FULL.blob_key)
        ]

    async def test_row_that_cannot_be_decoded_is_renewed_as_it_is_stored(
        self, view: View, spoil: Spoil
    ) -> None:
        await view.insert(FULL)
        await spoil.row(FULL)
        before = await spoil.stored(FULL)

        await view.renew_row(FULL.key)

        [renewed] = [each async for each in view.rows(PARTITION)]
        assert renewed.remaining is not None
        assert renewed.remaining > Spoil.LEFT
        assert await spoil.stored(FULL) == before

    async def test_row_that_is_gone_is_not_renewed(self, view: View) -> None:
        await view.renew_row(key(1))

        assert await view.row(key(1)) is None

    async def test_ending_that_cannot_be_decoded_is_unknown_and_fails_no_mark_beside_it(
        self, view: View, spoil: Spoil
    ) -> None:
        for number in (1, 2, 3):
            await view.end(key(number), REMOVED, NO_TRAITS)
        await spoil.mark(key(2))

        found = [(each, mark.is_unknown) async for each, mark in view.marks(PARTITION)]

        names = [key(number).enqueue_id for number in (1, 2, 3)]
        assert found == list(zip(names, [False, True, False], strict=True))
        unknown = await view.mark(key(2))
        assert unknown is not None
        assert unknown.is_unknown
        assert await view.end(key(2), REMOVED, NO_TRAITS) == unknown

    async def test_dead_letter_that_cannot_be_decoded_fails_none_beside_it(
        self, view: View, spoil: Spoil
    ) -> None:
        dead_letters = [
            DeadLetter(each.enqueue_id, "2026-01", NOW, "no", each)
            for each in map(entry, (1, 2, 3))
        ]
        for dead_letter in dead_letters:
            await view.write_dead_letter(dead_letter)
        await spoil.dead_letter(dead_letters[1])

        found = [each async for each in view.dead_letters()]

        assert [each.is_decoded for each in found] == [True, False, True]
        assert (found[1].enqueue_id, found[1].reason, found[1].entry) == (
            dead_letters[1].enqueue_id,
            "no",
            None,
        )

    async def test_inserting_a_row_again_changes_nothing(self, view: View) -> None:
        await view.insert(FULL)
        await view.insert(FULL)

        assert await view.row(FULL.key) == FULL
        assert (await view.count_rows(PARTITION, NOW)).total == 1

    async def test_rows_come_in_the_order_of_their_ids_across_pages(self, view: View) -> None:
        wanted = [entry(number) for number in range(1, 701)]
        await asyncio.gather(*(view.insert(each) for each in reversed(wanted)))

        assert [each async for each in view.rows(PARTITION)] == wanted

    async def test_rows_that_are_listed_say_how_long_they_live(self, view: View) -> None:
        await view.insert(FULL)

        (found,) = [row async for row in view.rows(FULL.key.partition)]

        assert found == FULL
        assert found.remaining is not None
        assert timedelta(days=13) < found.remaining <= timedelta(days=14)

    async def test_large_rows_can_be_inserted_at_the_same_time(self, view: View) -> None:
        recipients = tuple(f"recipient{number}@a-long-name.example" for number in range(3000))
        domains = tuple(f"destination{number}.example" for number in range(3000))
        wanted = [
            replace(entry(number), envelope=Envelope("a@example.org", recipients))
            for number in range(1, 51)
        ]

        await asyncio.gather(*(view.insert(each) for each in wanted))
        await asyncio.gather(
            *(view.mark_delivered(each.key, NOW, Traits(domains)) for each in wanted)
        )

        assert [each async for each in view.rows(PARTITION)] == wanted
        assert (await view.count_marks(PARTITION, NOW)).total == 50

    async def test_rows_can_be_continued_after_an_id(self, view: View) -> None:
        for number in range(1, 6):
            await view.insert(entry(number))

        found = [each async for each in view.rows(PARTITION, after=key(3).enqueue_id)]

        assert found == [entry(4), entry(5)]

    async def test_a_partition_holds_its_own_rows_only(self, view: View) -> None:
        others = [Partition(START, 2), Partition(START + HOUR, 1)]
        for partition in (PARTITION, *others):
            await view.insert(entry(1, partition))

        assert [each async for each in view.rows(PARTITION)] == [entry(1)]

    async def test_queues_do_not_see_each_other(self, store: ViewStore, view: View) -> None:
        other = store.view(f"test.{servers.fresh()}")
        await view.insert(entry())
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.advance(browse_start=START)

        assert await other.row(key(1)) is None
        assert await other.mark(key(1)) is None
        assert await other.limits() == Limits(None, None)

    async def test_rows_are_counted_by_what_they_wait_for(self, view: View) -> None:
        for number, due_at, held in (
            (1, None, False),
            (2, NOW - HOUR, False),
            (3, NOW + HOUR, False),
            (4, NOW + HOUR, True),
            (5, None, True),
        ):
            await view.insert(replace(entry(number), due_at=due_at, held=held))

        assert await view.count_rows(PARTITION, NOW) == Counts(total=5, delayed=1, held=2)
        assert await view.count_rows(PARTITION, NOW + 2 * HOUR) == Counts(5, 0, 2)
        assert await view.count_rows(Partition(START, 7), NOW) == Counts(0, 0, 0)

    async def test_of_many_partitions_those_with_rows_are_named(self, view: View) -> None:
        """Whatever became of their entries; and nothing but what was asked about."""
        starts = [START + number * HOUR for number in range(40)]
        wanted = {Partition(starts[0], 1), Partition(starts[7], 0), Partition(starts[7], 2)}
        others = {Partition(starts[8], 3), Partition(START + 40 * HOUR, 0)}
        for partition in wanted | others:
            for number in range(3):
                await view.insert(entry(number, partition))
        await view.mark_delivered(key(0, Partition(starts[0], 1)), NOW, NO_TRAITS)

        assert set(await view.occupied(starts, 3)) == wanted
        assert set(await view.occupied(starts[:7], 1)) == set()
        await view.delete_rows(Partition(starts[0], 1), await soon(view))
        assert set(await view.occupied(starts[:1], 3)) == set()

    async def test_deleting_rows_empties_the_partition_only(self, view: View) -> None:
        other = Partition(START, 2)
        await view.insert(entry(1))
        await view.insert(entry(1, other))
        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        await view.delete_rows(PARTITION, await soon(view))
        await view.delete_rows(PARTITION, await soon(view))

        assert [each async for each in view.rows(PARTITION)] == []
        assert [each async for each in view.rows(other)] == [entry(1, other)]
        assert await view.mark(key(1)) == Mark(delivered_at=NOW)

    # Marks

    async def test_an_entry_without_an_end_has_no_mark(self, view: View) -> None:
        await view.insert(entry())

        assert await view.mark(key(1)) is None

    async def test_a_delivery_is_marked_and_may_be_marked_again(self, view: View) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        mark = await view.mark(key(1))

        assert mark == Mark(delivered_at=NOW)
        assert mark.is_final

    @pytest.mark.parametrize("ending", [REMOVED, REPLACED, REPLACED_PLAINLY])
    async def test_an_ending_comes_back_as_it_was_written(self, view: View, ending: Ending) -> None:
        assert await view.end(key(1), ending, NO_TRAITS) is None

        assert await view.mark(key(1)) == Mark(ending=ending)

    @pytest.mark.parametrize("kind", [kind for kind in EndingKind if kind != EndingKind.REPLACED])
    async def test_every_kind_of_ending_but_replacement_is_final(
        self, view: View, kind: EndingKind
    ) -> None:
        await view.end(key(1), Ending(kind, NOW), NO_TRAITS)

        mark = await view.mark(key(1))

        assert mark == Mark(ending=Ending(kind, NOW))
        assert mark.is_final

    async def test_a_mark_keeps_the_outcomes_of_the_attempt_that_it_ends(
        self, view: View, spoil: Spoil
    ) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS, OUTCOMES)
        for number, ending in ((2, REPLACED), (3, REMOVED)):
            assert await view.end(key(number), ending, NO_TRAITS, OUTCOMES) is None

        assert [await spoil.outcomes(key(number)) for number in (1, 2, 3)] == [OUTCOMES] * 3
        marks = [mark async for _, mark in view.marks(PARTITION)]
        assert marks == [Mark(delivered_at=NOW), Mark(ending=REPLACED), Mark(ending=REMOVED)]

    async def test_a_mark_without_outcomes_keeps_none_and_leaves_those_that_are_there(
        self, view: View, spoil: Spoil
    ) -> None:
        await view.end(key(1), REMOVED, NO_TRAITS)
        assert await spoil.outcomes(key(1)) is None

        await view.mark_delivered(key(1), NOW, NO_TRAITS, OUTCOMES)
        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        assert await spoil.outcomes(key(1)) == OUTCOMES

    async def test_outcomes_of_an_ending_that_came_second_are_not_kept(
        self, view: View, spoil: Spoil
    ) -> None:
        await view.end(key(1), REMOVED, NO_TRAITS)

        assert await view.end(key(1), REPLACED, NO_TRAITS, OUTCOMES) == Mark(ending=REMOVED)

        assert await spoil.outcomes(key(1)) is None

    async def test_marks_with_and_without_outcomes_are_written_at_the_same_time(
        self, view: View, spoil: Spoil
    ) -> None:
        kept = {number: OUTCOMES if number % 2 else None for number in range(1, 13)}
        await asyncio.gather(
            *(
                view.mark_delivered(key(number), NOW, NO_TRAITS, outcomes)
                if number <= 6
                else view.end(key(number), REMOVED, NO_TRAITS, outcomes)
                for number, outcomes in kept.items()
            )
        )

        assert {number: await spoil.outcomes(key(number)) for number in kept} == kept
        await view.delete_marks(PARTITION)
        assert await spoil.outcomes(key(1)) is None

    async def test_the_first_ending_wins_and_is_shown_to_the_second(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)

        assert await view.end(key(1), REMOVED, NO_TRAITS) == Mark(ending=REPLACED)
        assert await view.mark(key(1)) == Mark(ending=REPLACED)

    async def test_an_ending_that_is_repeated_is_recognised_as_ones_own(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)

        assert await view.end(key(1), REPLACED, NO_TRAITS) == Mark(ending=REPLACED)

    async def test_of_many_endings_at_once_one_wins(self, view: View) -> None:
        kinds = [EndingKind.REMOVED, EndingKind.REJECTED, EndingKind.EXPIRED] * 4

        answers = await asyncio.gather(
            *(view.end(key(1), Ending(kind, NOW), NO_TRAITS) for kind in kinds)
        )

        winners = [kind for kind, found in zip(kinds, answers, strict=True) if found is None]
        assert len(winners) == 1
        winner = Mark(ending=Ending(winners[0], NOW))
        assert {found for found in answers if found is not None} == {winner}
        assert await view.mark(key(1)) == winner

    async def test_a_delivered_entry_takes_no_ending(self, view: View) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        assert await view.end(key(1), REMOVED, NO_TRAITS) == Mark(delivered_at=NOW)
        assert await view.mark(key(1)) == Mark(delivered_at=NOW)

    async def test_endings_of_a_partition_are_written_together(self, view: View) -> None:
        keys = [key(number) for number in range(1, 60)]

        assert await view.end_together([(each, REMOVED, NO_TRAITS) for each in keys])

        marks = {found async for found, _ in view.marks(PARTITION)}
        assert marks == {each.enqueue_id for each in keys}
        assert await view.mark(key(59)) == Mark(ending=REMOVED)
        assert await view.end(key(1), REPLACED, NO_TRAITS) == Mark(ending=REMOVED)

    async def test_endings_are_written_together_or_not_at_all(self, view: View) -> None:
        await view.mark_delivered(key(2), NOW, NO_TRAITS)
        await view.end(key(7), REPLACED, NO_TRAITS)

        for marked in (2, 7):
            ended = [(key(number), REMOVED, NO_TRAITS) for number in (1, marked, 3)]
            assert not await view.end_together(ended)

        assert await view.mark(key(1)) is None
        assert await view.mark(key(2)) == Mark(delivered_at=NOW)
        assert await view.mark(key(3)) is None

    async def test_of_endings_written_together_and_alone_one_wins(self, view: View) -> None:
        together = [(key(number), REMOVED, NO_TRAITS) for number in range(1, 9)]
        expired = Ending(EndingKind.EXPIRED, NOW)

        were_written, alone = await asyncio.gather(
            view.end_together(together), view.end(key(5), expired, NO_TRAITS)
        )

        assert were_written == (alone is not None)
        assert await view.mark(key(5)) == Mark(ending=REMOVED if were_written else expired)
        assert await view.mark(key(1)) == (Mark(ending=REMOVED) if were_written else None)

    async def test_marks_read_at_the_same_time_are_those_of_their_keys(self, view: View) -> None:
        elsewhere = key(1, Partition(START, 2))
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.end(key(2), REPLACED, NO_TRAITS)
        await view.end(elsewhere, REMOVED, NO_TRAITS)

        asked = [key(3), key(1), key(2), elsewhere, key(1)]
        found = await asyncio.gather(*(view.mark(each) for each in asked))

        delivered = Mark(delivered_at=NOW)
        assert found == [
            *(None, delivered, Mark(ending=REPLACED)),
            *(Mark(ending=REMOVED), delivered),
        ]

    async def test_writes_at_the_same_time_each_learn_what_became_of_them(self, view: View) -> None:
        """Those that are refused keep none of the others from being carried out."""
        await view.end(key(1), REMOVED, NO_TRAITS)
        await view.mark_delivered(key(2), NOW, NO_TRAITS)
        for number in (3, 4, 5):
            await view.end(key(number), REPLACED, NO_TRAITS)
        expired = Ending(EndingKind.EXPIRED, NOW)

        ended, others = await asyncio.gather(
            asyncio.gather(
                *(view.end(key(number), expired, NO_TRAITS) for number in (1, 2, 3, 6, 7, 6))
            ),
            asyncio.gather(
                view.mark_published(key(3), key(9).enqueue_id),
                view.mark_published(key(4), key(8).enqueue_id),
                view.change_successor(key(5), key(9).enqueue_id, key(10), (key(9),)),
                view.change_successor(key(4), key(8).enqueue_id, key(10), (key(8),)),
                view.mark_published(key(11), key(9).enqueue_id),
            ),
        )

        assert [None if each is None else each.ending for each in ended] in (
            [REMOVED, None, REPLACED, None, None, expired],
            [REMOVED, None, REPLACED, expired, None, None],
        )
        assert ended[1] == Mark(NOW)
        assert list(others) == [True, False, True, False, False]
        assert await view.mark(key(6)) == await view.mark(key(7)) == Mark(ending=expired)
        changed = await view.mark(key(5))
        assert changed is not None
        assert changed.ending == followed(key(10), (key(9),))

    async def test_of_endings_by_two_processes_at_the_same_time_one_wins_each(
        self, store: ViewStore, queue: str
    ) -> None:
        one, other = store.view(queue), store.view(queue)
        expired = Ending(EndingKind.EXPIRED, NOW)
        numbers = range(40)

        answers = await asyncio.gather(
            *(one.end(key(number), REMOVED, NO_TRAITS) for number in numbers),
            *(other.end(key(number), expired, NO_TRAITS) for number in numbers),
        )

        for mine, theirs in zip(answers[:40], answers[40:], strict=True):
            assert sorted([mine is None, theirs is None]) == [False, True]
            assert (mine or theirs) == Mark(ending=expired if theirs is None else REMOVED)

    async def test_a_delivery_is_marked_beside_an_ending(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)
        await view.mark_delivered(key(1), NOW, NO_TRAITS)

        assert await view.mark(key(1)) == Mark(delivered_at=NOW, ending=REPLACED)

    async def test_a_replacement_is_final_once_its_successor_is_published(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)

        assert await view.mark_published(key(1), key(9).enqueue_id)
        assert await view.mark_published(key(1), key(9).enqueue_id)

        mark = await view.mark(key(1))
        assert mark == Mark(ending=REPLACED, published=True)
        assert mark.is_final

    async def test_publishing_a_successor_that_is_no_more_is_refused(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)

        assert not await view.mark_published(key(1), key(8).enqueue_id)
        assert not await view.mark_published(key(2), key(9).enqueue_id)

        assert await view.mark(key(1)) == Mark(ending=REPLACED)
        assert await view.mark(key(2)) is None

    async def test_an_unfinished_replacement_can_get_another_successor(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)
        later = key(5, Partition(START + HOUR, 0))

        assert await view.change_successor(key(1), key(9).enqueue_id, later, (key(9),))
        assert not await view.change_successor(key(1), key(9).enqueue_id, key(8), (key(9),))
        assert not await view.mark_published(key(1), key(9).enqueue_id)

        assert await view.mark(key(1)) == Mark(ending=followed(later, (key(9),)))

    async def test_a_published_replacement_keeps_its_successor(self, view: View) -> None:
        await view.end(key(1), REPLACED, NO_TRAITS)
        await view.mark_published(key(1), key(9).enqueue_id)

        assert not await view.change_successor(key(1), key(9).enqueue_id, key(8), (key(9),))

        assert await view.mark(key(1)) == Mark(ending=REPLACED, published=True)

    async def test_marks_come_in_the_order_of_ids_across_pages(self, view: View) -> None:
        numbers = range(1, 1201)
        await asyncio.gather(
            *(view.mark_delivered(key(number), NOW, NO_TRAITS) for number in reversed(numbers))
        )

        found = [each async for each in view.marks(PARTITION)]
        rest = [each async for each in view.marks(PARTITION, after=key(1198).enqueue_id)]

        delivered = Mark(delivered_at=NOW)
        assert found == [(key(number).enqueue_id, delivered) for number in numbers]
        assert rest == [(key(number).enqueue_id, delivered) for number in (1199, 1200)]

    async def test_marks_are_counted_by_the_traits_of_their_rows(self, view: View) -> None:
        later = Traits(("example.net",), NOW + HOUR, False)
        held = Traits(("example.net",), NOW + HOUR, True)
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.mark_delivered(key(2), NOW, later)
        await view.end(key(3), REMOVED, held)
        await view.end(key(4), REPLACED, NO_TRAITS)

        assert await view.count_marks(PARTITION, NOW) == Counts(total=4, delayed=1, held=1)

    async def test_marks_that_keep_the_outcomes_of_an_attempt_are_counted(self, view: View) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS, OUTCOMES)
        await view.end(key(2), REPLACED, NO_TRAITS, OUTCOMES)
        await view.end(key(3), REPLACED, NO_TRAITS)
        await view.mark_delivered(key(4), NOW, NO_TRAITS)

        assert await view.count_marks(PARTITION, NOW) == Counts(4, 0, 0, attempted=2)
        later = await view.count_marks(PARTITION, NOW, key(1).enqueue_id)
        assert later == Counts(3, 0, 0, attempted=1)

    async def test_marks_of_withdrawn_entries_are_found_where_their_rows_are_not(
        self, view: View
    ) -> None:
        withdrawn = Ending(EndingKind.WITHDRAWN, NOW)
        later = Traits(("example.net",), NOW + HOUR, True)
        await view.insert(entry(1))
        for number, ending in ((1, withdrawn), (2, withdrawn), (3, withdrawn), (4, REMOVED)):
            await view.end(key(number), ending, later)

        found = [each async for each in view.withdrawn_without_rows(PARTITION)]
        rest = view.withdrawn_without_rows(PARTITION, after=key(2).enqueue_id)

        assert found == [later, later]
        assert [each async for each in rest] == [later]

    async def test_replacements_under_way_are_found(self, view: View) -> None:
        later = Traits(("example.net",), NOW + HOUR, True)
        for number in (1, 2, 3):
            await view.end(key(number), REPLACED, later)
        await view.end(key(4), REMOVED, NO_TRAITS)
        await view.mark_delivered(key(2), NOW, later)
        assert REPLACED.successor is not None
        await view.mark_published(key(3), REPLACED.successor.enqueue_id)

        found = [each async for each in view.unfinished(PARTITION)]
        rest = view.unfinished(PARTITION, after=key(1).enqueue_id)

        delivered = Mark(delivered_at=NOW, ending=REPLACED)
        assert found == [(Mark(ending=REPLACED), later), (delivered, later)]
        assert [each async for each in rest] == [(delivered, later)]

    async def test_deleting_marks_empties_the_partition_only(self, view: View) -> None:
        elsewhere = key(1, Partition(START, 2))
        await view.insert(entry())
        for each in (key(1), elsewhere):
            await view.mark_delivered(each, NOW, NO_TRAITS)

        await view.delete_marks(PARTITION)

        assert await view.mark(key(1)) is None
        assert await view.mark(elsewhere) == Mark(delivered_at=NOW)
        assert await view.row(key(1)) == entry()

    # Claims and delivery records

    async def test_a_claim_has_one_owner_until_it_is_released(self, view: View) -> None:
        entry_id, first, second = UUID(int=1), UUID(int=2), UUID(int=3)

        assert await view.claim(entry_id, first, HOUR)
        assert await view.claim(entry_id, first, HOUR)
        assert not await view.claim(entry_id, second, HOUR)
        await view.release_claim(entry_id, second)
        assert not await view.claim(entry_id, second, HOUR)
        await view.release_claim(entry_id, first)
        await view.release_claim(entry_id, first)
        assert await view.claim(entry_id, second, HOUR)

    async def test_of_many_who_claim_at_once_one_has_it(self, view: View) -> None:
        owners = [UUID(int=number) for number in range(1, 9)]

        answers = await asyncio.gather(*(view.claim(UUID(int=99), owner, HOUR) for owner in owners))

        assert sum(answers) == 1

    async def test_records_are_kept_by_recipient_and_the_last_outcome_wins(
        self, view: View
    ) -> None:
        mail_id = UUID(int=5)
        first = Record("b@example.net", Outcome.failed("550 5.1.1 unknown"), NOW)
        last = Record("b@example.net", Outcome.delivered("250 ok"), NOW + HOUR)
        other = Record("c@example.net", Outcome.deferred(), NOW)
        await view.record(mail_id, (first, other))
        await view.record(mail_id, (last,))

        assert await view.records(mail_id) == {"b@example.net": last, "c@example.net": other}
        assert await view.records(UUID(int=6)) == {}

    # Limits and slices

    async def test_limits_only_move_forward(self, view: View) -> None:
        assert await view.limits() == Limits(None, None)

        await view.advance(browse_start=START + HOUR)
        await view.advance(browse_start=START, content_start=START)
        await view.advance(content_start=START - HOUR)

        assert await view.limits() == Limits(START + HOUR, START)

    async def test_the_limit_of_the_archive_only_moves_forward_and_moves_no_other(
        self, view: View
    ) -> None:
        await view.advance(browse_start=START, content_start=START)

        await view.advance(archived_through=START + HOUR)
        await view.advance(archived_through=START)

        assert await view.limits() == Limits(START, START, START + HOUR)

    async def test_a_view_has_an_identity_of_its_own_once_it_has_limits(
        self, store: ViewStore, view: View
    ) -> None:
        other = store.view(f"test.{servers.fresh()}")
        assert await view.identity() == Identity(set(), None)

        await view.advance(browse_start=START)
        await other.advance(browse_start=START)
        mine, theirs = await view.identity(), await other.identity()
        await view.advance(browse_start=START + HOUR, content_start=START)

        assert len(mine.incarnations) == 1
        assert not mine.incarnations & theirs.incarnations
        assert await view.identity() == mine
        assert mine.as_of is None

    async def test_as_of_only_moves_forward_and_for_one_view(
        self, store: ViewStore, view: View
    ) -> None:
        other = store.view(f"test.{servers.fresh()}")
        for each in (view, other):
            await each.advance(browse_start=START)
        (incarnation,) = (await view.identity()).incarnations

        await view.raise_as_of(incarnation, NOW)
        await view.raise_as_of(incarnation, NOW - HOUR)
        assert await view.identity() == Identity({incarnation}, NOW)
        await view.raise_as_of(incarnation, NOW + MILLISECOND)

        assert (await view.identity()).as_of == NOW + MILLISECOND
        assert (await other.identity()).as_of is None

    async def test_a_queue_made_anew_is_another_view(self, store: ViewStore, view: View) -> None:
        name = f"test.{servers.fresh()}"
        old, new = store.view(name), store.view(name)
        await old.advance(browse_start=START)
        (incarnation,) = (await old.identity()).incarnations
        await old.raise_as_of(incarnation, NOW)
        await old.erase()
        assert await old.identity() == Identity(set(), None)

        await new.advance(browse_start=START)
        await old.raise_as_of(incarnation, NOW)  # by a process that was paused

        found = await new.identity()
        assert incarnation not in found.incarnations
        assert found.as_of is None

    async def test_the_first_close_of_a_slice_stands(self, view: View) -> None:
        first = ClosedSlice(START, HOUR, {0: 3, 2: 1})
        second = ClosedSlice(START, HOUR, {0: 9})

        assert await view.close_slice(first) == first
        assert await view.close_slice(second) == first

        assert [each async for each in view.closed_slices(START)] == [first]

    async def test_closed_slices_come_in_order_from_a_slice_on(self, view: View) -> None:
        wanted = [ClosedSlice(START + number * HOUR, HOUR, {}) for number in range(4)]
        for each in reversed(wanted):
            await view.close_slice(each)

        assert [each async for each in view.closed_slices(START + HOUR)] == wanted[1:]

    async def test_a_slice_is_drained_then_forgotten(self, view: View) -> None:
        closed = ClosedSlice(START, HOUR, {0: 3})
        await view.close_slice(closed)

        await view.mark_drained(START)
        await view.mark_drained(START)
        drained = [each async for each in view.closed_slices(START)]
        await view.forget_slice(START)
        await view.forget_slice(START)
        await view.mark_drained(START)

        assert drained == [replace(closed, drained=True)]
        assert [each async for each in view.closed_slices(START)] == []

    async def test_rows_that_come_later_are_not_deleted(self, view: View) -> None:
        await view.insert(entry(1))
        before = await time_of(view) - timedelta(minutes=1)

        await view.delete_rows(PARTITION, before)
        assert await view.row(key(1)) == entry(1)

        await view.delete_rows(PARTITION, await time_of(view) + timedelta(milliseconds=5))
        await asyncio.sleep(0.02)  # the view's clock goes on
        await view.insert(entry(2))
        assert await view.row(key(1)) is None
        assert await view.row(key(2)) == entry(2)

    # Dead letters

    async def test_dead_letters_come_oldest_month_first(self, view: View) -> None:
        full = DeadLetter(FULL.enqueue_id, "2026-01", NOW, "550 no", FULL)
        unreadable = DeadLetter(key(2).enqueue_id, "2026-01", NOW, "unreadable", None, b"\xff\x00")
        older = DeadLetter(key(3).enqueue_id, "2025-12", NOW, "too old", entry(3))
        for dead_letter in (unreadable, full, older, full):
            await view.write_dead_letter(dead_letter)

        assert [each async for each in view.dead_letters()] == [older, full, unreadable]
        assert await view.count_dead_letters() == 3

    async def test_a_dead_letter_remembers_the_entry_that_a_requeue_gives_it(
        self, view: View
    ) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)

        await view.write_dead_letter(replace(dead_letter, requeued_as=key(4)))

        assert [each async for each in view.dead_letters()] == [
            replace(dead_letter, requeued_as=key(4))
        ]

    async def test_a_dead_letter_keeps_the_message_of_its_new_entry_beside_its_own(
        self, view: View
    ) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)
        queued = replace(dead_letter, requeued_as=key(4), body=b"the message")

        await view.write_dead_letter(queued)

        assert await view.dead_letter("2026-01", key(1).enqueue_id) == queued

    async def test_a_dead_letter_that_was_read_is_written_anew(self, view: View) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)

        for changed in (key(4), key(5)):
            read = await view.dead_letter("2026-01", key(1).enqueue_id)
            assert read is not None
            await view.rewrite_dead_letter(replace(read, requeued_as=changed))

            assert [each async for each in view.dead_letters()] == [
                replace(dead_letter, requeued_as=changed)
            ]

    async def test_a_dead_letter_that_was_written_since_it_was_read_is_not_written_anew(
        self, view: View
    ) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)
        read = await view.dead_letter("2026-01", key(1).enqueue_id)
        assert read is not None
        await view.write_dead_letter(replace(dead_letter, requeued_as=key(4)))

        await view.rewrite_dead_letter(replace(read, requeued_as=key(5)))

        assert [each async for each in view.dead_letters()] == [
            replace(dead_letter, requeued_as=key(4))
        ]

    @pytest.mark.parametrize("is_changed", [False, True])
    async def test_a_dead_letter_that_was_deleted_since_it_was_read_stays_deleted(
        self, view: View, is_changed: bool
    ) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)
        read = await view.dead_letter("2026-01", key(1).enqueue_id)
        assert read is not None
        if is_changed:
            await view.rewrite_dead_letter(replace(read, requeued_as=key(4)))
        await view.delete_dead_letter(dead_letter)

        await view.rewrite_dead_letter(replace(read, requeued_as=key(5)))

        assert [each async for each in view.dead_letters()] == []

    async def test_one_dead_letter_is_found_by_its_month_and_id(self, view: View) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "no", entry())
        await view.write_dead_letter(dead_letter)

        assert await view.dead_letter("2026-01", key(1).enqueue_id) == dead_letter
        assert await view.dead_letter("2026-02", key(1).enqueue_id) is None
        assert await view.dead_letter("2026-01", key(2).enqueue_id) is None

    async def test_an_unburied_dead_letter_is_gone(self, view: View) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)

        await view.delete_dead_letter(dead_letter)
        await view.delete_dead_letter(dead_letter)

        assert [each async for each in view.dead_letters()] == []
        assert await view.count_dead_letters() == 0

    async def test_a_dead_letter_that_was_deleted_is_not_believed_when_it_is_there_again(
        self, view: View
    ) -> None:
        """As a server brings it back that missed the deletion."""
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)
        await view.delete_dead_letter(dead_letter)

        await view.write_dead_letter(dead_letter)

        assert [each async for each in view.dead_letters()] == [dead_letter]
        assert await view.dead_letter("2026-01", key(1).enqueue_id) is None
        await view.delete_dead_letter(dead_letter)
        assert await view.count_dead_letters() == 0

    async def test_a_message_that_was_no_reference_can_be_buried_again(self, view: View) -> None:
        """It is handed back to the broker, and may come again."""
        dead_letter = DeadLetter(key(2).enqueue_id, "2026-01", NOW, "unreadable", None, b"\xff\x00")
        await view.write_dead_letter(dead_letter)
        await view.delete_dead_letter(dead_letter)

        await view.write_dead_letter(dead_letter)

        assert await view.dead_letter("2026-01", key(2).enqueue_id) == dead_letter

    async def test_a_dead_letter_that_was_not_read_is_not_written_anew(self, view: View) -> None:
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", NOW, "550 no", entry())
        await view.write_dead_letter(dead_letter)

        with pytest.raises(ValueError, match="as `dead_letter` returned it"):
            await view.rewrite_dead_letter(dead_letter)

    # The whole

    async def test_each_host_tells_its_time(self, view: View) -> None:
        before = datetime.now(UTC)
        readings = await view.server_times()
        after = datetime.now(UTC)

        assert readings.hosts == len(readings.times) == len({each.host for each in readings.times})
        for each in readings.times:
            assert timedelta(0) <= each.doubt < timedelta(seconds=2)
            assert before - each.doubt <= each.time + timedelta(milliseconds=2)
            assert each.time <= after + each.doubt + timedelta(milliseconds=2)

    async def test_every_host_that_tells_its_time_is_counted(self, view: View) -> None:
        readings = await view.server_times()

        assert await view.hosts() == readings.hosts

    async def test_erasing_leaves_nothing_of_the_queue_and_all_of_others(
        self, store: ViewStore, view: View
    ) -> None:
        other = store.view(f"test.{servers.fresh()}")
        for each in (view, other):
            await _fill(each)

        for _ in range(2):
            await erase(view)

        assert await _census(view) == (0, 0, {}, Limits(None, None), 0, 0)
        assert await _census(other) == (2, 2, RECORDS, Limits(START, START), 1, 1)

    async def test_an_erasure_that_stops_goes_on_behind_what_it_erased(self, view: View) -> None:
        numbers = range(1, 8)
        for number in numbers:
            await view.insert(entry(number))

        counts = [each async for each in view.erase_slices([START], 2)]

        assert sum(counts) == len(numbers)
        assert [each async for each in view.erase_slices([START], 2)] == []
        assert (await view.count_rows(PARTITION, NOW)).total == 0

    async def test_erasing_slices_leaves_other_slices_and_buckets(self, view: View) -> None:
        kept = Partition(START, 2), Partition(START + HOUR, 1)
        for each in (PARTITION, *kept):
            await view.insert(entry(1, each))
            await view.mark_delivered(key(1, each), NOW, NO_TRAITS)

        assert sum([each async for each in view.erase_slices([START], 2)]) == 1

        for each, count in ((PARTITION, 0), (kept[0], 1), (kept[1], 1)):
            assert (await view.count_rows(each, NOW)).total == count
            assert (await view.count_marks(each, NOW)).total == count

    async def test_marks_without_rows_and_watermarks_are_erased(self, view: View) -> None:
        await view.mark_delivered(key(1), NOW, NO_TRAITS)
        await view.set_watermark(Partition(START, 0), PurgeWatermark(key(5).enqueue_id, NOW))

        assert sum([each async for each in view.erase_slices([START], 2)]) == 0

        assert await view.mark(key(1)) is None
        assert (await view.version(Partition(START, 0))).watermark is None

    async def test_delivery_records_go_with_the_rows_and_dead_letters_of_their_mails(
        self, view: View
    ) -> None:
        buried = DeadLetter(key(2).enqueue_id, "2026-01", NOW, "no", entry(2))
        await view.insert(entry(1))
        await view.write_dead_letter(buried)
        for number in (1, 2, 3):
            await view.record(UUID(int=number), tuple(RECORDS.values()))

        assert sum([each async for each in view.erase_slices([START], 2)]) == 1
        assert sum([each async for each in view.erase_dead_letters()]) == 1

        found = [await view.records(UUID(int=number)) for number in (1, 2, 3)]
        assert found == [{}, {}, RECORDS]
        assert await view.dead_letter("2026-01", buried.enqueue_id) is None

    async def test_the_limits_of_a_queue_made_anew_may_be_earlier(
        self, store: ViewStore, view: View
    ) -> None:
        name = f"test.{servers.fresh()}"
        old, new = store.view(name), store.view(name)
        await old.advance(browse_start=START + HOUR, content_start=START + HOUR)
        await old.erase()

        await new.advance(browse_start=START, content_start=START)

        assert await old.limits() == await new.limits() == Limits(START, START)


RECORDS = {"b@example.net": Record("b@example.net", Outcome.delivered(), NOW)}


async def _fill(view: View) -> None:
    for partition in (PARTITION, Partition(START + HOUR, 0)):
        await view.insert(entry(1, partition))
        await view.mark_delivered(key(1, partition), NOW, NO_TRAITS)
    await view.record(UUID(int=1), tuple(RECORDS.values()))
    await view.advance(browse_start=START, content_start=START)
    await view.close_slice(ClosedSlice(START, HOUR, {}))
    await view.write_dead_letter(DeadLetter(key(1).enqueue_id, "2026-01", NOW, "no", entry()))


async def erase(view: View) -> None:
    """Erase all that tests write."""
    async for _ in view.erase_slices([START, START + HOUR], 2):
        pass
    async for _ in view.erase_dead_letters():
        pass
    await view.erase()


async def _census(view: View) -> tuple[object, ...]:
    partitions = (PARTITION, Partition(START + HOUR, 0))
    return (
        sum([(await view.count_rows(each, NOW)).total for each in partitions]),
        sum([(await view.count_marks(each, NOW)).total for each in partitions]),
        await view.records(UUID(int=1)),
        await view.limits(),
        len([each async for each in view.closed_slices(START)]),
        await view.count_dead_letters(),
    )
