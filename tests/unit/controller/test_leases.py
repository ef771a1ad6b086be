"""Which step a process takes in an election, for everything that it may know."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from postroad.controller.run.elector import (
    Candidacy,
    GetLease,
    LeaseRecord,
    LeaseRules,
    Observed,
    StopLeading,
    WaitUntil,
    WriteLease,
)

RULES = LeaseRules()
NOW = "2026-01-01T10:00:00.000000Z"
BEFORE = "2026-01-01T09:00:00.000000Z"


def at(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def record(holder: str, transitions: int = 3, seconds: float = 15) -> LeaseRecord:
    return LeaseRecord(holder, at(seconds), BEFORE, BEFORE, transitions)


def seen(lease: LeaseRecord | None, now: float = 100) -> Candidacy:
    """What process `a` knows when it has just read the Lease for the first time."""
    return Candidacy("a").observe(lease, "7", at(now), at(now), 0)


def leader(sent: float = 100) -> Candidacy:
    mine = record("a")
    return seen(record("")).wrote(mine, "8", at(sent), at(sent), 0)


def test_the_first_step_is_to_read() -> None:
    assert Candidacy("a").next_step(at(100), NOW) == GetLease()


@pytest.mark.parametrize(
    ("lease", "wanted"),
    [
        (None, WriteLease(LeaseRecord("a", RULES.duration, NOW, NOW, 0), None)),
        (record(""), WriteLease(LeaseRecord("a", RULES.duration, NOW, NOW, 4), "7")),
        (record("a"), WriteLease(LeaseRecord("a", RULES.duration, BEFORE, NOW, 3), "7")),
    ],
    ids=["missing", "given back", "of a write without an answer"],
)
def test_a_free_lease_is_taken_at_once(lease: LeaseRecord | None, wanted: WriteLease) -> None:
    assert seen(lease).next_step(at(100), NOW) == wanted


def test_a_lease_of_another_is_waited_for() -> None:
    assert seen(record("b")).next_step(at(100), NOW) == WaitUntil(at(102))
    assert seen(record("b")).next_step(at(102), NOW) == GetLease()


def test_an_unchanged_lease_is_taken_when_its_duration_is_over() -> None:
    candidate = seen(record("b"))
    for now in (102, 104, 114):
        candidate = candidate.observe(record("b"), "7", at(now), at(now), 0)
    assert candidate.next_step(at(114), NOW) == WaitUntil(at(115)), (
        "the next pause would be too long"
    )

    candidate = candidate.observe(record("b"), "7", at(115), at(115), 0)

    taken = LeaseRecord("a", RULES.duration, NOW, NOW, 4)
    assert candidate.next_step(at(115), NOW) == WriteLease(taken, "7")


def test_a_lease_that_is_deleted_runs_out_all_the_same() -> None:
    """Its holder may act until it finds that."""
    candidate = seen(record("b"))
    for now in (102, 104, 114):
        candidate = candidate.observe(None, "", at(now), at(now), 0)
        assert isinstance(candidate.next_step(at(now), NOW), WaitUntil)

    candidate = candidate.observe(None, "", at(115), at(115), 0)

    created = LeaseRecord("a", RULES.duration, NOW, NOW, 0)
    assert candidate.next_step(at(115), NOW) == WriteLease(created, None)


def test_a_renewed_lease_begins_anew_whatever_its_timestamps_are() -> None:
    candidate = seen(record("b"))
    renewed = replace(record("b"), renewed="1999-01-01T00:00:00.000000Z")
    candidate = candidate.observe(renewed, "8", at(114), at(114), 0)

    candidate = candidate.observe(renewed, "8", at(116), at(116), 0)

    assert candidate.next_step(at(116), NOW) == WaitUntil(at(118))


def test_a_version_alone_is_no_renewal() -> None:
    """Another client may label the Lease of a dead leader."""
    candidate = seen(record("b")).observe(record("b"), "9", at(115), at(115), 0)

    assert isinstance(candidate.next_step(at(115), NOW), WriteLease)


def test_the_holders_own_duration_counts() -> None:
    candidate = seen(record("b", seconds=60)).observe(
        record("b", seconds=60), "7", at(120), at(120), 0
    )
    assert candidate.next_step(at(122), NOW) == GetLease()
    assert not candidate.is_current


def test_a_leader_counts_from_when_it_sent_its_renewal() -> None:
    slow = leader(100).wrote(record("a"), "9", at(102), at(104), 0)

    assert slow.until == at(112)
    assert slow.next_step(at(104), NOW) == WriteLease(
        LeaseRecord("a", RULES.duration, BEFORE, NOW, 3), "9"
    )


def test_a_leader_renews_without_reading() -> None:
    assert leader(100).next_step(at(101), NOW) == WaitUntil(at(102))
    assert isinstance(leader(100).next_step(at(102), NOW), WriteLease)


def test_a_leader_without_a_renewal_stops_at_its_deadline() -> None:
    failed = leader(100).failed(at(102), 0).failed(at(109), 0)

    assert failed.next_step(at(109.9), NOW) == WaitUntil(at(110))
    assert isinstance(failed.next_step(at(110), NOW), StopLeading)


def test_an_answer_after_the_deadline_saves_no_leader() -> None:
    late = leader(100).wrote(record("a"), "9", at(109), at(110), 0)

    assert isinstance(late.next_step(at(110), NOW), StopLeading)


def test_an_answer_after_the_deadline_makes_no_leader() -> None:
    late = seen(record(""), now=100).wrote(record("a"), "8", at(100), at(110), 0)

    assert late.until is None
    assert late.next_step(at(110), NOW) == GetLease()


@pytest.mark.parametrize("lease", [None, record(""), record("b")], ids=["gone", "free", "taken"])
def test_a_leader_that_finds_another_state_stops(lease: LeaseRecord | None) -> None:
    lost = leader(100).conflicted(at(102), 0).observe(lease, "9", at(102), at(102), 0)

    assert lost.until is None
    assert isinstance(lost.next_step(at(102), NOW), StopLeading)


def test_a_leader_goes_on_over_its_own_write_without_an_answer() -> None:
    unsure = leader(100).failed(at(102), 0)
    assert unsure.next_step(at(104), NOW) == GetLease()

    sure = unsure.observe(record("a"), "9", at(104), at(104), 0)

    assert sure.until == at(110), "reading renews nothing"
    assert isinstance(sure.next_step(at(104), NOW), WriteLease)


def test_what_is_given_back_can_be_taken_at_once() -> None:
    given = leader(100).given_back(NOW)
    assert given
    assert (given.record.holder, given.record.transitions, given.version) == ("", 3, "8")

    assert isinstance(seen(given.record).next_step(at(100), NOW), WriteLease)
    assert seen(record("b")).given_back(NOW) is None


def test_times_that_let_no_leader_renew_are_refused() -> None:
    with pytest.raises(ValueError, match="retry < deadline < duration"):
        LeaseRules(duration=at(10), deadline=at(10))
    with pytest.raises(ValueError, match="retry < deadline < duration"):
        LeaseRules(deadline=at(2.4))


LEASES = (None, record(""), record("a"), record("b"), record("c"))


def test_a_conflict_is_read_about_at_once_and_not_written_over_without_a_pause() -> None:
    candidate = seen(record("")).conflicted(at(101), 0)

    assert candidate.next_step(at(101), NOW) == GetLease()
    again = candidate.observe(record(""), "8", at(101), at(101), 0)
    assert again.next_step(at(101), NOW) == WaitUntil(at(103))
    assert isinstance(again.next_step(at(103), NOW), WriteLease)


OUTCOMES = ("found", "wrote", "conflicted", "failed")


@pytest.mark.parametrize("lease", LEASES)
def test_no_state_acts_past_its_deadline_or_over_another_holder(lease: LeaseRecord | None) -> None:
    """Every Lease, as leader and as candidate, current or not, after each outcome, at moments
    around each border."""
    moments = (-1, 0, 1.9, 2, 2.4, 9.9, 10, 14.9, 15, 16, 60)
    count = 0
    for held, current, outcome, answered, asked in product(
        (None, at(100)), (True, False), OUTCOMES, moments, moments
    ):
        if asked < answered or answered < 0:
            continue
        sent, now, later = at(100), at(100 + answered), at(100 + asked)
        observed = Observed(lease, "7", at(100))
        state = Candidacy("a", RULES, observed, held, is_current=current, due=at(100))
        match outcome:
            case "found":
                state = state.observe(lease, "7", sent, now, 0.5)
            case "wrote":
                state = state.wrote(record("a"), "8", sent, now, 0.5)
            case "conflicted":
                state = state.conflicted(now, 0)
            case "failed":
                state = state.failed(sent, 0.5)
        step = state.next_step(later, NOW)
        count += 1

        may_act = state.until is not None and later < state.until
        if may_act:
            assert later < at(110), "no renewal was sent after 100"
        if isinstance(step, StopLeading):
            assert not may_act
        if held is not None and not may_act:
            assert isinstance(step, StopLeading), "a leader that may not act never goes on"
        if isinstance(step, WaitUntil):
            assert later < step.until <= later + RULES.duration
        if isinstance(step, WriteLease) and outcome == "found" and lease is not None:
            free = lease.holder in ("", "a")
            assert free or now >= at(115), "the holder still has its duration"
    assert count > 400
