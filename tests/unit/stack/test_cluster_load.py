"""What the load of a cluster's tests counts as a violation."""

from __future__ import annotations

from integration.cluster.load import Load
from postroad.errors import BlobMissing, BrokerUnavailable, PostroadError


def load_of(accepted: str, delivered: str, *refused: PostroadError) -> Load:
    load = Load(accepted=set(accepted.split()), refused=[*refused])
    load.delivered.update(delivered.split())
    return load


def test_delivered_twice_and_refused_for_now_are_no_violations() -> None:
    assert load_of("a b", "a b b c", BrokerUnavailable("away")).violations == []


def test_lost_mail_and_permanent_refusals_are_violations() -> None:
    load = load_of("a b c", "b", BrokerUnavailable("away"), BlobMissing("gone"))

    assert load.violations == ["a was lost", "c was lost", "refused for good: gone"]


def test_a_run_that_accepted_no_mail_is_a_violation() -> None:
    assert load_of("", "").violations == ["no mail was accepted"]
