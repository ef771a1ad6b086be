"""The logins of RabbitMQ and Cassandra are replaced every `EVERY` seconds for `MINUTES`, while mail
goes through an intake and a worker.

Both run as processes of this machine with folders that are renewed as the kubelet renews mounted
Secrets, `KUBELET` seconds after the Secret. A login stays valid for `OVERLAP` rotations after its
own; then its users are removed, and RabbitMQ closes their connections. The keys of S3 stay.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import smtplib
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from unittest import mock

from bench.operator_process import operator_on
from bench.operator_setup import THREE, Site, fresh_site
from bench.operator_watch import ReadyWatch, watching
from bench.results import Result, compared
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER, SECRET
from stack.processes import MARKER
from support.mounted_secret import MountedSecret
from support.named_servers import named_cluster, named_logins
from support.programs import Program
from support.resources import mail_queue, secret
from support.senders import SampleMail, Sender
from support.servers import cql, make_broker_user, remove_broker_user
from support.sink_process import SinkProcess

MINUTES = float(os.environ.get("MINUTES", "10"))
EVERY = float(os.environ.get("EVERY", "30"))
KUBELET = float(os.environ.get("KUBELET", "20"))
OVERLAP = int(os.environ.get("OVERLAP", "5"))
RATE = float(os.environ.get("RATE", "10"))
"""Mails a second."""

READY_SECONDS, DRAIN_SECONDS = 120.0, 300.0
RENEWED = ("rabbitmq", "cassandra")
NAME = "outgoing"
CONTENT = b"Subject: while logins rotate\r\n\r\n" + (b"x" * 78 + b"\r\n") * 25


@dataclass
class Submitted:
    """What became of mails that were sent: recipients that got 250, the others' number."""

    accepted: list[str] = field(default_factory=list)
    refused: int = 0

    @property
    def sent(self) -> int:
        return len(self.accepted) + self.refused

    def send(self, port: int, until: float) -> None:
        """Send mail after mail until an instant, each in its time. Blocks."""
        sender, number, began = Sender("127.0.0.1", port), 0, time.monotonic()
        while time.monotonic() < until:
            number += 1
            recipient = f"mail-{number}@dest.example"
            try:
                reply = sender.send(SampleMail("a@origin.example", [recipient], CONTENT))
            except (OSError, smtplib.SMTPException) as error:
                self._refuse(repr(error))
            else:
                if reply.code == 250:
                    self.accepted.append(recipient)
                else:
                    self._refuse(f"{reply.code} {reply.text}")
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        sender.close()

    def _refuse(self, why: str) -> None:
        """Count a mail that was not accepted; print why, the first ten times."""
        self.refused += 1
        if self.refused <= 10:
            print(f"not accepted: {why}", file=sys.stderr, flush=True)


class Rotation:
    """The logins, the newest last, with the Secrets and the folders that have the newest one."""

    def __init__(self, site: Site, mounted: Mapping[str, MountedSecret]) -> None:
        self._site, self._mounted = site, mounted
        self._logins: list[dict[str, str]] = []
        self.count = 0

    async def run(self) -> None:
        """Rotate until cancelled."""
        while True:
            began = time.monotonic()
            await self._rotate()
            await asyncio.sleep(max(0.0, began + EVERY - time.monotonic()))

    async def _rotate(self) -> None:
        self.count += 1
        login = {"username": f"rotated_{self.count}", "password": secrets.token_hex(12)}
        await asyncio.to_thread(_make_users, **login)
        self._logins.append(login)
        for name in RENEWED:
            body = secret(self._site.namespace, name, login)
            await self._site.api.patch(SECRET, self._site.namespace, name, {"data": body["data"]})
        await asyncio.sleep(min(KUBELET, EVERY))
        for each in self._mounted.values():
            each.renew(login)
        if len(self._logins) > OVERLAP:
            await asyncio.to_thread(_remove_users, self._logins.pop(0)["username"])


def _make_users(username: str, password: str) -> None:
    make_broker_user(username, password)
    cql(
        f"CREATE ROLE {username} WITH PASSWORD = '{password}' AND LOGIN = true AND SUPERUSER = true"
    )


def _remove_users(username: str) -> None:
    remove_broker_user(username)
    cql(f"DROP ROLE {username}")


