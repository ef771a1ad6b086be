"""The milters of Debian filter mail before the intake accepts it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from peers.conftest import prepared
from peers.milters import ClamAv, Milter, OpenDkim, OpenDmarc, Rspamd
from postroad.domain.mail.mail import QUARANTINE
from support import dns_server
from support.intake_files import RunningIntake, an_intake_by_file

pytestmark = pytest.mark.needs("peers")

HAM = (
    b"From: a@signed.example\r\nTo: b@dest.example\r\nSubject: hello\r\n  folded\r\n"
    b"Date: Sun, 29 Nov 2026 12:00:00 +0000\r\nMessage-ID: <1@signed.example>\r\n\r\n"
    b"Shall we meet?\r\n.\r\n..two dots\r\n"
)
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-" + b"STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
EICAR = b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


@asynccontextmanager
async def filtered(base: Path, *milters: Milter) -> AsyncIterator[RunningIntake]:
    """Run milters, and an intake that they filter for."""
    started: list[Milter] = []
    try:
        for each in milters:
            await each.start()
            started.append(each)
        filters = [
            {"name": f"{each.name}-{number}", "milter": each.address}
            for number, each in enumerate(milters)
        ]
        document: dict[str, Any] = {
            "listeners": [{"name": "relay", "role": "relay"}],
            "filters": filters,
        }
        async with an_intake_by_file(base, document) as running:
            yield running
    finally:
        for each in started:
            await each.stop()


async def sent(
    running: RunningIntake, content: bytes, sender: str = "a@signed.example"
) -> tuple[int, bytes]:
    def work() -> tuple[int, bytes]:
        with running.client("relay", secured=False) as client:
            client.ehlo()
            client.mail(sender)
            client.rcpt("b@dest.example")
            return client.data(content)

    return await asyncio.to_thread(work)


async def test_rspamd_refuses_spam_and_marks_the_rest(base: Path) -> None:
    prepared(Rspamd)
    async with filtered(base, Rspamd(base / "rspamd")) as running:
        for _ in range(3):
            assert (await sent(running, HAM))[0] == 250
        code, text = await sent(running, HAM.replace(b"Shall we meet?", GTUBE))

    assert (code, text) == (554, b"5.7.1 Gtube pattern")
    for _, content in running.queue.mails:
        assert re.search(rb"\r\nX-Spam-Status: No, ", content.partition(b"\r\n\r\n")[0])
        assert content.partition(b"\r\n\r\n")[2] == HAM.partition(b"\r\n\r\n")[2]
    assert len(running.queue.mails) == 3


async def test_opendkim_verifies_what_another_opendkim_signed(base: Path) -> None:
    prepared(OpenDkim)
    key = rsa.generate_private_key(65537, 2048)
    signer, verifier = OpenDkim(base / "signer"), OpenDkim(base / "verifier")
    verifier.signs = False
    signer.private = verifier.private = key.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    ).decode()
    signer.public = verifier.public = (
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    )
    async with filtered(base, signer, verifier) as running:
        for _ in range(2):
            assert (await sent(running, HAM))[0] == 250

    for _, content in running.queue.mails:
        header = content.partition(b"\r\n\r\n")[0]
        assert b"\r\nDKIM-Signature: v=1; a=rsa-sha256; c=simple/simple; d=signed.example" in header
        assert re.search(rb"\r\nAuthentication-Results: intake\.example;\s+dkim=pass", header)
    assert len(running.queue.mails) == 2


async def test_opendmarc_refuses_what_a_domain_wants_refused(base: Path) -> None:
    prepared(OpenDmarc)
    zone = "\n".join(
        f'_dmarc.{domain} TXT "v=DMARC1\\059 p={policy}"'
        for domain, policy in (("strict.example", "reject"), ("signed.example", "none"))
    )
    async with dns_server.running(dns_server.DnsServer(zone), "127.0.53.1", 53):
        dmarc = OpenDmarc(base / "dmarc")
        dmarc.nameserver = "127.0.53.1"
        async with filtered(base, dmarc) as running:
            assert (await sent(running, HAM))[0] == 250
            forged = HAM.replace(b"signed.example", b"strict.example")
            code, text = await sent(running, forged, "x@elsewhere.example")

    assert code == 550, text
    assert b"DMARC" in text
    ((_, content),) = running.queue.mails
    assert re.search(rb"\r\nAuthentication-Results: intake\.example; dmarc=", content)


@pytest.mark.parametrize("on_infected", ["Reject", "Quarantine"])
async def test_clamav_finds_eicar_in_an_attachment(base: Path, on_infected: str) -> None:
    prepared(ClamAv)
    clamav = ClamAv(base / "clamav")
    digest = hashlib.md5(EICAR, usedforsecurity=False).hexdigest()
    clamav.signatures = f"{digest}:{len(EICAR)}:Eicar-Of-Tests\n"
    clamav.on_infected = on_infected
    infected = HAM.partition(b"\r\n\r\n")[0] + (
        b"\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: application/octet-stream\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\n"
        + base64.encodebytes(EICAR).replace(b"\n", b"\r\n") + b"\r\n--b--\r\n"
    )  # fmt: skip
    async with filtered(base, clamav) as running:
        assert (await sent(running, HAM))[0] == 250
        code, text = await sent(running, infected)

    clean = running.queue.mails[0][1]
    assert b"\r\nX-Virus-Status: Clean" in clean
    if on_infected == "Reject":
        assert code == 550, text
        assert b"virus Eicar-Of-Tests" in text
        assert len(running.queue.mails) == 1
    else:
        assert code == 250
        held = running.queue.mails[1][0].attributes[QUARANTINE]
        assert held.startswith("clamav-milter-0: ")
