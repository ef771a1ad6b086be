"""Clients ask for the mail that waits for a domain. Source: RFC 1985."""

from __future__ import annotations

import asyncio
import smtplib
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from postroad.domain.queues.selection import Selector
from postroad.intake import own_domains
from postroad.intake.own_domains import DomainFlushes
from postroad.ports.mail_queue import MailQueue
from support.intake_files import SUBMISSION, RunningIntake, an_intake_by_file
from support.recording_queue import RecordingQueue

DOCUMENT: dict[str, Any] = {
    "listeners": [
        {"name": "relay", "role": "relay", "from": ["127.0.0.1"]},
        {"name": "other", "role": "relay", "from": ["192.0.2.1"]},
        {"name": "mx", "role": "mx"},
        *SUBMISSION["listeners"],
    ],
    "users": SUBMISSION["users"],
    "domains": [{"name": "own.example"}],
}


class FlushedQueue(RecordingQueue):
    """A queue that records flushes, and ends none before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[Selector] = []

    async def flush(self, selector: Selector) -> int:
        self.flushed.append(selector)
        await self.gate.wait()
        return 1


def codes(running: RunningIntake, listener: str, *lines: str) -> list[int]:
    port = running.ports[listener]
    with smtplib.SMTP("127.0.0.1", port, "c.example", timeout=20) as client:
        client.ehlo()
        assert client.has_extn("etrn") is (listener != "mx")
        return [client.docmd(each)[0] for each in lines]


async def test_clients_that_may_relay_ask_for_a_domain(tmp_path: Path) -> None:
    queue = FlushedQueue()
    lines = ("ETRN Dest.example", "ETRN dest.example", "ETRN", "ETRN @dest.example")
    async with an_intake_by_file(tmp_path, DOCUMENT, queue=cast("MailQueue", queue)) as running:
        said = [
            await asyncio.to_thread(codes, running, "relay", *lines),
            await asyncio.to_thread(codes, running, "relay", "MAIL FROM:<>", lines[0]),
            await asyncio.to_thread(codes, running, "other", lines[0]),
            await asyncio.to_thread(codes, running, "submission", lines[0]),
            await asyncio.to_thread(codes, running, "mx", lines[0]),
        ]

    assert said == [[250, 250, 501, 501], [250, 503], [459], [459], [502]]
    assert queue.flushed == [Selector(domain="dest.example")]


async def test_a_domain_is_flushed_once_a_minute_and_few_are_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_domains, "MAX_FLUSHES", 2)
    queue, now = FlushedQueue(), [0.0]
    flushes = DomainFlushes(cast("MailQueue", queue), lambda: now[0])
    queue.gate.clear()

    assert [flushes.begin(each).code for each in ("a", "b", "a", "c")] == [250, 250, 250, 458]
    await asyncio.sleep(0)
    queue.gate.set()
    await asyncio.sleep(0.01)
    assert [flushes.begin(each).code for each in ("c", "a")] == [250, 250]
    now[0] += timedelta(minutes=1).total_seconds()
    assert flushes.begin("a").code == 250
    await asyncio.sleep(0.01)

    assert [each.domain for each in queue.flushed] == ["a", "b", "c", "a"]
