"""Outcomes of a real worker reach a console that follows its queue, over both engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from integration.test_events_of_processes import KINDS, a_queue, an_mta, refusing
from postroad.adapters.clocks import MachineClock
from postroad.bootstrap import open_queue
from postroad.console.outcomes import OutcomeFeeds
from postroad.console.queues import ConsoleQueue, names_of
from postroad.ports.delivery import Topic
from support.sink import Sink
from support.small_mta import send


@pytest.mark.parametrize("kind", KINDS)
async def test_what_becomes_of_mail_is_followed_while_it_happens(kind: str, tmp_path: Path) -> None:
    async with a_queue(kind, tmp_path) as url, Sink(refusing) as sink:
        program, port = await an_mta(tmp_path, url, sink, [])
        try:
            async with await open_queue(url) as queue:
                shared, feeds = queue.shared_state, OutcomeFeeds(MachineClock())
                assert shared is not None
                async with feeds.follow(ConsoleQueue(names_of([url])[0], queue)) as feed:
                    await asyncio.sleep(7)  # workers look each five seconds
                    sent = await asyncio.to_thread(send, port, ["b", "no", "later"])
                    assert sent == ["b", "no", "later"]
                    found: dict[str, Any] = {}
                    async with asyncio.timeout(60):
                        while found.keys() != {"delivered", "failed", "deferred"}:
                            lines, missed = feed.since((0, 0))
                            found = {each["outcome"]: each for each in lines}
                            await asyncio.sleep(0.1)
                    assert missed == 0
                assert await shared.published(Topic.WATCHERS) == {}
        finally:
            assert await program.stop() == 0

    assert {each["domain"] for each in found.values()} == {"dest.example"}
    assert "no@" not in json.dumps(found)
    assert found["delivered"]["connection"]["port"] == sink.port
