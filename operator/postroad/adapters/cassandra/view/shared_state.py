"""Entries that the workers of a queue share in Cassandra: rows that expire; the suppression lists,
in 256 partitions, so that a million addresses are four thousand rows in each."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import TypeVar

from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.adapters.cassandra.statements import insert, select
from postroad.adapters.cassandra.view import rows
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressedBy, strongest
from postroad.ports.delivery import Topic

# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound


_OF_TOPIC = "queue = ? AND topic = ?"

PUBLISH = Statement(insert("shared_state", ("queue", "topic", "name", "entry")) + " USING TTL ?")
TAKE_DOWN = Statement(f"DELETE FROM {{keyspace}}.shared_state WHERE {_OF_TOPIC} AND name = ?")
PUBLISHED = Statement(
    select("shared_state", ("topic", "name", "entry"), "queue = ? AND topic IN ?")
)
ERASE_SHARED_STATE = Statement(f"DELETE FROM {{keyspace}}.shared_state WHERE {_OF_TOPIC}")


class CassandraSharedState:
    """The shared state of one queue (see the port)."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session, self._queue = session, queue

    async def publish(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        seconds = max(1, round(lifetime.total_seconds()))
        await self._session.execute(PUBLISH, (self._queue, topic.value, name, text, seconds))

    async def take_down(self, topic: Topic, name: str) -> None:
        await self._session.execute(TAKE_DOWN, (self._queue, topic.value, name))

    async def published(self, topic: Topic) -> Mapping[str, str]:
        return (await self.published_about((topic,)))[topic]

    async def published_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        found = {topic: dict[str, str]() for topic in topics}
        place = (self._queue, [each.value for each in topics])
        async for page in self._session.pages(PUBLISHED, place):
            for row in page:
                found[Topic(row["topic"])][row["name"]] = row["entry"]
        return found


# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound


T = TypeVar("T")

SHARDS = 256

TOGETHER = 50
"""Rows of a batch, and requests at a time."""

_KEY = ("queue", "shard", "tenant", "address_token")
_COLUMNS = (
    *("address_token", "address", "reason", "added_by", "added_at"),
    *("refusals", "is_pending", "expires_at"),
)
_LIST = "queue = ? AND shard = ? AND tenant = ?"

ADD = Statement(
    f"{insert('suppressed_addresses', (*_KEY, *_COLUMNS[1:]))} USING TTL ?", stamped_by_server=True
)
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
        # Those of one batch have one time of writing, by which Cassandra keeps any of them.
        last = {(each.token, each.by): each for each in entries}
        await self._write(ADD, tenant, [(each.token, *_values(each)) for each in last.values()])

    async def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        await self._write(REMOVE, tenant, [(each,) for each in tokens])

    async def _write(
        self, statement: Statement, tenant: str, rows: Iterable[tuple[bytes, *tuple[object, ...]]]
    ) -> None:
        of_shards: dict[int, list[tuple[object, ...]]] = {}
        for row in rows:
            shard = row[0][0]
            of_shards.setdefault(shard, []).append((self._queue, shard, tenant, *row))
        batches = [some for each in of_shards.values() for some in _portions(each)]
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
        found: list[SuppressedAddress] = []
        for some in _portions(questions):
            for answer in await asyncio.gather(
                *(self._session.execute(FIND, each) for each in some)
            ):
                found += map(_entry, answer)
        return strongest(found)

    async def entries(self, tenant: str, after: bytes = b"") -> AsyncIterator[SuppressedAddress]:
        for shard in range(after[0] if after else 0, SHARDS):
            async for page in self._session.pages(LIST, (self._queue, shard, tenant)):
                for row in page:
                    if row["address_token"] > after:
                        yield _entry(row)


async def erase_lists(session: Session, queue: str) -> None:
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
    by, until = SuppressedBy.known(row["added_by"]), row["expires_at"]
    return SuppressedAddress(
        *(row["address_token"], row["address"], row["reason"], by, rows.instant(row["added_at"])),
        count=row["refusals"],
        is_pending=row["is_pending"],
        expires_at=None if until is None else rows.instant(until),
    )


def _values(entry: SuppressedAddress) -> tuple[object, ...]:
    """Return the columns behind the token, and the seconds until the row goes; 0: it stays."""
    until = entry.expires_at
    seconds = 0 if until is None else max(1, round((until - entry.added_at).total_seconds()))
    return (entry.address, entry.reason, entry.by.value, entry.added_at, entry.count,
            entry.is_pending, until, seconds)  # fmt: skip
