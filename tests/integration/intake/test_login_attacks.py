"""Sessions of submission by clients that guess, inject and break off: none gets in, none
learns more than others, and those who have a password log in beside them. Drawn by a seed."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from postroad.intake.logins import passwords
from support.intake_files import ALICE, PASSWORD, SUBMISSION, RunningIntake, an_intake_by_file

SESSIONS = int(os.environ.get("POSTROAD_TEST_LOGIN_SESSIONS", "150"))
AT_ONCE = 30
REPLY = re.compile(rb"[2-5]\d\d[ -][\x20-\x7e]*\r\n")
SECRETS = (b"hunter2-of-tests", PASSWORD.encode())
MAIL = b"MAIL FROM:<alice@example.org>"


def coded(octets: bytes) -> bytes:
    return base64.b64encode(octets)


NAMES = (ALICE.encode(), b"bob@example.org", b"", b"a\r\n250 ok", b"\0", b"\xff\xfe", b"a" * 2000,
         b"alice@example.org\r\nMAIL FROM:<x@y.example>", b"=1\r\n,",
         "ａlice@example.org".encode())  # fmt: skip


def plain_of(draw: random.Random) -> Sequence[bytes]:
    name, password = draw.choice(NAMES), draw.choice((SECRETS[0], b"", b"\0", b"x" * 5000))
    parts = draw.choice((
        [b"", name, password], [name, name, password], [ALICE.encode(), name, password],
        [b"", name, password, SECRETS[1]], [name],
    ))  # fmt: skip
    return (b"AUTH PLAIN " + coded(b"\0".join(parts)),)


def login_of(draw: random.Random) -> Sequence[bytes]:
    answers = [coded(draw.choice(NAMES)), coded(SECRETS[0])]
    return (b"AUTH LOGIN", *answers[: draw.randrange(3)])


def scram_of(draw: random.Random) -> Sequence[bytes]:
    binding = draw.choice(
        (b"n,,", b"y,,", b"p=tls-unique,,", b"p=tls-server-end-point,,", b"", b"n,a=bob,")
    )
    first = binding + b"n=" + draw.choice(NAMES)[:100] + b",r=" + b"r" * draw.choice((0, 8, 3000))
    proof = b"c=biws,r=rrrrrrrr,p=" + coded(bytes(draw.choice((0, 31, 32, 33))))
    mechanism = draw.choice((b"SCRAM-SHA-256", b"SCRAM-SHA-256-PLUS"))
    return (
        b"AUTH " + mechanism + b" " + coded(first),
        coded(draw.choice((proof, b"", b"p=", first))),
    )


def garbage_of(draw: random.Random) -> Sequence[bytes]:
    return (draw.choice((
        b"AUTH", b"AUTH NONE", b"AUTH XOAUTH2 " + coded(b"user=a\1auth=Bearer x\1\1"), b"*",
        b"AUTH PLAIN =", b"AUTH PLAIN *", b"AUTH EXTERNAL =", b"AUTH PLAIN !!!", b"STARTTLS",
        b"AUTH ANONYMOUS", b"AUTH PLAIN\tAGEAYg==", b"AUTH PLAIN " + b"A" * 12_000,
    )),)  # fmt: skip


ATTACKS: Sequence[Callable[[random.Random], Sequence[bytes]]] = (
    plain_of, login_of, scram_of, garbage_of,
)  # fmt: skip


async def replies_to(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes
) -> list[bytes]:
    """Return the lines of a reply; none where the server has ended the session."""
    found: list[bytes] = []
    try:
        writer.write(line + b"\r\n")
        while not found or found[-1][3:4] == b"-":
            if not (reply := await reader.readline()):
                return []
            found.append(reply)
    except OSError:
        return []
    return found


async def a_session(running: RunningIntake, number: int) -> list[bytes]:
    """Attack from an address of its own; return all lines that the server said."""
    draw = random.Random(number)
    address = f"127.{1 + number // 65_000}.{number // 250 % 256}.{1 + number % 250}"
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", running.ports["submission"], local_addr=(address, 0)
    )
    said = [await reader.readline()]
    if draw.random() < 0.9:
        said += await replies_to(reader, writer, b"EHLO client.example")
        said += await replies_to(reader, writer, b"STARTTLS")
        await writer.start_tls(running.certificates.client_context(), server_hostname="localhost")
    said += await replies_to(reader, writer, b"EHLO client.example")
    for _ in range(draw.randrange(1, 3)):
        lines = draw.choice(ATTACKS)(draw)
        for line in lines[: draw.randrange(1, 1 + len(lines))] if draw.random() < 0.1 else lines:
            said += await replies_to(reader, writer, line)
    if draw.random() < 0.7:
        said += await replies_to(reader, writer, b"*")
        said += await replies_to(reader, writer, MAIL)
    writer.transport.abort()
    return said


async def opened(running: RunningIntake) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.ports["submission"])
    await reader.readline()
    await replies_to(reader, writer, b"EHLO client.example")
    await replies_to(reader, writer, b"STARTTLS")
    await writer.start_tls(running.certificates.client_context(), server_hostname="localhost")
    await replies_to(reader, writer, b"EHLO client.example")
    return reader, writer


async def a_login(running: RunningIntake) -> list[bytes]:
    """Log Alice in; return the last reply."""
    reader, writer = await opened(running)
    credentials = coded(f"\0{ALICE}\0{PASSWORD}".encode())
    found = await replies_to(reader, writer, b"AUTH PLAIN " + credentials)
    writer.transport.abort()
    return found


async def test_no_hostile_session_gets_in_and_alice_logs_in_beside_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[bytes] = []
    alice: list[bytes] = []
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:
        left = iter(range(SESSIONS))

        async def attack() -> None:
            for number in left:
                said.extend(await a_session(running, number))
                if number % 50 == 25:
                    alice.extend(await a_login(running))

        await asyncio.gather(*(attack() for _ in range(AT_ONCE)))

    assert running.queue.mails == []
    assert alice
    assert {each[:3] for each in alice} == {b"235"}
    codes = {each[:3] for each in said}
    assert codes <= {b"220", b"221", b"250", b"334", b"421", b"454", b"500", b"501", b"502", b"503",
                     b"504", b"530", b"535", b"538"}  # fmt: skip
    assert [each for each in said if not REPLY.fullmatch(each)] == []
    assert [each for each in said if b"Ok" in each and b"alice@" in each] == []
    logged = caplog.text + "".join(capfd.readouterr())
    assert [each for each in SECRETS if each.decode() in logged] == []
    assert "Traceback" not in logged


async def test_an_unknown_user_costs_what_a_wrong_password_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is compared, not the time: each is one check by argon2id."""
    checks: list[str] = []
    fits = passwords._fits  # the work that takes the time

    def counted(wanted: str, prepared: str) -> bool:
        checks.append(wanted)
        return fits(wanted, prepared)

    monkeypatch.setattr(passwords, "_fits", counted)
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:
        for name in (ALICE, "bob@example.org"):
            reader, writer = await opened(running)
            line = b"AUTH PLAIN " + coded(f"\0{name}\0wrong".encode())
            (reply,) = await replies_to(reader, writer, line)
            assert reply.startswith(b"535")
            writer.transport.abort()

    assert len(checks) == 2
    parameters = {each.rsplit("$", 2)[0] for each in checks}
    assert len(parameters) == 1, "memory and passes are equal"


async def test_scram_tells_of_an_unknown_user_a_salt_that_stays(tmp_path: Path) -> None:
    """Else two logins tell whether a user exists. Source: RFC 5802 9."""
    found: dict[str, list[dict[str, str]]] = {ALICE: [], "bob@example.org": []}
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:
        for name in (*found, *found):
            reader, writer = await opened(running)
            line = b"AUTH SCRAM-SHA-256 " + coded(f"n,,n={name},r=rOprNGfwEbeRWgbN".encode())
            (reply,) = await replies_to(reader, writer, line)
            challenge = base64.b64decode(reply.removeprefix(b"334 ")).decode()
            found[name].append(dict(each.split("=", 1) for each in challenge.split(",")))
            writer.transport.abort()

    (alice, alice_again), (bob, bob_again) = found.values()
    assert alice["s"] == alice_again["s"]
    assert bob["s"] == bob_again["s"]
    assert (alice["i"], len(alice["s"])) == (bob["i"], len(bob["s"]))
