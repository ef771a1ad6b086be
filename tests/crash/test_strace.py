"""Real files and real system calls: killed at each write and sync, failed at each call.

A kill leaves the page cache, so this proves the code's own order; what a power cut leaves is proven
on the lossy disk. Each test makes one kind of call the last one, or lets it fail, at every place of
a scripted life: the owner's (driver.py), or that of a process which stores mails for it
(receiver.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from crash import driver, receiver
from postroad.domain.queues.selection import Selector

pytestmark = pytest.mark.needs("strace")
ROOT = Path(__file__).parents[2]


class Lives(NamedTuple):
    """How many places there were for an accident, how many lives ended there, and how many mails a
    receiver refused."""

    places: int
    ended: int
    refused: int


async def lives(folder: Path, call: str, accident: str, program: ModuleType = driver) -> Lives:
    """Let an accident happen at each place, and check what each left."""
    assert program.__file__ is not None
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program.__file__, str(folder / "lives"), call, accident),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'tests'}"},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    found = json.loads(out)
    assert found["last"] == 0, "a life without an accident goes well"
    refused = 0
    for number in range(1, found["lives"] + 2):
        life = folder / "lives" / str(number)
        refused += len(seen(life).get("refused", ()))
        await check_survivors(life)
        shutil.rmtree(life)
    return Lives(found["lives"], found["ended"], refused)


def seen(folder: Path) -> dict[str, set[str]]:
    """Return what the world saw, by kind of event."""
    found: dict[str, set[str]] = {}
    for line in (folder / "log").read_text().splitlines():
        event, _, name = line.partition(" ")
        found.setdefault(event, set()).add(name)
    return found


async def check_survivors(folder: Path) -> None:
    """P1, P2, P4 over what the world saw. Without a word of it, it died before it began."""
    if "opened" not in (events := seen(folder)):
        return
    queue = await driver.opened(folder / "store")
    views = {view.mail.name or "": view async for view in queue.browse()}
    gone, recorded = events.get("done", set()), events.get("recorded", set())
    assert events.get("accepted", set()) - events.get("ending", set()) <= views.keys(), "P1"
    assert not gone & views.keys(), "P2"
    coming = {to for view in views.values() for to in view.mail.recipients}
    assert not coming & recorded, "P2"
    assert views.keys() <= events.get("offered", set()) - events.get("refused", set()), "P4"
    await queue.flush(Selector.all())
    consumer = queue.consumer(len(views) + 1)
    for _ in views:
        item = await consumer.next()
        assert await item.content() == driver.body(item.mail.name or ""), "P4"
    await queue.close()


@pytest.mark.parametrize("call", ["/pwrite", "fdatasync", "fsync", "rename", "unlink", "ftruncate"])
async def test_killed_at_each_call_it_recovers_to_what_was_promised(
    tmp_path: Path, call: str
) -> None:
    found = await lives(tmp_path, call, "signal=SIGKILL")

    assert found.places == found.ended >= 1


FAILURES = [
    *((call, "EIO") for call in ("/pwrite", "fdatasync", "fsync", "/pread", "unlink", "ftruncate")),
    *((call, "ENOSPC") for call in ("/pwrite", "fallocate", "openat")),
    ("openat", "EMFILE"),
]


@pytest.mark.parametrize(("call", "error"), FAILURES)
async def test_failed_at_each_call_it_refuses_or_stops_and_loses_nothing(
    tmp_path: Path, call: str, error: str
) -> None:
    """Not every failure ends a life: blocks that cannot be reserved, or a file that is not removed,
    cost space and speed. All the same, each is followed by a look at what is left."""
    found = await lives(tmp_path, call, f"error={error}")

    assert found.places >= 1
    assert found.ended >= 1 or call == "unlink"


RECEIVERS_CALLS = ["/pwrite", "fdatasync", "sendto", "recvfrom"]


@pytest.mark.parametrize("call", RECEIVERS_CALLS)
async def test_a_receiver_killed_at_each_call_leaves_what_it_answered_for(
    tmp_path: Path, call: str
) -> None:
    found = await lives(tmp_path, call, "signal=SIGKILL", receiver)

    assert found.places == found.ended >= receiver.MAILS


DISK_FAILURES = [
    *((call, error) for call in ("/pwrite", "fdatasync") for error in ("EIO", "ENOSPC")),
    ("statfs", "EIO"),
]


@pytest.mark.parametrize(("call", "error"), DISK_FAILURES)
async def test_a_receiver_whose_disk_fails_refuses_that_mail_and_goes_on(
    tmp_path: Path, call: str, error: str
) -> None:
    found = await lives(tmp_path, call, f"error={error}", receiver)

    assert found.refused == found.places >= 1
    assert found.ended == 0


@pytest.mark.parametrize("error", ["EIO", "EMFILE"])
async def test_a_receiver_that_cannot_open_a_file_refuses_that_mail_and_goes_on(
    tmp_path: Path, error: str
) -> None:
    found = await lives(tmp_path, "openat", f"error={error}", receiver)

    assert found.ended == 2, "what it opens before its first mail"
    assert found.refused >= 1
    assert found.places > found.ended + found.refused, "one more is needed to reach the owner"


@pytest.mark.parametrize(
    ("call", "error"), [("socket", "EMFILE"), ("sendto", "EPIPE"), ("recvfrom", "ECONNRESET")]
)
async def test_a_receiver_that_loses_the_owner_finds_it_again(
    tmp_path: Path, call: str, error: str
) -> None:
    """What was under way may be queued: `check_survivors` says only that nothing else is."""
    found = await lives(tmp_path, call, f"error={error}", receiver)

    assert found.places >= 1
    assert found.ended == 0
