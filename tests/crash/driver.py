"""Short lives of a store on real files, for strace to end: `driver.py DIR CALL ACCIDENT`.

The first life meets the accident (`signal=SIGKILL`, `error=EIO`) at its first call of a kind, the
next at its second, and so on until one ends before. Lives are forks of this process, so that none
waits for imports; blocking calls are made in the one thread there is, as strace counts by thread.

Each life has a folder DIR/NUMBER: `store`, and `log` with what the world outside saw of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import structlog

from crash.world import Inline
from postroad import Mail, Outcome
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.disk.files import DiskFiles
from postroad.embedded.log import slots
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe, open_store
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import PostroadError

OPTIONS = StoreOptions(segment_bytes=4096 + 16 + 2600, segment_envelopes=16, pool_files=2)
"""Small segments and a small pool, so that few mails meet everything."""

MAILS = 3
Life = Callable[[Path], Coroutine[Any, Any, None]]
PR_SET_PTRACER = 0x59616D61
"""prctl(2): the process that Yama lets trace this one; -1 allows all."""


async def opened(root: Path) -> OwnedQueue:
    """Open a store that does everything in this thread."""
    files = DiskFiles()
    root.mkdir(exist_ok=True)
    layout, options = describe(files, root, OPTIONS, create=True)
    engine = Engine(
        files, layout, options, MachineClock(), SystemRandomness(), Inline(), Inline()
    )  # fmt: skip
    queue = OwnedQueue("driver", engine, await open_store(engine))
    await queue.maintenance.recovering
    engine.check()
    return queue


Note = Callable[[str, str], None]


@contextmanager
def noting(folder: Path) -> Iterator[Note]:
    """Give what writes down an event and the mail it is about, at once."""
    with (folder / "log").open("ab", buffering=0) as seen:

        def note(event: str, mail: str) -> None:
            seen.write(f"{event} {mail}\n".encode())

        yield note


async def live(folder: Path) -> None:
    """Two processes' lives, one after the other: all that mails go through."""
    with noting(folder) as note:
        for process in range(2):
            queue = await opened(folder / "store")
            note("opened", "-")
            try:
                await _pass_mails(queue, f"p{process}", note)
            finally:
                await queue.close()
        note("lived", "-")


async def _pass_mails(queue: OwnedQueue, prefix: str, note: Note) -> None:
    consumer = queue.consumer(2)
    for number in range(MAILS):
        name = f"{prefix}m{number}"
        note("offered", name)
        mail = Mail("a@x.example", (f"{name}@y.example", f"{name}@z.example"), body(name), name)
        await queue.enqueue(mail)
        note("accepted", name)
        item = await consumer.next()
        note("transmitted", f"{item.mail.name}")
        await item.content()
        first = item.mail.recipients[0]
        await item.record({first: Outcome.delivered()})
        note("recorded", first)
        if number % 2:
            note("ending", f"{item.mail.name}")
            await item.done()
            note("done", f"{item.mail.name}")
        else:
            await item.retry(OPTIONS.steps[0])
        if number != 1:
            await queue.maintenance.checkpoint()


def body(name: str) -> bytes:
    """Return a content that only this mail has."""
    return b"Subject: x\r\n\r\n" + name.encode() * 100


def one_life(live: Life, folder: Path) -> int:
    """Live; return the exit code."""
    try:
        asyncio.run(live(folder))
    except (PostroadError, OSError):
        return 1
    return 0


class Traced:
    """A life under strace, and what became of it: `code` is its exit code, `is_hit` says whether
    its accident came."""

    def __init__(self, live: Life, folder: Path, call: str, accident: str, place: int) -> None:
        self._trace = folder / "trace"
        may_begin, begin = os.pipe()
        self._life = os.fork()
        if self._life == 0:
            _be_born(live, folder, may_begin)
        inject = f"inject={call}:{accident}:when={place}"
        words = ["strace", "-qq", "-o", str(self._trace), "-e", f"trace={call}", "-e", inject]
        with subprocess.Popen([*words, "-p", str(self._life)]) as tracer:
            self._wait_for(tracer)
            os.write(begin, b"!")
            self.code = os.waitstatus_to_exitcode(os.waitpid(self._life, 0)[1])
        os.close(begin)
        os.close(may_begin)
        self.is_hit = self.code < 0 or "INJECTED" in self._trace.read_text()

    def _wait_for(self, tracer: subprocess.Popen[bytes]) -> None:
        status = Path(f"/proc/{self._life}/status")
        while "TracerPid:\t0" in status.read_text():
            if tracer.poll() is not None:
                os.kill(self._life, signal.SIGKILL)
                raise SystemExit("strace cannot trace a life")
            time.sleep(0.001)


def _be_born(live: Life, folder: Path, may_begin: int) -> NoReturn:
    """Live once the tracer is there."""
    code = 70
    try:
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        os.read(may_begin, 1)
        code = one_life(live, folder)
    except BaseException:
        traceback.print_exc()  # here, because `_exit` prints nothing
    finally:
        os._exit(code)


def no_helper(folder: Path) -> AbstractContextManager[object]:
    """A life needs no other process."""
    return nullcontext()


def main(
    live: Life, beside: Callable[[Path], AbstractContextManager[object]],
    root: Path, call: str, accident: str,
) -> None:  # fmt: skip
    """Live, with `beside`, until a life ends before its accident; print how many others there
    were, and how many of these ended by it."""
    slots.BATCH = 4  # so many files made at a time are as good as forty
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    lives = ended = 0
    while True:
        folder = root / str(lives + 1)
        folder.mkdir(parents=True)
        (folder / "log").touch()
        with beside(folder):
            life = Traced(live, folder, call, accident, lives + 1)
        if not life.is_hit:
            break
        lives, ended = lives + 1, ended + (life.code != 0)
    print(json.dumps({"lives": lives, "ended": ended, "last": life.code}))


if __name__ == "__main__":
    main(live, no_helper, Path(sys.argv[1]), *sys.argv[2:])
