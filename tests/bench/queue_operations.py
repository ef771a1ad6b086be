"""What a mail costs in requests: counted at the drivers' edge while mails enter and leave.

The life of a mail with one recipient and no delay needs at the least: put, get and delete; insert,
mark read and mark written; publish, confirm, delivery and ack. What belongs to no mail (limits,
configuration, the view's clock) is listed apart. Cassandra's own count stands beside ours.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.queue_rates import enter, ours
from bench.queue_setup import BenchServers
from bench.results import Result, compared
from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.rabbitmq.consumer import Subscription
from postroad.adapters.rabbitmq.publisher import Unconfirmed
from postroad.adapters.rabbitmq.publisher import _Confirming as Publishing
from postroad.adapters.s3.objects import Objects

MAILS = int(os.environ.get("BENCH_COUNTED", "10000"))
IN_FLIGHT = 64
CASE = f"{MAILS:,} mails of 2 kB, one recipient, no delay"
OF_A_MAIL = {"INSERT_ROW", "SELECT_MARK", "SELECT_MARKED", "MARK_DELIVERED"}
"""Statements of a mail's life; all others are background."""
S3 = ("put", "get", "stream", "delete", "delete_together")
GOALS = {"S3": 3, "Cassandra": 3, "RabbitMQ": 4}
NAMES = {
    each: name
    for module in (statements, mark_statements)
    for name, each in vars(module).items()
    if isinstance(each, Statement)
}


async def measure(where: BenchServers) -> list[Result]:
    """Count over MAILS mails."""
    content = os.urandom(1000).hex().encode()
    async with ours(where, content) as queue:
        await enter(queue, 1, 1, [])  # connections are opened and statements prepared
        await queue.leave(1, 1, [])
        before = await _counted_by_cassandra(where)
        with counting() as counts:
            await enter(queue, IN_FLIGHT, MAILS, [])
            await queue.leave(MAILS, IN_FLIGHT, [])
        served = await _counted_by_cassandra(where) - before
    background = {
        name: count
        for (server, name), count in counts.items()
        if server == "Cassandra" and name not in OF_A_MAIL
    }
    results = []
    for server, goal in GOALS.items():
        total = sum(
            count
            for (where_to, name), count in counts.items()
            if where_to == server and name not in background
        )
        results.append(_per_mail(f"{server} operations", total, "goal: at most", goal))
    total = sum(count for (server, _), count in counts.items() if server == "Cassandra")
    results.append(_per_mail("Cassandra requests", total, "Cassandra's own count", served / MAILS))
    listed = ", ".join(f"{count} {name}" for name, count in sorted(background.items()))
    case = f"{CASE}: {listed or 'none'}"
    results.append(
        compared(
            *("background requests", case, "requests", [sum(background.values())]),
            *("a hundredth of the mails", [MAILS / 100]),
            less_is_better=True,
        )
    )
    return results


def _per_mail(measure: str, total: int, peer: str, theirs: float) -> Result:
    mine = [total / MAILS]
    return compared(measure, CASE, "per mail", mine, peer, [theirs], less_is_better=True)


async def _counted_by_cassandra(where: BenchServers) -> int:
    """Return how many requests all clients made that are connected now."""
    session = where.servers._session
    found = await session.run("SELECT request_count FROM system_views.clients")
    return sum(row["request_count"] for row in found)


@contextmanager
def counting() -> Iterator[Counter[tuple[str, str]]]:
    """Count what the adapters ask for, by server and kind."""
    counts: Counter[tuple[str, str]] = Counter()

    def statement(_: object, each: Statement, *values: object) -> str:
        return NAMES.get(each, "another statement")

    def batch(_: object, together: Sequence[tuple[Statement, object]]) -> str:
        return NAMES.get(together[0][0], "another statement")

    def always(kind: str) -> Callable[..., str]:
        return lambda *_, **__: kind

    kinds: list[tuple[type, str, str, Callable[..., str]]] = [
        (Session, "_page", "Cassandra", statement),
        (Session, "execute_batch", "Cassandra", batch),
        *((Objects, each, "S3", always(each)) for each in S3),
        (Publishing, "send", "RabbitMQ", always("publish")),
        (Unconfirmed, "_resolve", "RabbitMQ", always("confirm")),
        (Subscription, "_on_message", "RabbitMQ", always("delivery")),
        (Subscription, "ack", "RabbitMQ", always("ack")),
    ]

    def counted(method: Any, server: str, kind: Callable[..., str]) -> Any:
        def call(*values: Any, **named: Any) -> Any:
            counts[server, kind(*values)] += 1
            return method(*values, **named)

        return call

    originals = [(owner, name, getattr(owner, name)) for owner, name, _, _ in kinds]
    for owner, name, server, kind in kinds:
        setattr(owner, name, counted(getattr(owner, name), server, kind))
    try:
        yield counts
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
