"""Memory of many sessions of submission under TLS. POSTROAD_TEST_TLS_SESSIONS: how many."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from pathlib import Path

import pytest
import yaml

from support.certificates import Certificates
from support.intake_files import ALICE, PASSWORD, SUBMISSION, write_users
from support.ports import free_port
from support.programs import Program

SESSIONS = int(os.environ.get("POSTROAD_TEST_TLS_SESSIONS", "200"))
MAX_BYTES = 64_000
"""Of each session that has logged in and is amid a mail; 32 kB are usual."""

AT_ONCE = 20
LOGIN = base64.b64encode(f"\0{ALICE}\0{PASSWORD}".encode())


@pytest.mark.timeout(900)
async def test_sessions_amid_mail_under_tls_take_bounded_memory(tmp_path: Path) -> None:
    certificates = Certificates.copied(tmp_path)
    write_users(tmp_path / "users.yaml", **{ALICE: PASSWORD})
    port, file = free_port(), tmp_path / "intake.yaml"
    listener = SUBMISSION["listeners"][0] | {"host": "127.0.0.1", "port": port}
    file.write_text(yaml.safe_dump(SUBMISSION | {"listeners": [listener]}))
    logs = tmp_path / "logs"
    logs.mkdir()
    words = ("--queue", f"embedded://{tmp_path}/store", "--create", "--intake", str(file))
    limits = {"MAX_SESSIONS": str(SESSIONS + 10), "CLIENT_SESSIONS": str(SESSIONS + 10)}
    intake = await Program.start(
        *(logs, "intake", *words),
        environment={f"POSTROAD_INTAKE_{name}": each for name, each in limits.items()},
    )
    await intake.port("listening")
    gate, tls = asyncio.Semaphore(AT_ONCE), certificates.client_context()

    async def session() -> asyncio.StreamWriter:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readline()
            await said(reader, writer, b"EHLO c.example", b"250")
            await said(reader, writer, b"STARTTLS", b"220")
            await writer.start_tls(tls, server_hostname="localhost")
            await said(reader, writer, b"EHLO c.example", b"250")
            await said(reader, writer, b"AUTH PLAIN " + LOGIN, b"235")
            await said(reader, writer, b"MAIL FROM:<a@example.org>", b"250")
            await said(reader, writer, b"RCPT TO:<b@dest.example>", b"250")
            await said(reader, writer, b"DATA", b"354")
            writer.write(b"Subject: not ended\r\n")
            return writer

    kept = [await session()]  # what the first one loads stays
    before = resident_bytes(intake.pid)
    kept += await asyncio.gather(*(session() for _ in range(SESSIONS)))
    taken = resident_bytes(intake.pid) - before
    print(f"{taken / SESSIONS / 1000:.1f} kB a session, {(before + taken) / 1e6:.0f} MB")
    for each in kept:
        each.transport.abort()
    assert await intake.stop() == 0
    assert taken / SESSIONS < MAX_BYTES


async def said(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: bytes, code: bytes
) -> None:
    writer.write(command + b"\r\n")
    line = await reader.readline()
    while line[3:4] == b"-":
        line = await reader.readline()
    assert line[:3] == code, line


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
