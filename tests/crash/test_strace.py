"""Real files and real system calls: killed at each write and sync, failed at each call, counted.

strace sends SIGKILL at the n-th call of a kind, or makes it fail. A kill leaves the page cache, so
this proves the code's own order; what a power cut leaves is proven on the lossy disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from crash import driver
from postroad import Selector, open_queue

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.timeout(280),
]
ROOT = Path(__file__).parents[2]


async def traced(folder: Path, *options: str) -> int:
    """Run the driver under strace with these options; return its exit code."""
    process = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-qq", "-o", str(folder / "trace"), *options),
        *(sys.executable, driver.__file__, str(folder / "store"), str(folder / "log")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'tests'}"},
    )
    return await process.wait()


def seen(folder: Path) -> dict[str, set[str]]:
    """Return what the world saw, by kind of event."""
    found: dict[str, set[str]] = {}
    for line in (folder / "log").read_text().splitlines():
        event, _, name = line.partition(" ")
        found.setdefault(event, set()).add(name)
    return found


async def check_survivors(folder: Path) -> None:
    """P1, P2, P4 over what the world saw. An empty log means that it died before it began."""
    if "opened" not in (events := seen(folder)):
        return
    accepted, done = events.get("accepted", set()), events.get("done", set())
    async with open_queue(f"embedded://{folder / 'store'}") as queue:
        views = {view.mail.name or "": view async for view in queue.browse()}
        in_doubt = events.get("transmitted", set())
        assert accepted - in_doubt <= views.keys(), "P1"
        assert not done & views.keys(), "P2"
        coming = {to for view in views.values() for to in view.mail.recipients}
        assert not coming & events.get("recorded", set()), "P2"
        assert views.keys() <= events.get("offered", set()), "P4"
        await queue.flush(Selector.all())
        items = queue.dequeue(prefetch=100)
        for _ in views:
            item = await anext(items)
            name = (item.mail.name or "").encode()
            assert await item.content() == b"Subject: x\r\n\r\n" + name * 100, "P4"


PLACES = (1, 3, 8)
"""strace counts calls by thread, so that these lie all over a life."""


async def lives(folder: Path, call: str, accident: str) -> int:
    """Let an accident happen at each place; return how many lives it ended."""
    ended = 0
    for place in PLACES:
        here = folder / str(place)
        here.mkdir()
        (here / "log").touch()
        inject = f"inject={call}:{accident}:when={place}"
        ended += await traced(here, "-e", f"trace={call}", "-e", inject) != 0
        await check_survivors(here)
    return ended


@pytest.mark.parametrize("call", ["/pwritev", "fdatasync", "fsync", "rename", "unlink"])
async def test_killed_at_a_call_it_recovers_to_what_was_promised(tmp_path: Path, call: str) -> None:
    assert await lives(tmp_path, call, "signal=SIGKILL") >= 1


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", ["/pwritev", "fdatasync"])
async def test_failed_at_a_call_it_refuses_or_stops_and_loses_nothing(
    tmp_path: Path, call: str, error: str
) -> None:
    assert await lives(tmp_path, call, f"error={error}") >= 1


async def test_no_file_to_open_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    """EMFILE when spool files are to be made."""
    (tmp_path / "log").touch()
    file = str(tmp_path / "store" / "mail" / "000000" / "005")

    code = await traced(
        tmp_path, "-e", "trace=openat", "-e", "inject=openat:error=EMFILE", "-P", file
    )

    assert code != 0
    await check_survivors(tmp_path)
