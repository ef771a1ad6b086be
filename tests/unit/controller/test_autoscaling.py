"""The number of workers follows the mail that is due: decided by a pure function, over counts with
the times of a clock that the test moves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from postroad.controller.kubernetes.api import AUTOSCALED, AUTOSCALERS, DEPLOYMENT
from postroad.controller.mailqueue import autoscaling
from postroad.controller.mailqueue.autoscaling import (
    MAX_CHANGES,
    PERIOD,
    SETTLE,
    TRY_AGAIN,
    TRY_FEWER,
    QueueLoad,
    Scale,
    next_scale,
    targets,
)
from postroad.controller.spec.mailqueue import Autoscaling, Handler, Workers
from support.repository import ROOT

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
COUNT = 30 * SECOND
"""Between two counts of a queue."""


def workers(
    least: int = 1, most: int = 10, *, concurrency: int = 200, mails_per_worker: int = 1000
) -> Workers:
    rules = Autoscaling(min_replicas=least, max_replicas=most, mails_per_worker=mails_per_worker)
    return Workers(handler=Handler(mx={}), concurrency=concurrency, autoscaling=rules)  # type: ignore[arg-type]


def decided(
    load: QueueLoad, size: int, *, most: int = 10, least: int = 1, at: timedelta = timedelta()
) -> tuple[int, str]:
    found = next_scale(workers(least, most), Scale(size, at), load)
    return found.size, found.reason


LATER = 20 * MINUTE


@pytest.mark.parametrize(
    ("size", "load", "expected"),
    [
        (1, QueueLoad(LATER, 0), (1, "EnoughWorkers")),
        (1, QueueLoad(LATER, 1000), (1, "EnoughWorkers")),
        (1, QueueLoad(LATER, 1001), (2, "MailsDue")),
        (1, QueueLoad(LATER, 7500), (8, "MailsDue")),
        (1, QueueLoad(LATER, 99_000), (10, "MailsDue")),
        (6, QueueLoad(LATER, 6001), (8, "MailsDue")),
        (9, QueueLoad(LATER, 9001), (10, "MailsDue")),
        (10, QueueLoad(LATER, 99_000), (10, "AtMaximum")),
        (1, QueueLoad(SETTLE - SECOND, 7500), (1, "MoreLater")),
        (3, QueueLoad(LATER, 0), (3, "FewerLater")),
        (3, QueueLoad(LATER, 900, oldest=5 * MINUTE), (3, "FewerLater")),
        (3, QueueLoad(LATER, 900, oldest=6 * MINUTE), (4, "OldestMailLate")),
        (4, QueueLoad(LATER, 2900, oldest=6 * MINUTE), (6, "OldestMailLate")),
        (3, QueueLoad(LATER, 3, oldest=60 * MINUTE), (3, "FewerLater")),
        (3, QueueLoad(LATER, 0, at_least=True), (3, "EnoughWorkers")),
        (0, QueueLoad(SECOND, 0), (0, "EnoughWorkers")),
        (0, QueueLoad(SECOND, 1), (1, "MailsDue")),
        (0, QueueLoad(SECOND, 5001), (6, "MailsDue")),
        (0, QueueLoad(LATER, 0, rest=LATER + SECOND), (0, "EnoughWorkers")),
        (0, QueueLoad(LATER, 0, rest=LATER), (1, "MaintenanceDue")),
        (0, QueueLoad(SECOND, 0, rest=LATER, age=LATER - SECOND), (0, "EnoughWorkers")),
        (0, QueueLoad(SECOND, 0, rest=LATER, age=LATER), (1, "MaintenanceDue")),
        (0, QueueLoad(SECOND, 0, age=LATER), (0, "EnoughWorkers")),
        (12, QueueLoad(SECOND, 9000), (10, "FewerLater")),
    ],
)
def test_number_that_a_count_leads_to(
    size: int, load: QueueLoad, expected: tuple[int, str]
) -> None:
    found = decided(load, size, least=0 if size == 0 else 1)

    assert found == expected


def test_fewer_come_once_fewer_sufficed_for_the_whole_time_and_then_as_many_as_did() -> None:
    scale, found = Scale(8, timedelta()), []
    for minute in range(1, 30):
        due = 4500 if minute == 9 else 500
        scale = next_scale(workers(), scale, QueueLoad(minute * MINUTE, due))
        found.append(scale.size)

    assert found[:10] == [8] * 10
    assert found[10:20] == [5] * 10
    assert found[21:] == [1] * len(found[21:])


def test_rows_that_stay_old_wake_one_worker_and_then_one_at_each_quarter() -> None:
    scale, sizes = Scale(0, timedelta()), []
    for minute in range(1, 120):
        load = QueueLoad(minute * MINUTE, 0, rest=100 * MINUTE, age=200 * MINUTE)
        scale = replace(next_scale(workers(0), scale, load), has_worked=True)
        sizes.append(scale.size)

    woken, asleep, again = changes_of(sizes, 0)
    assert (woken, again - asleep) == (0, 100)


def test_worker_for_the_rows_stays_until_one_was_ready_and_no_row_is_about_to_expire() -> None:
    rules, rest = workers(0), 100 * MINUTE
    scale = next_scale(rules, Scale(0, timedelta()), QueueLoad(rest, 0, rest=rest))
    for number in range(1, 100):
        load = QueueLoad(rest + number * MINUTE, 0, rest=rest)
        scale = next_scale(rules, scale, load)
        assert scale.size == 1, "its pod was not ready"

    for number in range(100, 200):
        load = QueueLoad(rest + number * MINUTE, 0, rest=rest, age=3 * rest)
        scale = next_scale(rules, replace(scale, has_worked=True), load)
        assert scale.size == 1, "rows are older than those that were rolled forward"

    sizes = []
    for number in range(200, 230):
        load = QueueLoad(rest + number * MINUTE, 0, rest=rest, age=3 * rest - SECOND)
        scale = next_scale(rules, scale, load)
        sizes.append(scale.size)
    assert changes_of(sizes, 1) == [10]
    assert not scale.has_worked, "the next one counts by itself"


@dataclass
class Simulated:
    """A queue whose workers deliver `each` mails in a second, all together at most `hop`, from a
    minute after they are made on."""

    workers: Workers
    scale: Scale
    each: float = 20.0
    hop: float = 1e9
    due: float = 0.0
    ended: float = 0.0

    def run(self, arrivals: Callable[[int], float], minutes: int) -> list[int]:
        """Return the sizes after each count, with so many arrivals in a second of each minute."""
        now, sizes, ready = self.scale.at, [], self.scale.size
        for number in range(2 * minutes):
            if now + COUNT - self.scale.at >= MINUTE:
                ready = self.scale.size
            ready = min(ready, self.scale.size)
            now += COUNT
            waits = self.due + 30 * arrivals(number // 2)
            delivered = min(waits, 30 * min(ready * self.each, self.hop))
            self.due, self.ended = waits - delivered, self.ended + delivered
            oldest = timedelta(seconds=self.due / max(1.0, delivered / 30))
            load = QueueLoad(now, round(self.due), round(self.ended), oldest)
            self.scale = next_scale(self.workers, self.scale, load)
            sizes.append(self.scale.size)
        return sizes


def test_load_that_workers_can_carry_gets_as_many_as_it_needs() -> None:
    queue = Simulated(workers(most=20), Scale(1, timedelta()))
    sizes = queue.run(lambda _: 150, 120)

    assert 8 <= sizes[-1] <= 20
    assert queue.due <= 20_000
    assert queue.run(lambda _: 0, 60)[-1] == 1


EIGHT_HOURS, FIRST_HOUR = 8 * 60, 120
"""Minutes, and counts in them."""


@pytest.mark.parametrize("mails_per_worker", [200, 1000])
@pytest.mark.parametrize(
    ("rate", "each", "least"),
    [(150, 20, 1), (150, 20, 0), (159, 20, 1), (83, 5, 1), (25, 20, 0), (1, 20, 0), (0.02, 20, 0)],
)
def test_load_that_stays_changes_nothing_after_the_first_hour(
    rate: float, each: float, least: int, mails_per_worker: int
) -> None:
    rules = workers(least, 40, mails_per_worker=mails_per_worker)
    queue = Simulated(rules, Scale(least, timedelta()), each)
    sizes = queue.run(lambda _: rate, EIGHT_HOURS)

    assert len({*sizes[FIRST_HOUR:]}) == 1
    assert sizes[-1] * each <= 1.3 * rate + 2 * each, "no more than it needs"
    assert queue.run(lambda _: 0, 60)[-1] == least


def test_load_that_falls_is_followed_by_as_many_as_the_new_one_needs() -> None:
    queue = Simulated(workers(0, 40), Scale(0, timedelta()))
    rates = [(300, 17), (150, 9), (40, 3), (0, 0)]

    assert [queue.run(lambda _, rate=rate: rate, 60)[-1] for rate, _ in rates] == [  # type: ignore[misc]
        size for _, size in rates
    ]


def test_pace_of_workers_that_wait_for_mail_is_no_measure_of_what_they_carry() -> None:
    queue = Simulated(workers(most=40), Scale(3, timedelta()))
    queue.run(lambda _: 1, 5)
    queue.run(lambda _: 400, 5)

    assert queue.run(lambda _: 10, 60)[-1] == 1


def test_what_workers_carried_is_forgotten_after_a_day() -> None:
    slow = (1.0, timedelta())
    load = QueueLoad(24 * 60 * MINUTE, 0, 600)
    counted = QueueLoad(load.at - COUNT, 0, 0)
    scale = Scale(8, timedelta(), counted=counted, carried=slow)

    assert next_scale(workers(), scale, load).reason == "FewerLater"
    fresh = Scale(8, timedelta(), counted=counted, carried=(1.0, counted.at))
    assert next_scale(workers(), fresh, load).reason == "EnoughWorkers"


@pytest.mark.parametrize(
    ("rate", "minutes", "each", "hop"),
    [(2, 30, 0.1, 1e9), (5, 30, 0.5, 1e9), (15, 30, 3.3, 1e9), (5, 60, 20, 0.33), (5, 180, 20, 1)],
)
def test_load_that_one_carried_before_a_slow_hop_needs_no_more_two_hours_after_it(
    rate: float, minutes: int, each: float, hop: float
) -> None:
    queue = Simulated(workers(most=20), Scale(1, timedelta()))
    queue.run(lambda _: rate, 60)
    queue.each, queue.hop = each, hop
    assert max(queue.run(lambda _: rate, minutes)) > 1
    queue.each, queue.hop = 20.0, 1e9
    sizes = queue.run(lambda _: rate, EIGHT_HOURS)

    assert {*sizes[2 * FIRST_HOUR :]} <= {1, 2}


def test_mail_that_becomes_slower_to_deliver_gets_fewer_workers_each_six_hours_of_a_day() -> None:
    queue = Simulated(workers(most=60), Scale(1, timedelta()))
    queue.run(lambda _: 150, 120)
    queue.each = 5.0
    queue.run(lambda _: 143, 60)
    day = queue.run(lambda _: 143, 24 * 60)
    changes = changes_of(day, day[0])
    trials = [each for each in changes if day[each] < 0.7 * day[each - 1]]

    assert 1 <= len(trials) <= 4
    assert min(b - a for a, b in pairwise(trials)) >= TRY_FEWER / COUNT
    assert min(day) >= 14, "half of them"
    assert len({*queue.run(lambda _: 143, EIGHT_HOURS)}) == 1


def test_next_hop_that_is_the_limit_gets_no_more_workers_until_it_is_faster() -> None:
    queue = Simulated(workers(most=40), Scale(1, timedelta()), hop=50)
    sizes = queue.run(lambda _: 60, 60)
    assert sizes[-1] < 20
    assert queue.scale.reason == "NoFasterDelivery"
    limited = sizes[-1]

    queue.hop = 1e9
    assert max(queue.run(lambda _: 200, 10)) > limited


def test_few_more_workers_than_many_are_not_taken_for_a_next_hop_that_is_the_limit() -> None:
    queue = Simulated(workers(most=40), Scale(16, timedelta()), each=5.0, due=15_000)
    queue.run(lambda _: 95, 30)

    assert queue.due <= 20_000
    assert queue.scale.size >= 19


def test_limit_is_tried_again_after_an_hour() -> None:
    queue = Simulated(workers(most=40), Scale(1, timedelta()), hop=50)
    before = queue.run(lambda _: 60, 50)[-1]

    assert queue.run(lambda _: 60, round(TRY_AGAIN / MINUTE))[-1] > before


def test_next_hop_that_takes_nothing_gets_no_more_workers() -> None:
    queue = Simulated(workers(least=0, most=40), Scale(0, timedelta()), hop=0)
    sizes = queue.run(lambda _: 100, 55)

    assert set(sizes) == {sizes[0]}


def changes_of(sizes: Sequence[int], begin: int) -> list[int]:
    """Return after which counts a number changed."""
    return [number for number, (a, b) in enumerate(zip([begin, *sizes], sizes)) if a != b]  # noqa: B905


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3000)), min_size=3, max_size=12),
    st.integers(0, 3),
    st.integers(4, 60),
    st.sampled_from([1.0, 20.0, 200.0]),
    st.sampled_from([30.0, 1e9]),
)
def test_whatever_the_load_there_are_few_changes_within_the_bounds(
    phases: list[tuple[int, int]], least: int, most: int, each: float, hop: float
) -> None:
    arrivals = [rate for minutes, rate in phases for _ in range(minutes)]
    queue = Simulated(workers(least, most), Scale(least, timedelta()), each, hop)
    sizes = queue.run(lambda minute: arrivals[minute], len(arrivals))
    quiet = queue.run(lambda _: 0, 10)

    assert all(least <= size <= most for size in sizes + quiet)
    moments = changes_of(sizes + quiet, least)
    for first in moments:
        within = [each for each in moments if first <= each < first + PERIOD / COUNT]
        assert len(within) <= MAX_CHANGES


@given(st.lists(st.integers(0, 1_000_000), min_size=40, max_size=300))
def test_counts_that_jump_as_they_like_change_the_number_rarely(counts: list[int]) -> None:
    scale, changes = Scale(0, timedelta()), []
    for number, due in enumerate(counts):
        before, now = scale.size, number * COUNT
        scale = next_scale(workers(0, 50), scale, QueueLoad(now, due, number * 1000))
        if scale.size != before:
            changes.append(now)
        assert scale.size > 0 or due == 0, "mail without any worker does not wait"

    for first in changes:
        assert sum(first <= each < first + PERIOD for each in changes) <= MAX_CHANGES


@pytest.mark.parametrize("every", range(1, 16))
def test_load_that_flaps_for_half_an_hour_changes_the_number_rarely(every: int) -> None:
    queue = Simulated(workers(0), Scale(0, timedelta()))
    sizes = queue.run(lambda minute: 300 if minute // every % 2 else 0, 30)

    assert len(changes_of(sizes, 0)) <= MAX_CHANGES


def test_last_change_that_is_allowed_leaves_no_mail_without_workers() -> None:
    changes = tuple(number * MINUTE for number in range(MAX_CHANGES - 1))
    scale = Scale(3, changes[-1], changes=changes)

    assert next_scale(workers(), scale, QueueLoad(10 * MINUTE, 3500)).size == 10


PAGE = (ROOT / "docs/operator/scaling.md").read_text()


def test_page_has_each_reason_and_no_other() -> None:
    (table,) = re.findall(r"\| `status.workers.reason` \|.*?\n\n", PAGE, re.DOTALL)
    listed = {
        each
        for line in table.split("\n|")[2:]
        for each in re.findall(r"`([A-Za-z]+)`", line.split("|")[0])
    }

    names = {name: each for name, each in vars(autoscaling).items() if name.isupper()}
    texts = {each for each in names.values() if isinstance(each, str)}
    assert listed == texts - {AUTOSCALED}
    assert autoscaling.CHANGED.keys() <= listed


def test_autoscalers_on_the_page_are_those_that_the_operator_obeys() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    found = [each for each in map(yaml.safe_load, blocks) if each.get("kind")]

    kinds = {(each.api_version, each.name): each for each in AUTOSCALERS}
    assert {(each["apiVersion"], each["kind"]) for each in found} == kinds.keys()
    for each in found:
        names = ("outgoing-worker", "outgoing-intake")
        assert any(targets(each, DEPLOYMENT.name, name) for name in names)
