"""Which policies of RabbitMQ drop messages of our queues: pure.

An administrator of RabbitMQ may apply a policy to every queue of a vhost. One that bounds a queue,
or lets messages or queues expire, drops references: their mail waits until maintenance finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.domain.replicas import OURS

DROPPING = frozenset({"expires", "max-length", "max-length-bytes", "message-ttl"})
"""Keys of policies by which a queue loses messages."""


@dataclass(frozen=True, slots=True)
class Governed:
    """A queue, and the keys of the policies that apply to it."""

    queue: str
    keys: frozenset[str]


def dropping(queues: Sequence[Governed]) -> tuple[str, ...]:
    """Return what policies do to our queues, as words for a condition; nothing when all is well.

    >>> dropping([Governed("postroad.a.b.work", frozenset({"max-length"}))])
    ('a policy with max-length drops messages of postroad.a.b.work: let it spare ^postroad',)
    """
    hit = [each for each in queues if each.queue.startswith(OURS) and each.keys & DROPPING]
    if not hit:
        return ()
    keys = ", ".join(sorted(frozenset[str]().union(*(each.keys for each in hit)) & DROPPING))
    more = f" and {len(hit) - 1} more" if len(hit) > 1 else ""
    return (f"a policy with {keys} drops messages of {hit[0].queue}{more}: let it spare ^postroad",)
