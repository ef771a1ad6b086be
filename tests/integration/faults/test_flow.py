"""Mail flows while a server stands still, is killed, or is cut off: no acknowledged mail is lost,
no mail comes that was not offered, and all goes on without a restart of our process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import servers as names
from integration.faults.conftest import SERVERS, Victims
from postroad import open_queue
from postroad.errors import ConfigurationStale
from postroad.ports.mail_queue import MailQueue
from support.flow import PREFETCH, Flow, flowing
from support.lines import Lines

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(600)]

LONG_SECONDS = 60
"""Longer than every timeout and deadline of postroad, and than the heartbeats of the broker and the
driver."""

CUT_SECONDS = 15
"""Longer than a heartbeat: processes give connections up, and stale requests arrive afterwards."""


@pytest.fixture
async def lines(victims: Victims) -> AsyncIterator[Lines]:
    made = await victims.lines()
    yield made
    await made.close()


@pytest.fixture
async def handles(lines: Lines) -> AsyncIterator[tuple[MailQueue, MailQueue]]:
    """Two handles on one new queue, with connections of their own."""
    url = f"distributed://test.{names.fresh()}"
    producer = await open_queue(url, create=True, settings=lines.settings)
    consumer = await open_queue(url, settings=lines.settings)
    yield producer, consumer
    await consumer.close()
    await producer.close()


async def check(flow: Flow, queue: MailQueue, faults: int) -> None:
    """Only mails that were in flight at a fault may come twice. Only mails that were reported as
    failed may come unexpectedly, or still wait for their withdrawal."""
    print(flow)
    assert not flow.lost
    assert flow.unexpected <= flow.failed.keys()
    assert flow.duplicates <= faults * PREFETCH
    left = await browsed(queue)
    assert left <= flow.failed.keys()


async def browsed(queue: MailQueue) -> set[str | None]:
    """Return the names of the mails that wait. A handle that could not read its configuration for a
    lease reads it again by itself, some seconds after Cassandra is back."""
    async with asyncio.timeout(60):
        while True:
            try:
                return {each.mail.name async for each in queue.browse()}
            except ConfigurationStale:
                await asyncio.sleep(1)


async def test_cassandra_stands_still_for_a_minute(
    victims: Victims, handles: tuple[MailQueue, MailQueue]
) -> None:
    async with flowing(*handles) as flow:
        await victims.pause("cassandra")
        await asyncio.sleep(LONG_SECONDS)
        await victims.resume("cassandra")

    await check(flow, handles[1], faults=1)
    assert flow.failed


async def test_each_server_is_killed_in_turn(
    victims: Victims, handles: tuple[MailQueue, MailQueue]
) -> None:
    async with flowing(*handles) as flow:
        for server in SERVERS:
            await victims.kill(server)
            await victims.up(server)
            await flow.more(20)

    await check(flow, handles[1], faults=len(SERVERS))


async def test_the_line_to_each_server_is_dead_in_turn(
    lines: Lines, handles: tuple[MailQueue, MailQueue]
) -> None:
    async with flowing(*handles) as flow:
        for server in SERVERS:
            lines.forwarders[server].silence()
            await asyncio.sleep(CUT_SECONDS)
            await lines.forwarders[server].mend()
            await flow.more(20)

    await check(flow, handles[1], faults=len(SERVERS))
