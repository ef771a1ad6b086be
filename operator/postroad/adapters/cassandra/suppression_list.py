# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound
"""The suppression lists of a queue in Cassandra: rows that do not expire, in 256 partitions, so
that a million addresses are four thousand rows in each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from postroad.adapters.cassandra import rows
from postroad.adapters.cassandra.cql import insert, select
from postroad.adapters.cassandra.loop_bridge import Row
from postroad.adapters.cassandra.session import Session, Statement
from postroad.domain.suppressed import SuppressedAddress, SuppressedBy

T = TypeVar("T")

SHARDS = 256

TOGETHER = 50
"""Rows of a batch, and requests at a time."""

_KEY = ("queue", "shard", "tenant", "address_token")
_COLUMNS = ("address_token", "address", "reason", "added_by", "added_at")
_LIST = "queue = ? AND shard = ? AND tenant = ?"

ADD = Statement(insert("suppressed_addresses", (*_KEY, *_COLUMNS[1:])), stamped_by_server=True)
"""Stamped by the server, as REMOVE is, so that the clocks of two machines do not decide which of
the two came last."""

REMOVE = Statement(
    f"DELETE FROM {{keyspace}}.suppressed_addresses WHERE {_LIST} AND address_token = ?",
    stamped_by_server=True,
)
FIND = Statement(select("suppressed_addresses", _COLUMNS, f"{_LIST} AND address_token IN ?"))
LIST = Statement(select("suppressed_addresses", _COLUMNS, _LIST), page_size=1000)
ERASE_SHARDS = Statement(
    "DELETE FROM {keyspace}.suppressed_addresses WHERE queue = ? AND shard IN ?",
    stamped_by_server=True,
)


class CassandraSuppressionList:
    """The lists of one queue (see the port)."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session, self._queue = session, queue

    async def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        by_token = {each.token: each for each in entries}
        values = {
            token: (each.address, each.reason, each.by.value, each.added_at)
            for token, each in by_token.items()
        }
        await self._write(ADD, tenant, values)

    async def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        await self._write(REMOVE, tenant, dict.fromkeys(tokens, ()))

    async def _write(
        self, statement: Statement, tenant: str, values: Mapping[bytes, tuple[object, ...]]
    ) -> None:
        batches = [
            [(self._queue, shard, tenant, token, *values[token]) for token in some]
            for shard, tokens in _by_shard(values)
            for some in _portions(tokens)
        ]
        for some in _portions(batches):
            await asyncio.gather(
                *(self._session.execute_together(statement, each) for each in some)
            )

    async def find(
        self, tenant: str, tokens: Collection[bytes]
    ) -> Mapping[bytes, SuppressedAddress]:
        questions = [
            (self._queue, shard, tenant, some)
            for shard, of_shard in _by_shard(tokens)
            for some in _portions(of_shard)
        ]
        found: dict[bytes, SuppressedAddress] = {}
        for some in _portions(questions):
            for answer in await asyncio.gather(
                *(self._session.execute(FIND, each) for each in some)
            ):
                found |= {entry.token: entry for entry in map(_entry, answer)}
        return found

    async def entries(self, tenant: str) -> AsyncIterator[SuppressedAddress]:
        for shard in range(SHARDS):
            async for page in self._session.pages(LIST, (self._queue, shard, tenant)):
                for row in page:
                    yield _entry(row)


async def erase_lists(session: Session, queue: str) -> None:
    """Delete all lists of a queue."""
    for some in _portions(range(SHARDS)):
        await session.execute(ERASE_SHARDS, (queue, some))


def _by_shard(tokens: Iterable[bytes]) -> Iterable[tuple[int, list[bytes]]]:
    found: dict[int, list[bytes]] = {}
    for token in tokens:
        found.setdefault(token[0], []).append(token)
    return found.items()


def _portions(values: Iterable[T]) -> Iterator[list[T]]:
    left = iter(values)
    while portion := list(islice(left, TOGETHER)):
        yield portion


def _entry(row: Row) -> SuppressedAddress:
    by = SuppressedBy.known(row["added_by"])
    return SuppressedAddress(
        row["address_token"], row["address"], row["reason"], by, rows.instant(row["added_at"])
    )
