"""One life of a real process: `python -m chaos.process JOB.json`. Servers come from POSTROAD_*."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chaos import clockwork, workload
from chaos.bites import undone
from chaos.drain import drain
from chaos.history import FileRecorder
from chaos.opening import Opening
from chaos.pace import QUICK
from chaos.receiving import receive
from chaos.remains import remains
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap.cluster import connect
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment

AGAIN = 1.0
"""Seconds between two tries to open a queue."""


@dataclass(frozen=True)
class Job:
    """What the nemesis starts a process with. `role` is `creator`, `producer`, `worker`,
    `administrator`, `intake` or `drain`; `rate` is that of a producer; `ports` those of intakes, by
    queue, to which producers send."""

    role: str
    life: str
    directory: str
    seed: int
    queues: tuple[str, ...]
    bucket: str
    controls: str
    rate: float
    ports: Mapping[str, int] = field(default_factory=dict)
    undo: str | None = None


def opening_of(job: Job) -> Opening:
    """Return how this process opens queues, within its event loop."""
    recorder = FileRecorder(Path(job.directory), job.life, clockwork.true_now)
    servers, bucket = connect(from_environment()), job.bucket
    return Opening(servers, lambda _: bucket, MachineClock(), SystemRandomness(), recorder, QUICK)


async def main(job: Job) -> None:
    """Do the job. SIGTERM ends it at once, except that the drain still writes its results."""
    opening, randomness = opening_of(job), random.Random(f"{job.seed}/{job.life}")
    servers, clock, recorder = opening.servers, opening.clock, opening.recorder
    queues: dict[str, MailQueue] = {}
    for name in job.queues:
        queues[name] = await _opened(opening, name, create=job.role == "creator")
    recorder.note("open")
    place = workload.Place(
        queues,
        clock,
        recorder,
        randomness,
        QUICK,
        lambda queue: opening.cut_anew(queue, randomness.random()),
        job.ports,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, place.over.set)
    if job.role == "drain":
        await drain(place, lambda queue: remains(queue, job.bucket))
    elif job.role == "producer":
        await workload.produce(place, job.rate)
    elif job.role == "worker":
        await _until(place, workload.work(place))
    elif job.role == "administrator":
        await workload.administrate(place)
    recorder.note("closing")
    for queue in queues.values():
        await queue.close()
    await servers.close()


async def _until(place: workload.Place, work: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)
    over = asyncio.ensure_future(place.over.wait())
    await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _opened(opening: Opening, name: str, *, create: bool) -> MailQueue:
    """Open a queue, however long servers are away. A creator whose clock is refused ends: the
    nemesis restarts it with a right one."""
    while True:
        try:
            return await opening.open(name, create=create)
        except Exception as error:
            logging.warning("%s is not open yet: %r", name, error)
            if create:
                raise
            await asyncio.sleep(AGAIN)


if __name__ == "__main__":
    given = Job(**json.loads(Path(sys.argv[1]).read_text()))
    clockwork.Controls(Path(given.controls)).install()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    QUICK.install()
    with undone(given.undo):
        if given.role == "intake":
            file = Path(given.directory) / f"{given.life.partition('#')[0]}.yaml"
            receive(file, lambda: opening_of(given))
        else:
            asyncio.run(main(given))