async def measure() -> list[Result]:
    """Measure one period of rotations."""
    async with fresh_site(*THREE) as site, operator_on(site), AsyncExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, site.variables))
        await site.apply_cluster()
        await site.until_ready(QUEUE_CLUSTER, "main")
        clusters = await stack.enter_async_context(
            watching(site.api, site.namespace, QUEUE_CLUSTER)
        )
        queues = await stack.enter_async_context(watching(site.api, site.namespace))
        await site.api.create(MAIL_QUEUE, mail_queue(site.namespace, NAME))
        await queues.until_ready([NAME], READY_SECONDS)
        await clusters.until_ready(["main"], READY_SECONDS)
        sink = stack.enter_context(SinkProcess(site.folder / "sink"))
        return await _rotated(site, sink, (clusters, queues))


async def _rotated(site: Site, sink: SinkProcess, watches: tuple[ReadyWatch, ...]) -> list[Result]:
    logins = named_logins(site.variables)
    mounted = {
        each: MountedSecret(site.folder / f"mounted-{each}", logins[each]) for each in RENEWED
    }
    submitted = Submitted()
    async with _programs(site, mounted, sink.port) as (intake, worker):
        port = await intake.port("listening")
        rotation = Rotation(site, mounted)
        rotating = asyncio.create_task(rotation.run())
        try:
            until = time.monotonic() + 60 * MINUTES
            await asyncio.to_thread(submitted.send, port, until)
            if rotating.done():
                rotating.result()
        finally:
            rotating.cancel()
            await asyncio.gather(rotating, return_exceptions=True)
        await _drained(sink, submitted)
        ended = [each for each in (intake, worker) if each.process.returncode is not None]
    losses = [each for watch in watches for each in watch.losses]
    for each in (*losses, *(f"ended: {program.log}" for program in ended)):
        print(each, file=sys.stderr, flush=True)
    return _figures(rotation.count, submitted, sink, len(ended), len(losses))


async def _drained(sink: SinkProcess, submitted: Submitted) -> None:
    """Wait until all mails that were accepted have come, or time is over."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        if await asyncio.to_thread(sink.has_all, submitted.accepted):
            return
        await asyncio.sleep(5)


def _figures(
    rotations: int, submitted: Submitted, sink: SinkProcess, ended: int, losses: int
) -> list[Result]:
    came = sink.contents()
    lost = [each for each in submitted.accepted if each not in came]
    print(f"lost: {lost[:20]}", file=sys.stderr, flush=True)
    repeated = sum(len(each) - 1 for each in came.values())
    case = f"{rotations} rotations, {len(submitted.accepted)} mails"
    figures = [
        ("lost", "mails", len(lost)),
        ("intakes and workers that ended", "processes", ended),
        ("Ready was not True", "times", losses),
        ("delivered again", "mails", repeated),
        ("not accepted", "mails", submitted.refused),
    ]
    return [
        compared(measure, case, unit, [float(value)], "goal", [0.0], less_is_better=True)
        for measure, unit, value in figures
    ]


@asynccontextmanager
async def _programs(
    site: Site, mounted: Mapping[str, MountedSecret], sink: int
) -> AsyncIterator[tuple[Program, Program]]:
    """Yield an intake and a worker, ready."""
    environment = _environment(site, mounted)
    url = ("--queue", f"distributed://{site.namespace}.{NAME}")
    programs = [
        await Program.start(site.folder, *command, environment=environment)
        for command in (
            ("intake", *url, "--listen", "127.0.0.1:0"),
            ("worker", *url, "--relay", f"127.0.0.1:{sink}", "--tls", "none"),
        )
    ]
    try:
        async with asyncio.timeout(READY_SECONDS):
            for each in programs:
                await each.until_ready()
        yield programs[0], programs[1]
        for each in programs:
            await each.stop()
    finally:
        for each in programs:
            await each.kill()


def _environment(site: Site, mounted: Mapping[str, MountedSecret]) -> dict[str, str]:
    """Return the settings of a pod: addresses without logins, and the folders with these."""
    rabbitmq = named_cluster(site.variables, site.namespace)["spec"]["rabbitmq"]
    folders = {
        f"POSTROAD_{name.upper()}_LOGIN_FOLDER": str(each.folder) for name, each in mounted.items()
    }
    return {
        **site.variables,
        **folders,
        "POSTROAD_RABBITMQ_URI": rabbitmq["url"],
        "POSTROAD_RABBITMQ_MANAGEMENT_URL": rabbitmq["managementURL"],
        "POSTROAD_RETRY_LANES": "1s,2s,5s",
        MARKER: str(site.programs),
    }
