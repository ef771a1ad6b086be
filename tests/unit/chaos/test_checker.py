"""The checker over histories made by hand: each kind of violation is found, lawful ones pass."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checker import MISSING, Kind, check
from chaos.history import Event, Phase

ONE = ("r@d.example",)
QUEUE = "q0"


class Written:
    """A history under the pen. The test gives all instants, those at which calls end too."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._count = 0

    def note(self, at: float, by: str, op: str, **data: Any) -> None:
        self.events.append(Event(at, by, op, Phase.INFO, "", data))

    def call(
        self,
        op: str,
        began: float,
        ended: float | None,
        by: str,
        phase: Phase = Phase.OK,
        result: dict[str, Any] | None = None,
        **data: Any,
    ) -> None:
        self._count += 1
        call = f"c{self._count}"
        self.events.append(Event(began, by, op, Phase.INVOKE, call, data))
        if ended is not None:
            self.events.append(Event(ended, by, op, phase, call, result or {}))

    def enqueue(
        self,
        mail: str = "m",
        at: float = 1,
        phase: Phase = Phase.OK,
        *,
        by_smtp: bool = False,
        **result: Any,
    ) -> None:
        self.call(
            "enqueue",
            at,
            at + 0.1,
            "producer#1",
            phase,
            result,
            mail=mail,
            queue=QUEUE,
            sender="s@x.example",
            recipients=ONE,
            by_smtp=by_smtp,
        )

    def attempt(
        self,
        looked: float,
        transmitted: float | None = None,
        *,
        by: str = "worker-1#1",
        mail: str = "m",
        op: str = "done",
        ended: float | None = None,
        phase: Phase = Phase.OK,
        entry: str = "t1",
        **more: Any,
    ) -> None:
        """An attempt that transmits, and whose ending is acknowledged at `ended`."""
        attempt = f"{by}/{looked}"
        self.note(
            looked,
            by,
            "lease",
            attempt=attempt,
            mail=mail,
            entry=entry,
            mail_id=f"id of {mail}",
            looked=looked,
            recipients=ONE,
        )
        if transmitted is not None:
            self.note(
                transmitted, by, "transmit", attempt=attempt, mail=mail, recipients=ONE, **more
            )
        last = looked if transmitted is None else transmitted
        self.call(op, last, ended, by, phase, attempt=attempt, mail=mail, finishes=None, lost=False)

    def change(
        self, op: str, began: float, ended: float | None, count: int, **selector: Any
    ) -> None:
        self.call(
            op,
            began,
            ended,
            "administrator#1",
            queue=QUEUE,
            selector=selector,
            result={"count": count},
        )

    def process(self, at: float, life: str, what: str) -> None:
        self.note(at, "nemesis", "process", process=life, what=what)

    def listed(self, op: str, mail: str, reason: str = "", *, last: bool = True) -> None:
        mails = [{"mail": mail, "recipients": ONE, "held": False, "reason": reason}]
        self.call(op, 100, 101, "drain#1", queue=QUEUE, result={"mails": mails, "last": last})

    def kinds(self) -> list[Kind]:
        """Check, after a drain that left nothing."""
        self.note(1000, "drain#1", "remains", queue=QUEUE, remains={})
        return [each.kind for each in check(sorted(self.events, key=lambda each: each.at))]


@pytest.fixture
def written() -> Written:
    return Written()


# What is acknowledged is somewhere


def test_a_mail_that_was_delivered_passes(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3, ended=4)

    assert written.kinds() == []


def test_a_mail_that_is_nowhere_is_lost(written: Written) -> None:
    written.enqueue()

    assert written.kinds() == [Kind.LOST]


def test_a_mail_that_was_only_leased_is_lost(written: Written) -> None:
    written.enqueue()
    written.attempt(2, op="reject", ended=3)

    assert written.kinds() == [Kind.LOST]


@pytest.mark.parametrize("phase", [Phase.FAIL, Phase.UNKNOWN])
def test_a_mail_that_was_not_acknowledged_may_be_nowhere(written: Written, phase: Phase) -> None:
    written.enqueue(phase=phase)

    assert written.kinds() == []


@pytest.mark.parametrize("op", ["browse", "dead_letters"])
def test_a_mail_that_waits_or_is_dead_is_not_lost(written: Written, op: str) -> None:
    written.enqueue()
    written.listed(op, "m", "the worker rejects it")

    assert written.kinds() == []


def test_what_waited_before_the_drain_says_nothing_of_its_end(written: Written) -> None:
    written.enqueue()
    written.listed("browse", "m", last=False)

    assert written.kinds() == [Kind.LOST]


def test_a_dead_letter_without_bytes_is_a_loss(written: Written) -> None:
    written.enqueue()
    written.listed("dead_letters", "m", MISSING)

    assert written.kinds() == [Kind.LOST]


