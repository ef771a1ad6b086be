"""`postroad pipeline traffic`, `destinations`, `trace` and `advise` over real servers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import Result

from pipeline.conftest import RunJob
from postroad import Mail, Selector, open_queue
from postroad.domain.queues.entries import slice_of
from postroad.domain.queues.names import QueueName
from postroad.ports.servers import Servers
from postroad.ports.view import View
from support.stored_queue import HOUR, close_slices, fill, name, real, url

__all__ = ["name", "real", "url"]

pytestmark = [
    pytest.mark.needs("java", "mvn", "rabbitmq", "cassandra", "s3"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


async def close_all(view: View) -> None:
    """Close the slices that have rows, as if their hour and the grace period were over."""
    now = (await view.server_times()).times[0].time
    rows: dict[Any, Counter[int]] = {}
    starts = [slice_of(now - HOUR, HOUR), slice_of(now, HOUR)]
    for partition in await view.occupied(starts, 3):
        ids = [each async for each in view.rows(partition)]
        rows.setdefault(partition.slice_start, Counter())[partition.bucket_id] = len(ids)
    await close_slices(view, rows)


def documents(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_what_the_lake_answers(
    run_job: RunJob,
    url: str,
    name: QueueName,
    real: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = tmp_path / "summary"
    monkeypatch.setenv("POSTROAD_PIPELINE_SUMMARY_FILE", str(summary))
    async with open_queue(url, create=True) as queue:
        await fill(queue)
        view = real.views().view(str(name))
        missing = await run_job("pipeline", "traffic", "--queue", url)
        assert missing.exit_code == 1
        assert "run `postroad pipeline archive` first" in missing.stderr
        await close_all(view)
        documents(await run_job("pipeline", "archive", "--queue", url, "--json"))
        await queue.remove(Selector(name="held"))
        late = await queue.enqueue(Mail("new@example.org", ("b@example.net",), b"x"))

        head, line = documents(
            await run_job("pipeline", "traffic", "--queue", url, "--by", "nothing", "--json")
        )
        assert (head["job"], line["accepted"], line["attempts"]) == ("traffic", 21, 12)
        assert line["delivered"] + line["rejected"] + line["removed"] < 21  # some wait still
        assert head["as_of"] is not None

        text = await run_job("pipeline", "traffic", "--queue", url, "--by", "domain")
        assert text.exit_code == 0, text.output
        assert "example.com" in text.stdout
        assert "note: the answer lacks what happened since" in text.stdout
        assert "mx.example.net" not in text.stdout

        _, *lines = documents(await run_job("pipeline", "destinations", "--queue", url, "--json"))
        assert {(each["domain"], each["site"]) for each in lines} == {
            ("example.net", "mx.example.net"),
            ("example.com", "mx.example.net"),
        }

        assert json.loads(summary.read_text())["counts"] == {"lines": 2}
        assert json.loads(summary.read_text())["findings"] == 0

        # The lake has what was archived, the view what came since.
        head, *entries = documents(
            await run_job("trace", "--queue", url, "new@example.org", "--json")
        )
        assert [UUID(each["enqueue_id"]) for each in entries] == [late]
        assert (head["lacking"], head["as_of"]) == ([], None)
        assert entries[0]["state"] == "waiting"
        nothing = await run_job("trace", "--queue", url, "nothing")
        assert (nothing.exit_code, "neither an id nor an address" in nothing.stderr) == (1, True)

        _, *advice = documents(await run_job("pipeline", "advise", "--queue", url, "--json"))
        assert [each["field"] for each in advice] == [
            *("sliceWindow", "bucketCount", "updateBrowseStartPace"),
        ]
        assert "too little history" in advice[0]["reason"]

        reported = await run_job("pipeline", "report", str(tmp_path / "report"), "--queue", url)
        assert reported.exit_code == 0, reported.output
        page = (tmp_path / "report/index.html").read_text()
        pictures = {each.stem for each in (tmp_path / "report").glob("*.png")}
        assert page.count("data:image/png") == len(pictures) == 10
        assert {f"{each}-dark" for each in pictures if not each.endswith("-dark")} < pictures
        assert "example.net" in page

        place = tmp_path / "exported"
        options = ("--queue", url, "--format", "json", "--json")
        (exported,) = documents(await run_job("pipeline", "export", str(place), *options))
        written = "".join(each.read_text() for each in place.glob("*.json")).splitlines()
        assert len(written) == exported["count"] > 14
        refused = await run_job("pipeline", "export", str(place), *options)
        assert "name a new directory" in refused.stderr
        (forgotten,) = documents(
            await run_job("pipeline", "forget", "a1@example.org", "--queue", url, "--json")
        )
        texts = [line for line in written if "a1@example.org" in line]
        assert forgotten["entries"] == len(texts) > 0
        _, line = documents(
            await run_job("pipeline", "traffic", "--queue", url, "--by", "nothing", "--json")
        )
        assert line["accepted"] == 21
