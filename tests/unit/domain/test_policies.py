"""Policies of RabbitMQ by which our queues lose messages."""

from __future__ import annotations

import pytest

from postroad.domain.queues.quorum_queues import DROPPING, QuorumQueue, dropping


def governed(name: str, keys: frozenset[str]) -> QuorumQueue:
    return QuorumQueue(name, ("a",), ("a",), keys)


@pytest.mark.parametrize("key", sorted(DROPPING))
def test_a_policy_that_drops_messages_is_named(key: str) -> None:
    (found,) = dropping([governed("postroad.a.b.work", frozenset({key, "max-age"}))])

    assert f"policy with {key} drops" in found
    assert "postroad.a.b.work" in found


def test_several_queues_are_one_sentence() -> None:
    queues = [governed(f"postroad.a.{name}.work", frozenset({"expires"})) for name in "bcd"]

    (found,) = dropping(queues)

    assert "postroad.a.b.work and 2 more" in found
    assert "postroad.a.b.work and 1 more" in dropping(queues[:2])[0]


def test_other_policies_and_queues_of_others_are_left_alone() -> None:
    assert dropping([]) == ()
    assert dropping([governed("theirs", frozenset({"expires"}))]) == ()
    assert dropping([governed("postroad.a.b.work", frozenset({"delivery-limit"}))]) == ()