@pytest.mark.parametrize(("count", "found"), [(1, []), (0, [Kind.LOST])])
def test_a_removal_by_name_accounts_for_what_it_counted(
    written: Written, count: int, found: list[Kind]
) -> None:
    written.enqueue()
    written.change("remove", 2, 3, count, name="m")

    assert written.kinds() == found


def test_a_removal_without_an_answer_may_have_removed(written: Written) -> None:
    written.enqueue()
    written.change("remove", 2, None, 0, name="m")

    assert written.kinds() == []


def test_a_removal_that_ended_before_the_mail_came_accounts_for_nothing(written: Written) -> None:
    written.change("purge", 0.1, 0.5, 1, all=True)
    written.enqueue(at=1)

    assert written.kinds() == [Kind.LOST]


def test_wide_removals_account_for_no_more_than_they_counted(written: Written) -> None:
    written.enqueue("m")
    written.enqueue("n")
    written.change("remove", 2, 3, 1, sender="s@x.example")

    assert written.kinds() == [Kind.LOST]


# What was removed stays away


def test_a_mail_that_was_in_flight_when_it_was_removed_may_be_transmitted(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 5, ended=6)
    written.change("remove", 3, 4, 1, name="m")

    assert written.kinds() == []


@pytest.mark.parametrize(
    ("op", "selector"),
    [("remove", {"name": "m"}), ("remove", {"sender": "s@x.example"}), ("purge", {"all": True})],
)
def test_a_consumer_that_looks_after_a_removal_must_find_it(
    written: Written, op: str, selector: dict[str, Any]
) -> None:
    written.enqueue()
    written.change(op, 3, 4, 1, **selector)
    written.attempt(4.5, 5, ended=6)

    assert written.kinds() == [Kind.RESURRECTED]


def test_a_removal_that_counted_nothing_promises_nothing(written: Written) -> None:
    written.enqueue()
    written.change("remove", 3, 4, 0, name="m")
    written.attempt(4.5, 5, ended=6)

    assert written.kinds() == []


def test_a_wide_removal_does_not_meet_mail_that_came_while_it_ran(written: Written) -> None:
    written.enqueue(at=3.2)
    written.change("purge", 3, 4, 7, all=True)
    written.attempt(4.5, 5, ended=6)

    assert written.kinds() == []


@pytest.mark.parametrize(("queued", "found"), [(2.0, [Kind.RESURRECTED]), (3.5, []), (None, [])])
def test_a_wide_removal_meets_mail_of_an_outbox_once_it_is_in_the_queue(
    written: Written, queued: float | None, found: list[Kind]
) -> None:
    written.enqueue(by_smtp=True)
    if queued is not None:
        written.note(queued, "intake-q0#1", "queued", mail="m")
    written.change("purge", 3, 4, 7, all=True)
    written.attempt(5, 6, ended=7)

    assert written.kinds() == found


def test_a_wide_removal_does_not_meet_dead_letters(written: Written) -> None:
    written.enqueue()
    written.attempt(2, op="reject", ended=2.5)
    written.change("purge", 3, 4, 7, all=True)
    written.attempt(4.5, 5, ended=6)

    assert written.kinds() == []


# Second copies


def test_a_second_transmission_by_nothing_is_found(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3, ended=6)
    written.attempt(2.5, 4, by="worker-2#1", entry="t1", ended=5)

    assert written.kinds() == [Kind.DUPLICATE]


def test_a_process_that_was_killed_in_flight_explains_a_second_copy(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3)
    written.process(3.5, "worker-1#1", "killed")
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == []


def test_a_process_that_was_killed_later_explains_nothing(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3, ended=4)
    written.process(5, "worker-1#1", "killed")
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == [Kind.DUPLICATE]


def test_a_suspension_in_flight_explains_a_second_copy(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 30, ended=31)
    written.process(2.5, "worker-1#1", "suspended")
    written.process(29, "worker-1#1", "resumed")
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == []


def test_a_suspension_at_another_time_explains_nothing(written: Written) -> None:
    written.enqueue()
    written.process(0.2, "worker-1#1", "suspended")
    written.process(0.5, "worker-1#1", "resumed")
    written.attempt(2, 12, ended=13)
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == [Kind.DUPLICATE]


def test_a_redelivery_in_flight_explains_a_second_copy(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 12, ended=13)
    written.note(5, "worker-2#1", "redelivery", entry="t1")
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == []


def test_a_redelivery_of_another_entry_explains_nothing(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 12, ended=13)
    written.note(5, "worker-2#1", "redelivery", entry="t7")
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == [Kind.DUPLICATE]


def test_a_record_that_failed_explains_a_second_copy(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3, ended=4, phase=Phase.FAIL)
    written.attempt(9, 10, by="worker-2#1", ended=11)

    assert written.kinds() == []


