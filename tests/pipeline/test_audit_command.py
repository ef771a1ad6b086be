"""`postroad pipeline audit` over real servers, with planted faults: it finds exactly these, and the
engine repairs what it can."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from click.testing import Result

from pipeline.conftest import RunJob
from postroad import Mail, open_queue
from postroad.distributed import opening
from postroad.domain.names import QueueName
from postroad.pipeline.findings import FindingKind
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

WHOLE, ENDED = range(40), range(40, 60)
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


async def test_exactly_the_planted_faults_are_found_and_repaired(
    run_job: RunJob, url: str, name: QueueName, real: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_RACING", 9 * HOUR)  # mail of some hours ago fits in
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
        young = {await queue.enqueue(Mail("live@example.org", ("b@example.net",), b"x"))}

        found, repaired, named = found_in(await run_job("audit", "--queue", url, "--json"))

        entries = {each: planted.entry(each) for each in (*BYTELESS, *MARKS, *ORPHANS)}
        assert found == {
            "orphan bytes": len(ORPHANS),
            "waiting mail without bytes": len(BYTELESS),
            "mark without a row": len(MARKS),
            "misplaced row": len(MISPLACED),
            "lost messages": len(SILENT) - len(young),  # theirs hide as many
        }
        assert repaired == {}
        assert named["orphan bytes"] == {entries[each].blob_key for each in ORPHANS}
        assert named["waiting mail without bytes"] == {
            str(entries[each].enqueue_id) for each in BYTELESS
        }
        assert named["mark without a row"] == {str(entries[each].enqueue_id) for each in MARKS}
        assert named["misplaced row"] == {str(each.enqueue_id) for each in misplaced}

        found, repaired, _ = found_in(await run_job("audit", "--queue", url, "--repair", "--json"))
        assert repaired == {
            "orphan bytes": len(ORPHANS),
            "waiting mail without bytes": len(BYTELESS),
            "lost messages": len(SILENT) - len(young),
        }

        text = await run_job("audit", "--queue", url)
        assert text.exit_code == 0, text.output
        assert found_lines(text.stdout) == {
            "orphan bytes": "0",
            "waiting mail without bytes": "0",
            "mark without a row": str(len(MARKS)),
            "misplaced row": str(len(MISPLACED)),
            "vanished rows": "0",
            "lost messages": "0",
        }

        waiting = [each async for each in queue.browse()]
        senders = Counter(each.mail.sender for each in waiting)
        assert senders == {
            "a@example.org": len(WHOLE) + len(MISPLACED) + len(SILENT),
            "live@example.org": len(young),
        }
        letters = [each async for each in queue.dead_letters()]
        assert {each.mail_id for each in letters} == {entries[each].mail_id for each in BYTELESS}
        keys = {each async for each in blobs.keys(f"{name}/20")}
        assert len(keys) == len(waiting)

        _, line = documents(await run_job("ages", "--queue", url, "--json"))
        assert (line["domain"], line["total"]) == ("example.net", len(waiting))
        assert line["ages"]["older"] + line["ages"]["10h40m"] == len(waiting) - len(young)
        options = ("--queue", url, "--sender", "live@example.org", "--json")
        assert documents(await run_job("apply", "hold", *options)) == [
            {"operation": "hold", "count": len(young)}
        ]
        held = [each.mail.sender async for each in queue.browse() if each.held]
        assert held == ["live@example.org"] * len(young)
