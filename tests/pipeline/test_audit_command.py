"""`postroad audit --deep` over real servers, with planted faults, beside a producer and a
consumer. It finds exactly these, and the engine repairs what it can."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from typing import Any
from uuid import UUID

import pytest
from click.testing import Result

from pipeline.conftest import RunJob
from postroad import Mail, open_queue
from postroad.distributed import mail_queue
from postroad.domain.queues.names import QueueName
from postroad.pipeline.results.findings import FindingKind
from postroad.ports.broker import Broker
from postroad.ports.mail_queue import MailQueue
from postroad.ports.servers import Servers
from support.planted_faults import PlantedFaults
from support.stored_queue import HOUR, name, real, url

__all__ = ["name", "real", "url"]

pytestmark = [
    pytest.mark.needs("java", "mvn", "rabbitmq", "cassandra", "s3"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

WHOLE, ENDED = range(200, 300), range(40, 60)
ORPHANS, BYTELESS, MARKS = range(100, 106), range(110, 115), range(120, 124)
MISPLACED, SILENT = range(130, 133), range(140, 147)


def documents(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def found_in(result: Result) -> tuple[dict[str, int], dict[str, int], dict[str, set[Any]]]:
    """What was found and repaired by kind, and the findings' entries, or objects."""
    _, *lines = documents(result)
    summaries, findings = lines[: len(FindingKind)], lines[len(FindingKind) :]
    named = defaultdict(set)
    for each in findings:
        named[each["kind"]].add(
            each["blob_key"] if each["kind"] == "orphan bytes" else each["enqueue_id"]
        )
    found = {each["kind"]: each["found"] for each in summaries if each["found"]}
    repaired = {each["kind"]: each["repaired"] for each in summaries if each["repaired"]}
    return found, repaired, named


def found_lines(text: str) -> dict[str, str]:
    """The numbers of the table at the top."""
    _, *lines = text.split("\n\n")[0].splitlines()
    cells = (re.split(r"  +", line) for line in lines)
    return {kind: found for kind, found, *_ in cells}


class Traffic:
    """A producer and a consumer on a queue, until they rest."""

    def __init__(self, queue: MailQueue, broker: Broker) -> None:
        self._queue = queue
        self._broker = broker
        self._rests = False
        self.delivered: list[UUID] = []
        """Ids of mails."""
        self._tasks = [asyncio.create_task(each) for each in (self._produce(), self._consume())]

    async def _produce(self) -> None:
        while not self._rests:
            await self._queue.enqueue(Mail("passes@example.org", ("b@example.net",), b"x"))
            await asyncio.sleep(0.1)

    async def _consume(self) -> None:
        async for item in self._queue.dequeue(prefetch=4):
            await item.done()
            self.delivered.append(item.mail_id)
            if not self._rests:
                await asyncio.sleep(0.1)

    async def rest(self, silent: set[UUID]) -> None:
        """Stop the producer; the consumer delivers all but what is held or has no message."""
        self._rests = True
        await self._tasks[0]
        while await self._left() > silent or await self._messages():
            await asyncio.sleep(0.1)
        self._tasks[1].cancel()
        await asyncio.wait(self._tasks)

    async def _messages(self) -> int:
        """What RabbitMQ reports, which is some seconds old."""
        depths = await self._broker.depths()
        return depths.work + depths.dead + (depths.leased or 0)

    async def _left(self) -> set[UUID]:
        return {each.mail_id async for each in self._queue.browse() if not each.held}


async def test_exactly_the_planted_faults_are_found_and_repaired_beside_traffic(
    run_job: RunJob, url: str, name: QueueName, real: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_queue, "MAX_RACING", 9 * HOUR)  # mail of some hours ago fits in
    view, bucket = real.views().view(str(name)), name.bucket("postroad-")
    blobs, broker = real.blobs(bucket), real.broker(name)
    async with open_queue(url, create=True) as queue:
        start = (await view.limits()).browse_start
        assert start is not None
        planted = PlantedFaults(name, view, blobs, broker, start + HOUR / 2)
        await planted.mails(WHOLE)
        await planted.ended(ENDED)
        await planted.objects(ORPHANS)
        await planted.without_bytes(BYTELESS)
        await planted.marks(MARKS)
        misplaced = await planted.misplaced(MISPLACED)
        await planted.without_message(SILENT)
        entries = {each: planted.entry(each) for each in (*BYTELESS, *MARKS, *ORPHANS)}
        named_only = {"mark without a row": len(MARKS), "misplaced row": len(MISPLACED)}
        repairable = {
            "orphan bytes": len(ORPHANS),
            "waiting mail without bytes": len(BYTELESS),
        }
        traffic = Traffic(queue, broker)

        found, repaired, named = found_in(
            await run_job("audit", "--deep", "--queue", url, "--json")
        )

        assert found.pop("lost messages", 0) <= len(SILENT)  # those of live mail hide some
        assert found == named_only | repairable
        assert repaired == {}
        assert named["orphan bytes"] == {entries[each].blob_key for each in ORPHANS}
        assert named["waiting mail without bytes"] == {
            str(entries[each].enqueue_id) for each in BYTELESS
        }
        assert named["mark without a row"] == {str(entries[each].enqueue_id) for each in MARKS}
        assert named["misplaced row"] == {str(each.enqueue_id) for each in misplaced}

        found, repaired, _ = found_in(
            await run_job("audit", "--deep", "--queue", url, "--repair", "--json")
        )
        lost = found.pop("lost messages", 0)
        assert repaired.pop("lost messages", 0) == lost
        assert (found, repaired) == (named_only | repairable, repairable)
        assert {planted.entry(each).mail_id for each in WHOLE} & set(traffic.delivered)
        # Where some lack a message, all that wait have got one.
        silent = set() if lost else {planted.entry(each).mail_id for each in SILENT}
        await traffic.rest(silent)

        expected = {"lost messages": len(silent)} if silent else {}
        found, repaired, _ = found_in(
            await run_job("audit", "--deep", "--queue", url, "--repair", "--json")
        )
        assert (found, repaired) == (named_only | expected, expected)

        text = await run_job("audit", "--deep", "--queue", url)
        assert text.exit_code == 0, text.output
        none = dict.fromkeys((*repairable, "vanished rows", "lost messages"), "0")
        assert found_lines(text.stdout) == none | {
            kind: str(number) for kind, number in named_only.items()
        }

        left = set(traffic.delivered)
        assert len(left) == len(traffic.delivered), "no mail is delivered twice"
        assert {planted.entry(each).mail_id for each in WHOLE} <= left
        dead_letters = [each async for each in queue.dead_letters()]
        assert {each.mail_id for each in dead_letters} == {
            entries[each].mail_id for each in BYTELESS
        }
        young = {await queue.enqueue(Mail("live@example.org", ("b@example.net",), b"x"))}
        waiting = [each async for each in queue.browse()]
        assert len(waiting) == len(MISPLACED) + len(silent) + len(young)
        keys = {each async for each in blobs.keys(f"{name}/20")}
        assert len(keys) == len(waiting)

        _, line = documents(await run_job("ages", "--spark", "--queue", url, "--json"))
        assert (line["domain"], line["total"]) == ("example.net", len(waiting))
        assert line["ages"]["older"] + line["ages"]["10h40m"] == len(waiting) - len(young)
        options = ("--queue", url, "--sender", "live@example.org", "--json")
        assert documents(await run_job("hold", "--spark", *options)) == [{"count": len(young)}]
        held = [str(each.mail.sender) async for each in queue.browse() if each.held]
        assert sorted(held) == ["a@example.org"] * len(MISPLACED) + ["live@example.org"]
