"""Short lives of a process that stores mails for the owner, for strace to end: `receiver.py DIR
CALL ACCIDENT`, as driver.py.

Each has an owner of its own, which no accident meets; it is killed when the life is over, so that
what is found later is what was durable. A mail that is refused is offered once more, under another
name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crash import driver
from crash.world import Inline
from postroad import Mail
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.disk.files import DiskFiles
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.options import FreeSpace, StoreLimits
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.embedded.mail_queue import EmbeddedQueue
from postroad.embedded.opening import describe
from postroad.embedded.rpc.receiver import SpoolReceiver
from postroad.embedded.rpc.serving import Server
from postroad.errors import PostroadError, StoreFailed, StoreFull

MAILS = 4


@contextmanager
def an_owner(folder: Path) -> Iterator[None]:
    """Let another process own the store in a folder and serve it."""
    is_there, say = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            asyncio.run(_own(folder / "store", say))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    os.close(say)
    try:
        assert os.read(is_there, 1), "the owner serves"
        yield
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        os.close(is_there)


async def _own(root: Path, say: int) -> None:
    queue = await driver.opened(root)
    await Server(queue).listen(Path(Layout(root, root).socket))
    os.write(say, b"!")
    await asyncio.Event().wait()


async def receive(folder: Path) -> None:
    """Store mails until all were accepted."""
    with driver.noting(folder) as note:
        queue = a_receiver(folder / "store")
        note("opened", "-")
        for number in range(MAILS):
            if not await _offered(queue, f"m{number}", note):
                assert await _offered(queue, f"m{number}again", note), "only one call fails"
        await queue.close()
        note("lived", "-")


async def _offered(queue: EmbeddedQueue, name: str, note: driver.Note) -> bool:
    """Offer a mail and note what the world sees of it. Return whether it was accepted."""
    note("offered", name)
    try:
        await queue.enqueue(Mail("a@x.example", ("b@y.example",), driver.body(name), name))
    except (StoreFull, StoreFailed):
        note("refused", name)
        return False
    except PostroadError:
        return False  # the connection failed: it may be queued
    note("accepted", name)
    return True


def a_receiver(root: Path) -> EmbeddedQueue:
    """Return a queue that stores mails in this thread and announces them to the owner."""
    files, clock = DiskFiles(), MachineClock()
    layout, options = describe(files, root, driver.OPTIONS, create=False)
    limits = StoreLimits(options, FreeSpace(files, layout, lambda: clock.elapsed().total_seconds()))
    receiver = SpoolReceiver(SpoolFiles(files, layout), limits, clock, SystemRandomness(), Inline())

    async def never() -> Any:
        raise AssertionError("a receiver owns nothing")

    return EmbeddedQueue(str(root), files, layout, clock, never, receiver)


if __name__ == "__main__":
    driver.main(receive, an_owner, Path(sys.argv[1]), *sys.argv[2:])
