"""One life of a `postroad intake` whose queue has the durations of a run; each mail that comes into
the queue is recorded. All else is the product's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chaos.opening import NAMESPACE, Opening
from chaos.workload import name_of
from postroad.cli import main
from postroad.cli.processes import long_running
from postroad.ports.mail_queue import MailQueue

AGAIN = 1.0
"""Seconds between two tries to open the queue."""


def receive(file: Path, opening: Callable[[], Opening]) -> None:
    """Run the command by a file of intake, which is named by its queue."""
    queue = file.stem.removeprefix("intake-")
    patiently = long_running.open_patiently

    async def opened(settings: Any, url: str, **more: Any) -> MailQueue | None:
        if not url.startswith("distributed:"):  # the store of the outbox
            return await patiently(settings, url, **more)
        opens = opening()
        while True:
            try:
                found = await opens.open(queue)
            except Exception:  # servers are away
                await asyncio.sleep(AGAIN)
            else:
                _record(opens, found)
                opens.recorder.note("open")
                return found

    url = f"distributed://{NAMESPACE}.{queue}"
    words = ["postroad", "intake", "--queue", url, "--intake", str(file)]
    with patch.object(long_running, "open_patiently", opened), patch.object(sys, "argv", words):
        main()


def _record(opening: Opening, queue: Any) -> None:
    """Note each mail that is in the queue, by the name that its client gave it."""
    enqueue = queue.enqueue

    async def recorded(mail: Any, *arguments: Any, **more: Any) -> Any:
        found = await enqueue(mail, *arguments, **more)
        opening.recorder.note("queued", mail=name_of(mail))
        return found

    queue.enqueue = recorded
