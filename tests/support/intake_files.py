"""An intake by a file of intake, over a queue that records, with clients that log in."""

from __future__ import annotations

import asyncio
import copy
import smtplib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import yaml
from scramp import ScramClient

from postroad.cli.processes import intake, long_running
from postroad.intake.logins.passwords import record_of
from postroad.intake_settings.user_file import UserFile, written
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.settings.intake import Intake
from postroad.telemetry.health import Readiness
from support.certificates import Certificates
from support.ports import free_port
from support.recording_queue import RecordingQueue

SECRET = "c2VjcmV0IG9mIHRlc3Rz"
ALICE, PASSWORD = "alice@example.org", "correct horse, battery"


TLS: dict[str, Any] = {"certificates": [{"cert": "tls.crt", "key": "tls.key"}]}
SUBMISSION: dict[str, Any] = {
    "listeners": [{"name": "submission", "role": "submission", "tls": TLS}],
    "users": {"file": "users.yaml"},
}
HTTP: dict[str, Any] = SUBMISSION | {"listeners": [{"name": "http", "role": "http"}]}


@dataclass
class RunningIntake:
    queue: RecordingQueue
    ports: dict[str, int]
    certificates: Certificates
    folder: Path
    process: long_running.Process

    def client(self, listener: str = "submission", *, secured: bool = True) -> smtplib.SMTP:
        """Connect; under STARTTLS, if `secured`. Call it in a thread."""
        client = smtplib.SMTP("localhost", self.ports[listener], "client.example", timeout=60)
        if secured:
            client.starttls(context=self.certificates.client_context())
        return client


def write_users(file: Path, **passwords: str) -> None:
    users = tuple(record_of(name, password) for name, password in passwords.items())
    file.write_text(written(UserFile(secret=SECRET, users=users)))


@asynccontextmanager
async def an_intake_by_file(
    folder: Path, document: dict[str, Any], *, queue: MailQueue | None = None, **more: Any
) -> AsyncIterator[RunningIntake]:
    """Run the intake of a document, whose listeners get free ports. `folder` has `tls.crt` and
    `tls.key`, of `localhost`, and `users.yaml` with one user. `queue`: None, one that records."""
    document = copy.deepcopy(document)
    certificates = Certificates.copied(folder)
    if not (folder / "users.yaml").exists():
        write_users(folder / "users.yaml", **{ALICE: PASSWORD})
    ports = {each["name"]: free_port() for each in document["listeners"]}
    for each in document["listeners"]:
        each.setdefault("host", "127.0.0.1")
        each["port"] = ports[each["name"]]
    file = folder / "intake.yaml"
    file.write_text(yaml.safe_dump(document))
    settings = Settings(hostname="intake.example", intake=Intake(file=file, **more))
    recording = RecordingQueue()
    process = long_running.Process(
        Readiness(), asyncio.Event(), timedelta(seconds=5), queue or cast("MailQueue", recording)
    )
    running = asyncio.create_task(
        intake.receive(process, settings, intake.listeners_of(settings.intake))
    )
    try:
        for port in ports.values():
            await _listens(port, running)
        yield RunningIntake(recording, ports, certificates, folder, process)
    finally:
        process.stop.set()
        await running


async def _listens(port: int, running: asyncio.Task[None]) -> None:
    while not running.done():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.transport.abort()
            return
    await running


def by_scram(client: smtplib.SMTP, name: str, password: str, binding: Any = None) -> None:
    """Log a client in; `binding` as scramp has it."""
    mechanism = "SCRAM-SHA-256-PLUS" if binding else "SCRAM-SHA-256"
    scram = ScramClient([mechanism], name, password, channel_binding=binding)
    steps = iter((
        lambda _: scram.get_client_first(),
        lambda first: (scram.set_server_first(first), scram.get_client_final())[1],
        lambda final: (scram.set_server_final(final), "")[1],
    ))  # fmt: skip

    def answer(challenge: bytes | None = None) -> str:
        return next(steps)((challenge or b"").decode())

    client.auth(mechanism, answer)
