"""Members of quorum queues, and policies of RabbitMQ that drop messages.

RabbitMQ chooses the members when a queue is declared, from the nodes that run then. A queue that
was declared while one node ran stays on that node, however many join later.

An administrator of RabbitMQ may apply a policy to every queue of a vhost. One that bounds a queue,
or lets messages or queues expire, drops references: their mail waits until maintenance finds out.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

OURS = "postroad."
"""Prefix of the names of our queues."""


@dataclass(frozen=True, slots=True)
class QuorumQueue:
    """One quorum queue. `online`: the members that run; `policy`: the keys of its policies."""

    name: str
    members: tuple[str, ...]
    online: tuple[str, ...]
    policy: frozenset[str] = frozenset()


def members_to_add(queue: QuorumQueue, running: Collection[str], copies: int) -> list[str]:
    """Return the nodes that should become members, so that the queue has so many copies.

    None while fewer nodes run: two members stop as soon as one of them does, where a single one
    stops only with its own node.

    >>> members_to_add(QuorumQueue("work", ("a",), ("a",)), ["a", "b", "c"], 3)
    ['b', 'c']
    >>> members_to_add(QuorumQueue("work", ("a",), ("a",)), ["a", "b"], 3)
    []
    """
    lacks = max(copies - len(queue.members), 0)
    if len(running) < copies:
        return []
    free = sorted(set(running) - set(queue.members))
    first = sum(queue.name.encode()) % len(free) if free else 0
    return sorted((free[first:] + free[:first])[:lacks])


def too_few_members(
    queues: Sequence[QuorumQueue], running: Collection[str], copies: int, vhost: str
) -> tuple[str, ...]:
    """Return what the members of our queues lack, and what to do about it, as words for a
    condition. Nothing while too few nodes run: that is a condition of its own."""
    if len(running) < copies:
        return ()
    ours = [each for each in queues if each.name.startswith(OURS)]
    lacking = [each for each in ours if len(each.members) < copies]
    away = [each for each in ours if each not in lacking and len(each.online) < copies]
    found = (
        _message(lacking, "members", copies, _command(lacking, running, copies, vhost)),
        _message(away, "members online", copies, "check their nodes"),
    )
    return tuple(each for each in found if each)


def _message(queues: Sequence[QuorumQueue], what: str, copies: int, remedy: str) -> str:
    if not queues:
        return ""
    count = f"{len(queues)} queue{'s have' if len(queues) > 1 else ' has'}"
    return f"{count} fewer than {copies} {what} (such as {queues[0].name}): {remedy}"


def _command(
    queues: Sequence[QuorumQueue], running: Collection[str], copies: int, vhost: str
) -> str:
    nodes = {node for each in queues for node in members_to_add(each, running, copies)}
    patterns = f"--vhost-pattern '^{re.escape(vhost)}$' --queue-pattern '^{re.escape(OURS)}'"
    return "; ".join(f"rabbitmq-queues grow {node} all {patterns}" for node in sorted(nodes))


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
