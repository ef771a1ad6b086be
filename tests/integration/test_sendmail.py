"""`sendmail` and `mailq` as processes, over a queue in a directory that a running `postroad mta`
owns, and by SMTP to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.programs import Program
from support.repository import ROOT
from support.sink import Sink
from support.small_mta import an_mta

MAIL = b"From: root (Cron Daemon)\nTo: root\nSubject: Cron <root@host> backup\n\ndone\n"

OTHER_USER = 65534


@dataclass
class Host:
    """A machine whose `sendmail` and `mailq` lead to postroad."""

    folder: Path

    async def run(self, command: str, *words: str, content: bytes = b"") -> tuple[int, str, str]:
        """Return the exit code and what a command printed."""
        environment = {**os.environ, "POSTROAD_QUEUE": "", "PYTHONPATH": str(ROOT / "operator")}
        process = await asyncio.create_subprocess_exec(
            *(str(self.folder / command), "-C", str(self.folder / "sendmail.yaml"), *words),
            stdin=PIPE, stdout=PIPE, stderr=PIPE,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        output, errors = await process.communicate(content)
        assert process.returncode is not None
        return process.returncode, output.decode(), errors.decode()

    def set(self, *lines: str) -> None:
        (self.folder / "sendmail.yaml").write_text("".join(f"{each}\n" for each in lines))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    folder = tmp_path / "host"
    folder.mkdir()
    script = folder / "sendmail"
    program = "from postroad.cli.mail.sendmail import main; main()"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.argv[0] = \'$0\'; '
                      f'{program}" "$@"\n')  # fmt: skip
    script.chmod(0o755)
    (folder / "mailq").symlink_to("sendmail")
    return Host(folder)


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    async with Sink() as opened:
        yield opened


Start = Callable[..., Awaitable[Program]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start an MTA over a directory; it is killed at the end at the latest."""
    running: list[Program] = []

    async def started(root: Path, sink_port: int, **more: Any) -> Program:
        mta, _ = await an_mta(tmp_path, root, sink_port, **more)
        running.append(mta)
        return mta

    yield started
    for each in running:
        await each.kill()


async def stopped(mta: Program) -> None:
    assert await mta.stop() == 0


async def test_mail_of_sendmail_is_delivered_by_the_process_that_owns_the_directory(
    host: Host, sink: Sink, start: Start
) -> None:
    root = host.folder / "queue"
    mta = await start(root, sink.port)
    host.set(f"queue: embedded://{root}", "localTo: ops@dest.example", "domain: host.example")

    sent = await host.run("sendmail", "-FCronDaemon", "-i", "-oem", "root", content=MAIL)

    assert sent == (0, "", "")
    while not sink.mails:
        await asyncio.sleep(0.01)
    [mail] = sink.mails
    assert mail.recipients == ["ops@dest.example"]
    assert b"\r\nFrom: CronDaemon <root@host.example>\r\n" in mail.content
    await stopped(mta)


async def test_mailq_lists_what_waits_with_the_reason(host: Host, start: Start) -> None:
    root = host.folder / "queue"
    mta = await start(root, 1, environment={"POSTROAD_RETRY_LANES": "1h"})
    host.set(f"queue: embedded://{root}")
    assert await host.run("mailq") == (0, "Mail queue is empty\n", "")

    sent = await host.run("sendmail", "-f", "a@x.example", "b@dest.example", content=MAIL)
    assert sent == (0, "", "")
    listing = ""
    while "(" not in listing:  # until it could not be delivered
        _, listing, _ = await host.run("mailq")

    assert listing.startswith("-Queue ID-")
    assert " a@x.example\n(" in listing
    assert " b@dest.example\n" in listing
    assert listing.endswith("-- 1 Kbytes in 1 Request.\n")
    assert (await host.run("sendmail", "-q"))[0] == 0
    await stopped(mta)


def test_root_becomes_the_user_of_a_directory_and_of_none_else(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("becomes another user")
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    program = (
        "import os, pathlib; from postroad.cli.mail.sendmail import become_owner;"
        f"become_owner(pathlib.Path({str(tmp_path)!r}));"
        "print(os.getresuid(), os.getresgid(), os.getgroups())"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ran.stdout.strip() == f"{(OTHER_USER,) * 3} {(OTHER_USER,) * 3} {[OTHER_USER]}", (
        ran.stderr
    )


async def test_a_mail_by_smtp_goes_to_all_recipients_or_to_none(host: Host) -> None:
    def rule(verb: str, argument: str) -> str | None:
        return "550 5.1.1 no such user" if verb == "RCPT" and "bad@" in argument else None

    async with Sink(rule) as sink:
        host.set(f"server: 127.0.0.1:{sink.port}", "domain: host.example")
        words = ("-i", "-N", "never", "-f", "a@x.example", "b@dest.example")

        refused = await host.run("sendmail", *words, "bad@dest.example", content=MAIL)
        assert refused == (os.EX_NOUSER, "", "sendmail: 550 5.1.1 no such user\n")
        assert sink.mails == []
        sent = await host.run("sendmail", *words, content=MAIL + b".\n\xc3\xa9\n")

    assert sent == (0, "", "")
    [mail] = sink.mails
    assert mail.content.endswith(b"\r\n\r\ndone\r\n.\r\n\xc3\xa9\r\n")
    assert "NOTIFY=NEVER" in mail.recipient_parameters["b@dest.example"]
    away = await host.run("sendmail", *words, content=MAIL)
    assert away[0] == os.EX_TEMPFAIL


async def test_settings_that_name_no_place_and_wrong_options_have_their_codes(
    host: Host,
) -> None:
    host.set("domain: host.example")

    nowhere = await host.run("sendmail", "b@dest.example", content=MAIL)
    usage = await host.run("sendmail", "-bs", "b@dest.example")

    assert nowhere[0] == os.EX_CONFIG
    assert "write `queue` or `server`" in nowhere[2]
    assert usage[0] == os.EX_USAGE
