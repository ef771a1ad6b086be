"""A process that writes 96 configurations one after the other; a test runs and kills it.

python configuration_writer.py KEYSPACE QUEUE
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

import servers
from postroad.adapters.cassandra.history import CassandraHistory
from postroad.adapters.cassandra.session import Session
from postroad.configuration import settle
from postroad.domain.configuration.history import ConfigurationEvent, ConfigurationRefused
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import PostroadError
from postroad.ports.view import History

TRANSITIONS = [
    ViewConfiguration(timedelta(seconds=2 ** (12 - index // 16)), 1 + index) for index in range(96)
]
"""All of them are accepted in this order; halved windows in between."""


async def want_all(history: History) -> None:
    """Settle one after the other, each until its outcome is known."""
    for wanted in TRANSITIONS:
        while True:
            try:
                await settle(history, wanted, at=datetime.now(UTC), by="test")
                break
            except PostroadError as error:
                if not error.transient:
                    raise


def check(events: tuple[ConfigurationEvent, ...]) -> None:
    """Assert that a history has every transition once, in order, without gaps."""
    accepted = [each for each in events if not isinstance(each, ConfigurationRefused)]
    assert [each.sequence for each in events] == list(range(1, len(events) + 1))
    assert [each.version for each in accepted] == list(range(1, len(TRANSITIONS) + 1))
    assert [each.configuration for each in accepted] == TRANSITIONS


async def main(keyspace: str, queue: str) -> None:
    session = Session(servers.cassandra(keyspace))
    await want_all(CassandraHistory(session, queue))
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
