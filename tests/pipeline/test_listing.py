"""Ranges of keys: together they hold each key of a mail once, however it is spelt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from postroad.domain.queues.names import QueueName, key_of_bytes
from postroad.domain.values.identifiers import id_at
from postroad.pipeline.spark.jobs.audit_run import KeyRange, all_ranges, beside, day_of

NAME = QueueName("mail", "outgoing")
NOW, DAY = datetime(2026, 3, 2, 23, 59, tzinfo=UTC), timedelta(days=1)
HOUR = timedelta(hours=1)


def holds(within: KeyRange, key: str) -> bool:
    return (
        key.startswith(within.prefix)
        and key > within.after
        and (within.through is None or key <= within.through)
    )


def a_key(at: datetime, number: int, made: timedelta = timedelta(0)) -> str:
    return key_of_bytes(NAME, at, id_at(at + made, 0, number))


@pytest.mark.parametrize("first", [None, NOW - 3 * DAY, NOW - 5000 * DAY])
def test_each_key_is_in_one_range(first: datetime | None) -> None:
    draw = Random(7)
    begin = first or NOW
    moments = [begin + draw.random() * (NOW + DAY - begin) for _ in range(300)]
    keys = [a_key(at, number) for number, at in enumerate(moments)]
    keys += [a_key(NOW, 1, made=HOUR), a_key(NOW - 2 * DAY, 2, made=-30 * HOUR)]

    found = all_ranges(NAME, first, NOW)

    assert len(found) < 2300
    assert {sum(holds(each, key) for each in found) for key in keys} == {1}


def test_the_days_of_some_keys_are_listed_again() -> None:
    keys = [a_key(NOW, 1), a_key(NOW, 2), a_key(NOW - DAY, 3), f"{NAME}/2026/13/45/x"]

    found = beside(keys)

    assert len(found) == 3
    assert all(sum(holds(each, key) for each in found) == 1 for key in keys)


def test_the_day_of_a_key() -> None:
    assert day_of(NAME, a_key(NOW, 1)) == datetime(2026, 3, 2, tzinfo=UTC)
    assert day_of(NAME, f"{NAME}/2026/13/45/x") is None
