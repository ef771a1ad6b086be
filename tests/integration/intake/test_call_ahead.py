"""An intake of role mx that asks the server which has the mailboxes of a domain."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from postroad.errors import InvalidSettings
from postroad.intake_settings.intake_file import read_intake
from support.intake_files import RunningIntake, an_intake_by_file
from support.ports import free_port

MAILBOXES: dict[str, Any] = {
    "listeners": [{"name": "mx", "role": "mx"}],
    "domains": [{"name": "example.org", "recipients": {"file": "recipients"}}],
}


def asking(port: int, **more: Any) -> dict[str, Any]:
    hop = {"host": "127.0.0.1", "port": port}
    domain = {"name": "example.org", "recipients": {"callAhead": hop}, **more}
    return {"listeners": [{"name": "mx", "role": "mx"}], "domains": [domain]}


@asynccontextmanager
async def two_servers(folder: Path, **more: Any) -> AsyncIterator[tuple[RunningIntake, ...]]:
    """Give the intake, and the server with the mailboxes alice and bob."""
    (folder / "mailboxes").mkdir()
    (folder / "mailboxes" / "recipients").write_text("alice\nbob\n")
    async with (
        an_intake_by_file(folder / "mailboxes", MAILBOXES) as mailboxes,
        an_intake_by_file(folder, asking(mailboxes.ports["mx"], **more)) as running,
    ):
        yield running, mailboxes


def greeted(port: int) -> socket.socket:
    """Return a connection on which EHLO was answered."""
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    assert client.recv(1000).startswith(b"220 ")
    client.sendall(b"EHLO client.example\r\n")
    assert client.recv(1000).startswith(b"250-")
    return client


def say(port: int, *commands: str) -> bytes:
    """Send all commands at once; return all that comes behind the reply to EHLO."""
    with greeted(port) as client:
        client.sendall("".join(f"{each}\r\n" for each in commands).encode())
        found = b""
        while octets := client.recv(10_000):
            found += octets
        return found


def codes(octets: bytes) -> list[int]:
    return [int(line[:3]) for line in octets.splitlines() if line[3:4] == b" "]


async def test_recipients_are_those_of_the_server_whose_commands_come_together(
    tmp_path: Path,
) -> None:
    async with two_servers(tmp_path) as (running, _):
        names = ("alice", "eve", "BOB", "postmaster", "alice", "eve")
        commands = [f"RCPT TO:<{each}@example.org>" for each in names]
        port = running.ports["mx"]
        got = await asyncio.to_thread(say, port, "MAIL FROM:<a@c.example>", *commands, "QUIT")
        assert codes(got) == [250, 250, 550, 250, 250, 250, 550, 221]


async def test_a_recipient_in_utf_8_says_nothing_about_others_where_the_server_takes_none(
    tmp_path: Path,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mailboxes\r\n")
        while line := await reader.readline():
            writer.write(b"250 ok\r\n" if b"SMTPUTF8" not in line else b"555 what\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with an_intake_by_file(tmp_path, asking(port)) as running:
            commands = (
                *("MAIL FROM:<> SMTPUTF8", "RCPT TO:<ü@example.org>", "RSET"),
                *("MAIL FROM:<>", "RCPT TO:<alice@example.org>", "QUIT"),
            )
            got = await asyncio.to_thread(say, running.ports["mx"], *commands)
            assert codes(got) == [250, 550, 250, 250, 250, 221]


async def test_mail_to_a_verified_recipient_is_queued(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (running, mailboxes):

        def work() -> None:
            with running.client("mx", secured=False) as client:
                client.sendmail("a@c.example", ["alice@example.org"], "Subject: x\r\n\r\nhello\r\n")

        await asyncio.to_thread(work)
        ((mail, _),) = running.queue.mails
        assert mail.recipients == ("alice@example.org",)
        assert mailboxes.queue.mails == []


@pytest.mark.parametrize(("more", "code"), [({}, 450), ({"backup": True}, 250)])
async def test_while_the_server_is_away_a_backup_takes_mail_and_others_do_not(
    tmp_path: Path, more: dict[str, Any], code: int
) -> None:
    async with an_intake_by_file(tmp_path, asking(free_port(), **more)) as running:
        commands = ("MAIL FROM:<>", "RCPT TO:<alice@example.org>", "QUIT")
        got = await asyncio.to_thread(say, running.ports["mx"], *commands)
        assert codes(got) == [250, code, 221]


async def test_a_client_that_leaves_meanwhile_ends_its_session(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        async with an_intake_by_file(tmp_path, asking(silent.getsockname()[1])) as running:
            client = await asyncio.to_thread(greeted, running.ports["mx"])
            client.sendall(b"MAIL FROM:<>\r\nRCPT TO:<a@example.org>\r\n")
            connection, _ = await asyncio.to_thread(silent.accept)
            client.close()
            while REGISTRY.get_sample_value("postroad_intake_sessions"):
                await asyncio.sleep(0.01)
            connection.close()


@pytest.mark.parametrize(
    ("domain", "problem"),
    [
        ({"recipients": {}}, "give one of secretRef"),
        ({"recipients": {"file": "a\0b"}}, "a path without NUL"),
        (
            {"recipients": {"file": "r", "callAhead": {"host": "a.example"}}},
            "give one of secretRef",
        ),
        ({"recipients": {"callAhead": {"host": "a.example", "lookUp": "MX"}}}, "leave out lookUp"),
        ({"recipients": {"file": "r"}, "backup": True}, "backup goes with recipients.callAhead"),
        ({"backup": True}, "backup goes with recipients.callAhead"),
    ],
)
def test_recipients_that_would_not_be_known_are_refused(
    tmp_path: Path, domain: dict[str, Any], problem: str
) -> None:
    document = asking(25) | {"domains": [{"name": "example.org", **domain}]}
    file = tmp_path / "intake.yaml"
    document["listeners"][0]["port"] = 25
    file.write_text(json.dumps(document))

    with pytest.raises(InvalidSettings, match=problem):
        read_intake(file)
