"""Gauges of a queue in the process that owns its directory."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from threading import get_ident

import pytest
from prometheus_client import REGISTRY

from postroad import Mail, Selector, open_queue
from postroad.embedded.store.ready_queues import ReadyQueues


def mails(name: str, state: str) -> float | None:
    labels = {"namespace": "", "name": name, "state": state}
    return REGISTRY.get_sample_value("postroad_queue_mails", labels)


async def test_a_scrape_counts_mails_by_state_until_the_queue_is_closed(tmp_path: Path) -> None:
    name, labels = str(tmp_path), {"namespace": "", "name": str(tmp_path)}
    async with open_queue(f"embedded://{tmp_path}", create=True) as queue:
        for sender in ("a", "b", "c", "d"):
            mail = Mail(f"{sender}@x.example", ("r@y.example",), b"x\r\n")
            await queue.enqueue(mail, timedelta(hours=sender == "b"))
        await queue.hold(Selector(sender="c@x.example"))
        await queue.expire(Selector(sender="d@x.example"))
        await queue.size()  # until the store is indexed

        found = {state: mails(name, state) for state in ("waiting", "delayed", "held", "dead")}
        assert found == {"waiting": 1, "delayed": 1, "held": 1, "dead": 1}
        assert REGISTRY.get_sample_value("postroad_queue_due_mails", labels) == 1
        oldest = REGISTRY.get_sample_value("postroad_queue_oldest_due_seconds", labels)
        assert oldest is not None
        assert 0 <= oldest < 3600

    assert mails(name, "waiting") is None


async def test_a_scrape_in_another_thread_takes_nothing_from_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at what is first and the removal of that, a mail could be dropped."""
    honest, threads = ReadyQueues.firsts, set[int]()

    def firsts(queues: ReadyQueues) -> object:
        threads.add(get_ident())
        return honest(queues)

    monkeypatch.setattr(ReadyQueues, "firsts", firsts)
    async with open_queue(f"embedded://{tmp_path}", create=True) as queue:
        await queue.enqueue(Mail("a@x.example", ("r@y.example",), b"x\r\n"))
        await queue.size()

        assert await asyncio.to_thread(mails, str(tmp_path), "waiting") == 1
        assert threads == {get_ident()}
