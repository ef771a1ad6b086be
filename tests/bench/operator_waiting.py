"""An intake while `WAITING` mails wait, as after hours with the next hop down: whether it is ready
and accepts mail, and how long its probes take.

The mails are rows of Cassandra and messages in a delay queue of RabbitMQ, without bytes, which no
probe and no intake asks for. Both the intake and the operator that counts them run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from unittest import mock

from bench.operator_deletion import bulk_on, fill
from bench.operator_process import operator_on
from bench.operator_rotation import RATE, Submitted
from bench.operator_setup import THREE, Site, fresh_site
from bench.operator_watch import watching
from bench.results import Result, compared, percentile
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from postroad.domain.queues.names import DELAY_SECONDS, QueueName
from stack.processes import MARKER
from support.programs import READY, Program
from support.resources import mail_queue, view

WAITING = int(os.environ.get("WAITING", "300000"))
MINUTES = float(os.environ.get("MINUTES", "2"))
PROBE_SECONDS = 0.05
"""Between two probes; a kubelet sends one in five seconds."""

GOAL_MS = 50.0
READY_SECONDS = 180.0


async def measure() -> list[Result]:
    """Measure one intake."""
    async with fresh_site(*THREE) as site, operator_on(site):
        with mock.patch.dict(os.environ, site.variables):
            await site.apply_cluster()
            await site.until_ready(QUEUE_CLUSTER, "main")
            name = QueueName(site.namespace, "outgoing")
            await fill(site, name, WAITING, with_bytes=False)
            wanted = mail_queue(site.namespace, name.name, view=view("1h", 3))
            await site.api.create(MAIL_QUEUE, wanted)
            async with watching(site.api, site.namespace) as watch:
                await watch.until_ready([name.name], READY_SECONDS)
                await _defer(site, name)
                results = await _probed(site, name)
                assert watch.losses == [], watch.losses
                return results


async def _defer(site: Site, name: QueueName) -> None:
    """Publish the messages of the mails, due when all is over."""
    began = time.monotonic()
    async with bulk_on(site, name, WAITING) as waiting:
        await waiting.write_messages(DELAY_SECONDS[-1])
        depths = await waiting.where.servers.broker(name).depths()
    assert depths.delayed == WAITING, depths
    seconds = time.monotonic() - began
    print(f"{WAITING} messages published in {seconds:.0f} s", file=sys.stderr, flush=True)


async def _probed(site: Site, name: QueueName) -> list[Result]:
    environment = {
        **site.variables,
        "POSTROAD_S3_BUCKET": name.bucket("postroad-"),
        MARKER: str(site.programs),
    }
    intake = await Program.start(
        site.folder,
        *("intake", "--queue", f"distributed://{name}", "--listen", "127.0.0.1:0"),
        environment=environment,
    )
    submitted = Submitted()
    try:
        async with asyncio.timeout(READY_SECONDS):
            await intake.until_ready()
            port = await intake.port("listening")
        until = time.monotonic() + 60 * MINUTES
        sending = asyncio.create_task(asyncio.to_thread(submitted.send, port, until))
        seconds, unready = await _probes(intake, until)
        await sending
        assert intake.process.returncode is None, intake.log.read_text()
    finally:
        await intake.kill()
    case = f"{WAITING} mails wait, {len(seconds)} probes, {RATE:g} mails/s"
    return [
        *(
            compared(f"readiness, {which}", case, "ms", [1000 * percentile(seconds, share)], "goal",
                     [GOAL_MS], less_is_better=True)
            for which, share in (("p50", 0.5), ("p99", 0.99))
        ),
        compared("probes that were not ready", case, "probes", [float(unready)], "goal", [0.0],
                 less_is_better=True),
        compared("mails not accepted", case, f"of {submitted.sent}", [float(submitted.refused)],
                 "goal", [0.0], less_is_better=True),
    ]  # fmt: skip


async def _probes(intake: Program, until: float) -> tuple[list[float], int]:
    """Probe until an instant; return the seconds of each, and how many found it not ready."""
    seconds: list[float] = []
    unready = 0
    while (began := time.monotonic()) < until:
        answer = await intake.ask("/readyz")
        seconds.append(time.monotonic() - began)
        unready += not answer.startswith(READY)
        await asyncio.sleep(PROBE_SECONDS)
    return seconds, unready
