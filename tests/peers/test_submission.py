"""Other programs submit mail by logging in; Dovecot knows the users, or a file does."""

from __future__ import annotations

import asyncio
import smtplib
from pathlib import Path
from typing import Any

import pytest

from peers import swaks
from peers.conftest import prepared
from peers.dovecot import Dovecot
from peers.server import Road
from support.intake_files import ALICE, PASSWORD, SUBMISSION, TLS, an_intake_by_file, by_scram

pytestmark = pytest.mark.needs("peers")

CONTENT = b"From: a@example.org\r\nSubject: by swaks\r\n\r\nhello\r\n"
SMTPS: dict[str, Any] = {"name": "smtps", "role": "submission", "tls": TLS | {"mode": "Implicit"}}


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
@pytest.mark.parametrize("way", ["--tls", "--tls-on-connect"])
async def test_swaks_submits_mail(base: Path, mechanism: str, way: str) -> None:
    document = SUBMISSION | {"listeners": [*SUBMISSION["listeners"], SMTPS]}
    async with an_intake_by_file(base, document) as running:
        port = running.ports["submission" if way == "--tls" else "smtps"]
        login = ("--auth", mechanism, "--auth-user", ALICE, "--auth-password", f"'{PASSWORD}'")
        said = await swaks.send(
            base, port, "a@example.org", ["b@dest.example"], CONTENT, way, *login
        )

    assert len(running.queue.mails) == 1, said
    assert running.queue.mails[0][1].endswith(CONTENT)


async def test_swaks_without_a_login_submits_nothing(base: Path) -> None:
    async with an_intake_by_file(base, SUBMISSION) as running:
        port = running.ports["submission"]
        said = await swaks.send(base, port, "a@example.org", ["b@dest.example"], CONTENT, "--tls")

    assert "530 5.7.0" in said
    assert running.queue.mails == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "SCRAM-SHA-256"])
async def test_dovecot_checks_logins(base: Path, mechanism: str) -> None:
    prepared(Dovecot)
    dovecot = Dovecot(base / "dovecot", Road(0))
    dovecot.users = ("carol",)
    await dovecot.start()
    document = SUBMISSION | {"users": {"dovecot": {"socket": str(dovecot.logins)}}}
    try:
        async with an_intake_by_file(base, document) as running:

            def code(password: str) -> int:
                with running.client() as client:
                    client.ehlo()
                    assert mechanism in client.esmtp_features["auth"].split()
                    try:
                        log_in(client, mechanism, password)
                    except smtplib.SMTPAuthenticationError as error:
                        return error.smtp_code
                    client.sendmail("a@example.org", ["b@dest.example"], CONTENT)
                    return 250

            assert await asyncio.to_thread(code, "x") == 250
            assert await asyncio.to_thread(code, "wrong") == 535
            await dovecot.stop()
            assert await asyncio.to_thread(code, "x") == 454
    finally:
        await dovecot.stop()
    assert len(running.queue.mails) == 1


def log_in(client: smtplib.SMTP, mechanism: str, password: str) -> None:
    if mechanism == "SCRAM-SHA-256":
        by_scram(client, "carol", password)
    elif mechanism == "PLAIN":
        client.auth("PLAIN", lambda _=None: f"\0carol\0{password}")
    else:
        answers = iter(("carol", password))
        client.auth("LOGIN", lambda _=None: next(answers), initial_response_ok=False)
