"""The program of a task's pod purges a queue of many mails while others come and go.

POSTROAD_TEST_PURGED_MAILS is how many (400 by default); the test prints how long they took."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from asyncio.subprocess import Process
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

import servers
from contract.queue_harness import plain_mail
from postroad import MailQueue, open_queue
from postroad.domain.queues.documents import selector_value
from postroad.domain.queues.selection import Selector
from support.keyspaces import keyspace

__all__ = ["keyspace"]

PURGED = int(os.environ.get("POSTROAD_TEST_PURGED_MAILS", "400"))
AT_ONCE = 64
MAX_SECONDS, APART = 3, 0.3
SINCE = 40
"""Mails that come after the moment of the task and wait while it runs; at least so many flow."""

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3"),
    pytest.mark.timeout(600 + PURGED // 20, func_only=True),
]


async def fill(queue: MailQueue) -> None:
    """Queue mails that are due in an hour."""
    left = iter(range(PURGED))

    async def enqueue() -> None:
        for number in left:
            await queue.enqueue(plain_mail(f"old{number}"), delay=timedelta(hours=1))

    await asyncio.gather(*(enqueue() for _ in range(AT_ONCE)))


async def deliver(queue: MailQueue, delivered: Counter[str]) -> None:
    async for item in queue.dequeue(prefetch=20):
        async with item:
            delivered[str(item.mail.name)] += 1
            await item.done()


async def begin(url: str, selector: Selector, summary: Path) -> Process:
    """Start what the pod of a task runs."""
    document = json.dumps(selector_value(selector))
    command = ["task", "purge", "--queue", url, "--selector", document, "--summary", str(summary)]
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "postroad", *command)


def counts(summary: Path) -> dict[str, int]:
    """Return what a pod left; of one that was killed early nothing. Of one that was killed amid a
    request it lacks what that request removed."""
    return cast("dict[str, int]", json.loads(summary.read_text())) if summary.exists() else {}


async def test_a_purge_of_many_mails_is_killed_and_repeated_while_mail_flows(
    keyspace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTROAD_CASSANDRA_KEYSPACE", keyspace)
    url, delivered = f"distributed://test.{servers.fresh()}", Counter[str]()
    async with open_queue(url, create=True) as queue:
        began = time.monotonic()
        await fill(queue)
        print(f"{PURGED} mails queued in {time.monotonic() - began:.0f} s")
        await asyncio.sleep(APART)  # the ids of mails have the time of Cassandra
        moment = datetime.now(UTC)
        await asyncio.sleep(APART)
        for number in range(SINCE):
            await queue.enqueue(plain_mail(f"waiting{number}"), delay=timedelta(hours=1))
        sent = [f"waiting{number}" for number in range(SINCE)]

        async def flow() -> None:
            while True:
                mail = plain_mail(f"since{len(sent)}")
                await queue.enqueue(mail)
                sent.append(str(mail.name))
                await asyncio.sleep(0.02)

        working = [asyncio.create_task(each) for each in (flow(), deliver(queue, delivered))]
        began, selector = time.monotonic(), Selector(accepted_before=moment)
        killed = await begin(url, selector, tmp_path / "killed")
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(0, MAX_SECONDS)):
                await killed.wait()
        with suppress(ProcessLookupError):
            killed.kill()
        await killed.wait()
        again = await begin(url, selector, tmp_path / "again")
        assert await again.wait() == 0
        counted = [counts(tmp_path / each) for each in ("killed", "again")]
        repeated = [each.get("repeated", 0) for each in counted]
        done = max(repeated) + sum(each.get("done", 0) for each in counted) - sum(repeated)
        print(f"{done} mails purged in {time.monotonic() - began:.0f} s")
        await queue.flush(Selector.all())
        while len(sent) < 2 * SINCE:
            await asyncio.sleep(0.1)
        working[0].cancel()
        async with asyncio.timeout(120):
            while not {*sent} <= delivered.keys():
                await asyncio.sleep(0.1)

        assert max(each.get("done", 0) for each in counted) <= done <= PURGED
        assert set(delivered.values()) == {1}
        assert [each for each in delivered if each.startswith("old")] == []
        assert (await queue.size()).size == 0
        working[1].cancel()
        await asyncio.gather(*working, return_exceptions=True)
