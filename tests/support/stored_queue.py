"""A queue on real servers in a keyspace of its own, for the commands of the pipeline."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from postroad import AttemptOutcomes, Mail, Outcome, Selector
from postroad.bootstrap.cluster import connect
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.names import QueueName
from postroad.ports.mail_queue import MailQueue
from postroad.ports.servers import Servers
from postroad.ports.view import ClosedSlice, View
from postroad.settings import from_environment
from support.servers import cql

HOUR = timedelta(hours=1)
OUTCOME = Outcome(OutcomeKind.DELIVERED, "250 2.0.0 queued", "mx.example.net")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a queue of this test alone, in a keyspace of its own."""
    word = secrets.token_hex(4)
    monkeypatch.setenv("POSTROAD_CASSANDRA_KEYSPACE", f"archive_{word}")
    yield f"distributed://archive-{word}.outgoing"
    cql(f"DROP KEYSPACE IF EXISTS archive_{word}")


@pytest.fixture
def name(url: str) -> QueueName:
    return QueueName.parse(url.removeprefix("distributed://"))


@pytest.fixture
async def real(name: QueueName) -> AsyncIterator[Servers]:
    found = connect(from_environment())
    yield found
    await found.broker(name).delete()
    await found.blobs(name.bucket("postroad-")).drop()
    await found.close()


async def fill(queue: MailQueue) -> dict[UUID, AttemptOutcomes]:
    """Let mails meet every fate; return the outcomes that their entries ended with."""
    for number in range(14):
        mail = Mail(
            sender=f"a{number % 2}@example.org",
            recipients=("b@example.net", "c@Example.COM")[: number % 2 + 1],
            content=b"x" * number,
            name="held" if number >= 12 else None,
        )
        await queue.enqueue(mail, delay=HOUR if number >= 8 else timedelta(0))
    kept = {}
    items = queue.dequeue(prefetch=1)
    for number in range(8):
        item = await anext(items)
        outcomes = AttemptOutcomes.of(dict.fromkeys(item.mail.recipients, OUTCOME), 0.5)
        kept[item.enqueue_id] = outcomes
        if number < 4:
            await item.done(outcomes)
        elif number < 6:
            await item.retry(HOUR, outcomes=outcomes)
        else:
            await item.reject("550 no", outcomes)
    await queue.remove(Selector(sender="a0@example.org"))
    return kept


async def close_slices(view: View, rows: Mapping[datetime, Mapping[int, int]]) -> None:
    """Close slices of an hour with these rows by bucket, as maintenance does later."""
    for start, by_bucket in rows.items():
        await view.close_slice(ClosedSlice(start, HOUR, by_bucket))
    first = min(rows)
    await view.advance(content_start=first, browse_start=first)
