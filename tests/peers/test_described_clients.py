"""Other programs relay mail by a certificate of theirs, or describe their clients by XCLIENT."""

from __future__ import annotations

import asyncio
import shutil
import smtplib
from pathlib import Path
from typing import Any

import pytest

from peers import swaks
from peers.conftest import prepared
from peers.postfix import Postfix
from peers.server import Road
from support.certificates import Certificates
from support.intake_files import TLS, an_intake_by_file

pytestmark = pytest.mark.needs("peers")

CONTENT = b"From: a@example.org\r\nSubject: certified\r\n\r\nhello\r\n"
CERTIFIED: dict[str, Any] = {
    "listeners": [
        {
            "name": "certified",
            "role": "relay",
            "tls": TLS | {"clients": {"caFile": "theirs/ca.crt", "names": ["app.example"]}},
        }
    ]
}


@pytest.mark.parametrize("name", ["app.example", "other.example"])
async def test_swaks_relays_by_its_certificate(base: Path, name: str) -> None:
    theirs = Certificates.make(base / "theirs", name)
    async with an_intake_by_file(base, CERTIFIED) as running:
        shown = ("--tls", "--tls-cert", str(theirs.chain), "--tls-key", str(theirs.key))
        said = await swaks.send(
            base,
            running.ports["certified"],
            "a@example.org",
            ["b@dest.example"],
            CONTENT,
            *shown,
        )

    assert len(running.queue.mails) == (name == "app.example"), said
    assert ("550 5.7.1" in said) is (name != "app.example")


@pytest.mark.timeout(300)
async def test_postfix_relays_by_its_certificate(base: Path) -> None:
    prepared(Postfix)
    theirs = Certificates.make(base / "theirs", "app.example")
    async with an_intake_by_file(base, CERTIFIED) as running:
        own = base / "postfix"
        own.mkdir()
        for file, name in ((theirs.chain, "client.crt"), (theirs.key, "client.key")):
            shutil.copy(file, own / name)
        settings = (
            f"smtp_tls_cert_file = {own}/client.crt\nsmtp_tls_key_file = {own}/client.key\n"
            "smtp_tls_security_level = encrypt\n"
        )
        peer = Postfix(own, Road(running.ports["certified"]), settings)
        await peer.start()
        try:
            await asyncio.to_thread(_submit, peer.port)
            async with asyncio.timeout(60):
                while not running.queue.mails:
                    await asyncio.sleep(0.05)
        finally:
            await peer.stop()

    assert running.queue.mails[0][1].endswith(b"hello\r\n")


@pytest.mark.parametrize(("address", "is_taken"), [("192.0.2.1", True), ("192.0.2.2", False)])
async def test_swaks_describes_its_client(base: Path, address: str, is_taken: bool) -> None:
    relay = {"name": "relay", "role": "relay", "from": ["192.0.2.1"], "xclientFrom": ["127.0.0.1"]}
    async with an_intake_by_file(base, {"listeners": [relay]}) as running:
        described = ("--xclient-addr", address, "--xclient-name", "app.example")
        said = await swaks.send(
            base,
            running.ports["relay"],
            "a@example.org",
            ["b@dest.example"],
            CONTENT,
            *described,
        )

    assert len(running.queue.mails) == is_taken, said
    assert ("550 5.7.1" in said) is not is_taken


def _submit(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        client.sendmail("a@example.org", ["b@dest.example"], CONTENT)
