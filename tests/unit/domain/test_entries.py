"""Marks say when an entry needs nothing more; replacements compute the same entry everywhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, EntryKey, Mark, place
from postroad.domain.values.identifiers import id_at

NOW = datetime(2026, 1, 1, 10, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)


def key(sequence: int) -> EntryKey:
    return place(id_at(NOW, sequence, 7), HOUR, 3)


def entry() -> Entry:
    envelope = Envelope("a@example.org", ("b@example.net", "c@example.com"))
    return Entry(key(0), UUID(int=1), envelope, "blob", 10, NOW, NOW)


REPLACED = Ending(EndingKind.REPLACED, NOW, key(1), Change.nothing(entry()))


@pytest.mark.parametrize(
    ("mark", "final", "live"),
    [
        pytest.param(Mark(), False, True, id="nothing is known"),
        pytest.param(Mark(delivered_at=NOW), True, False, id="delivered"),
        pytest.param(Mark(ending=Ending(EndingKind.REMOVED, NOW)), True, False, id="removed"),
        pytest.param(Mark(ending=REPLACED), False, True, id="replacement under way"),
        pytest.param(Mark(ending=REPLACED, published=True), True, False, id="replaced"),
        pytest.param(
            Mark(delivered_at=NOW, ending=REPLACED),
            False,
            False,
            id="delivered while its replacement was under way: the successor has to learn of it",
        ),
    ],
)
def test_mark_says_whether_the_entry_needs_anything_more(
    mark: Mark, final: bool, live: bool
) -> None:
    assert (mark.is_final, mark.is_live) == (final, live)


def test_replacement_is_the_same_entry_in_every_process() -> None:
    change = Change(("c@example.com",), NOW + HOUR, held=False, attempt=1, last_error="451")

    new = entry().with_change(key(5), change)

    assert new == entry().with_change(key(5), change)
    assert new.enqueued_at == NOW
    assert new.envelope.recipients == ("c@example.com",)
    assert new.mail_id == entry().mail_id
    assert replace(entry(), remaining=HOUR).with_change(key(5), change).remaining is None


def test_entry_remembers_all_entries_that_administration_replaced() -> None:
    """Which of them can be forgotten takes a look at their claims."""
    current = entry()

    for sequence in range(1, 20):
        current = current.with_change(key(sequence), Change.nothing(current))

    assert [each.enqueue_id for each in current.previous] == [
        entry().enqueue_id,
        *(key(sequence).enqueue_id for sequence in range(1, 19)),
    ]
