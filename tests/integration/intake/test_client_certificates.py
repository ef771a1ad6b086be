"""Clients that may relay because of their certificate."""

from __future__ import annotations

import asyncio
import shutil
import smtplib
import ssl
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates
from support.intake_files import TLS, RunningIntake, an_intake_by_file


def listener(mode: str, **clients: Any) -> dict[str, Any]:
    named = {"caFile": "clients.crt", **clients}
    tls = TLS | {"mode": mode, "clients": named}
    return {"name": "certified", "role": "relay", "tls": tls}


def rcpt(running: RunningIntake, shown: Certificates | None, *, implicit: bool = False) -> int:
    """Return the code of the reply to a recipient elsewhere, of a client with a certificate."""
    context, port = running.certificates.client_context(), running.ports["certified"]
    if shown is not None:
        context.load_cert_chain(shown.chain, shown.key)
    if implicit:
        client: smtplib.SMTP = smtplib.SMTP_SSL("localhost", port, "c.example", context=context)
    else:
        client = smtplib.SMTP("localhost", port, "c.example", timeout=20)
        client.starttls(context=context)
    with client:
        client.ehlo()
        client.docmd("MAIL FROM:<>")
        return client.docmd("RCPT TO:<x@dest.example>")[0]


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ([], 250),
        (["App.example"], 250),
        (["*.Example"], 250),
        (["other.example"], 550),
        (["*.app.example"], 550),
    ],
)
async def test_a_client_relays_by_a_name_in_its_certificate(
    tmp_path: Path, names: list[str], code: int
) -> None:
    theirs = Certificates.make(tmp_path / "theirs", "app.example")
    shutil.copy(theirs.authority, tmp_path / "clients.crt")
    async with an_intake_by_file(
        tmp_path, {"listeners": [listener("StartTLS", names=names)]}
    ) as on:
        assert await asyncio.to_thread(rcpt, on, theirs) == code
        assert await asyncio.to_thread(rcpt, on, None) == 550


async def test_a_certificate_of_other_authorities_ends_the_handshake(tmp_path: Path) -> None:
    theirs = Certificates.make(tmp_path / "theirs", "app.example")
    others = Certificates.make(tmp_path / "others", "app.example")
    shutil.copy(theirs.authority, tmp_path / "clients.crt")
    async with an_intake_by_file(tmp_path, {"listeners": [listener("StartTLS")]}) as running:
        with pytest.raises((ssl.SSLError, OSError, smtplib.SMTPException)):
            await asyncio.to_thread(rcpt, running, others)


async def test_a_required_certificate_is_needed_to_connect(tmp_path: Path) -> None:
    theirs = Certificates.make(tmp_path / "theirs", "app.example")
    shutil.copy(theirs.authority, tmp_path / "clients.crt")
    document = {"listeners": [listener("Implicit", required=True)]}
    async with an_intake_by_file(tmp_path, document) as on:
        assert await asyncio.to_thread(rcpt, on, theirs, implicit=True) == 250
        with pytest.raises((ssl.SSLError, OSError, smtplib.SMTPException)):
            await asyncio.to_thread(rcpt, on, None, implicit=True)


async def test_changed_authorities_are_used_without_a_restart(tmp_path: Path) -> None:
    theirs = Certificates.make(tmp_path / "theirs", "app.example")
    others = Certificates.make(tmp_path / "others", "app.example")
    shutil.copy(theirs.authority, tmp_path / "clients.crt")
    async with an_intake_by_file(tmp_path, {"listeners": [listener("StartTLS")]}) as running:
        assert await asyncio.to_thread(rcpt, running, theirs) == 250
        shutil.copy(others.authority, tmp_path / "clients.crt")
        assert await asyncio.to_thread(rcpt, running, others) == 250
        with pytest.raises((ssl.SSLError, OSError, smtplib.SMTPException)):
            await asyncio.to_thread(rcpt, running, theirs)
