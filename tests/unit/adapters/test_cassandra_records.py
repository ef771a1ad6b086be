"""Delivery records go to Cassandra together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.domain.mail.mail import Outcome
from postroad.ports.view import Record

MAIL, NOON = UUID(int=1), datetime(2026, 11, 21, 12, tzinfo=UTC)


class Server:
    """Notes the values of each request."""

    def __init__(self) -> None:
        self.requests: list[Sequence[Sequence[Any]]] = []

    async def execute(self, statement: Statement, values: Sequence[Any]) -> list[Any]:
        self.requests.append([values])
        return []

    async def execute_together(
        self, statement: Statement, many: Sequence[Sequence[Any]]
    ) -> list[Any]:
        self.requests.append(many)
        return []


@pytest.mark.parametrize(
    ("count", "requests"), [(0, []), (1, [1]), (50, [50]), (100, [100]), (250, [100, 100, 50])]
)
async def test_records_of_a_mail_share_requests(count: int, requests: list[int]) -> None:
    server = Server()
    records = tuple(Record(f"r{n}@x", Outcome.failed(f"550 {n}"), NOON) for n in range(count))

    await CassandraView(cast("Session", server), "mail.out").record(MAIL, records)

    assert [len(each) for each in server.requests] == requests
    assert [values for each in server.requests for values in each] == [
        ("mail.out", MAIL, f"r{n}@x", "failed", f"550 {n}", NOON) for n in range(count)
    ]
