# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound
"""The shared state of a queue in Cassandra: rows that expire."""

from collections.abc import Collection, Mapping
from datetime import timedelta

from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.statements import insert, select
from postroad.ports.delivery import Topic

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
