"""Which policies of RabbitMQ drop messages of our queues: pure.

An administrator of RabbitMQ may apply a policy to every queue of a vhost. One that bounds a queue,
or lets messages or queues expire, drops references: their mail waits until maintenance finds out.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroad.domain.servers.replicas import OURS, QuorumQueue

DROPPING = frozenset({"expires", "max-length", "max-length-bytes", "message-ttl"})
"""Keys of policies by which a queue loses messages."""


def dropping(queues: Sequence[QuorumQueue]) -> tuple[str, ...]:
    """Return what policies do to our queues, as words for a condition; nothing when all is well.

    >>> dropping([QuorumQueue("postroad.a.b.work", (), (), frozenset({"max-length"}))])
    ('a policy with max-length drops messages of postroad.a.b.work: let it spare ^postroad',)
    """
    hit = [each for each in queues if each.name.startswith(OURS) and each.policy & DROPPING]
    if not hit:
        return ()
    keys = ", ".join(sorted(frozenset[str]().union(*(each.policy for each in hit)) & DROPPING))
    more = f" and {len(hit) - 1} more" if len(hit) > 1 else ""
    return (f"a policy with {keys} drops messages of {hit[0].name}{more}: let it spare ^postroad",)
