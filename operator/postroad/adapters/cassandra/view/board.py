# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound
"""The board of a queue in Cassandra: rows that expire."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from postroad.adapters.cassandra.connection.session import Session, Statement
from postroad.adapters.cassandra.statements import insert, select
from postroad.ports.delivery import Topic

_OF_TOPIC = "queue = ? AND topic = ?"

POST = Statement(insert("board", ("queue", "topic", "name", "note")) + " USING TTL ?")
TAKE_DOWN = Statement(f"DELETE FROM {{keyspace}}.board WHERE {_OF_TOPIC} AND name = ?")
POSTED = Statement(select("board", ("topic", "name", "note"), "queue = ? AND topic IN ?"))
ERASE_BOARD = Statement(f"DELETE FROM {{keyspace}}.board WHERE {_OF_TOPIC}")


class CassandraBoard:
    """The board of one queue (see the port)."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session, self._queue = session, queue

    async def post(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        seconds = max(1, round(lifetime.total_seconds()))
        await self._session.execute(POST, (self._queue, topic.value, name, text, seconds))

    async def take_down(self, topic: Topic, name: str) -> None:
        await self._session.execute(TAKE_DOWN, (self._queue, topic.value, name))

    async def posted(self, topic: Topic) -> Mapping[str, str]:
        return (await self.posted_about((topic,)))[topic]

    async def posted_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        found = {topic: dict[str, str]() for topic in topics}
        place = (self._queue, [each.value for each in topics])
        async for page in self._session.pages(POSTED, place):
            for row in page:
                found[Topic(row["topic"])][row["name"]] = row["note"]
        return found