def test_nothing_explains_a_copy_after_the_record(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3, ended=4)
    written.note(4.5, "worker-2#1", "redelivery", entry="t1")
    written.attempt(5, 6, by="worker-2#1", ended=7)

    assert written.kinds() == [Kind.DUPLICATE]


def test_a_retry_leaves_its_recipients_open(written: Written) -> None:
    written.enqueue()
    written.attempt(2, op="retry", ended=3)
    written.attempt(9, 10, by="worker-2#1", entry="t2", ended=11)

    assert written.kinds() == []


# Failed enqueues, holds, bytes


def test_a_failed_enqueue_is_delivered_only_when_it_was_counted(written: Written) -> None:
    written.enqueue("m", phase=Phase.FAIL, error="BrokerUnavailable")
    written.attempt(2, 3, ended=4)
    written.enqueue("n", phase=Phase.FAIL, error="BrokerUnavailable")
    written.attempt(2, 3, mail="n", by="worker-2#1", ended=4, entry="t2")
    written.note(9, "producer#1", "unwithdrawn", mail_id="id of n")

    assert written.kinds() == [Kind.UNCOUNTED]


@pytest.mark.parametrize(
    ("lived_on", "recorded", "is_found"),
    [
        (30, 4, False),
        (90, 4, True),
        (90, 20, False),
        (90, None, False),
        (1700, 20, True),
        (1700, None, True),
    ],
)
def test_a_producer_that_is_killed_counts_what_it_had_time_to_look_at(
    written: Written, lived_on: float, recorded: float | None, is_found: bool
) -> None:
    written.enqueue("m", phase=Phase.FAIL, error="BrokerUnavailable")
    written.attempt(1.05, 3, ended=recorded)
    written.enqueue("n", at=lived_on, phase=Phase.UNKNOWN)
    written.process(lived_on + 1, "producer#1", "killed")
    if recorded is None:
        written.process(3.5, "worker-1#1", "killed")

    assert (Kind.UNCOUNTED in written.kinds()) is is_found


def test_a_consumer_that_looks_after_the_failure_finds_it_withdrawn(written: Written) -> None:
    """However soon the process that reported it is killed."""
    written.enqueue("m", phase=Phase.FAIL, error="BrokerUnavailable")
    written.attempt(1.2, 3, ended=4)
    written.process(1.3, "producer#1", "killed")

    assert written.kinds() == [Kind.UNCOUNTED]


@pytest.mark.parametrize(("closing", "is_found"), [(20, True), (10, False)])
def test_a_producer_that_closes_looks_once_more_at_what_failed(
    written: Written, closing: float, is_found: bool
) -> None:
    """What a consumer had left by then counts, however short the time since the failure was."""
    written.enqueue("m", phase=Phase.FAIL, error="BrokerUnavailable")
    written.attempt(1.05, 3, ended=15)
    written.note(closing, "producer#1", "closing")

    assert written.kinds() == ([Kind.UNCOUNTED] if is_found else [])


def test_an_enqueue_without_an_answer_may_be_delivered(written: Written) -> None:
    written.enqueue(phase=Phase.UNKNOWN)
    written.attempt(2, 3, ended=4)

    assert written.kinds() == []


def test_a_mail_that_was_never_enqueued_is_found(written: Written) -> None:
    written.attempt(2, 3, mail="stranger", ended=4)

    assert written.kinds() == [Kind.UNKNOWN]


def test_a_held_mail_waits_for_its_release(written: Written) -> None:
    written.enqueue()
    written.change("hold", 2, 3, 1, name="m")
    written.attempt(5, 6, ended=7)

    assert written.kinds() == [Kind.HELD]


def test_a_released_mail_goes_on(written: Written) -> None:
    written.enqueue()
    written.change("hold", 2, 3, 1, name="m")
    written.change("release", 4, None, 0, all=True)
    written.attempt(5, 6, ended=7)

    assert written.kinds() == []


def test_other_bytes_are_found(written: Written) -> None:
    written.enqueue()
    written.attempt(2, 3, ended=4, intact=False)

    assert written.kinds() == [Kind.ALTERED]


# At rest


def test_a_size_that_differs_from_a_recount_is_found(written: Written) -> None:
    written.note(100, "drain#1", "recount", queue=QUEUE, size=3, found=3)
    written.note(101, "drain#1", "recount", queue=QUEUE, size=3, found=4)

    assert written.kinds() == [Kind.SIZE]


def test_what_is_left_on_a_server_is_found(written: Written) -> None:
    written.note(100, "drain#1", "remains", queue=QUEUE, remains={"rows": [], "objects": ["o"]})

    assert written.kinds() == [Kind.LEFT]


def test_a_run_without_a_drain_proves_nothing() -> None:
    assert [each.kind for each in check([])] == [Kind.UNFINISHED]
