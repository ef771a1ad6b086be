"""Mail clients submit: msmtp by logging in, mutt and mailx by `sendmail`. Postfix does by logging
in, and stands as the MX before an intake."""

from __future__ import annotations

import asyncio
import email
import smtplib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import policy
from pathlib import Path
from typing import Any

import pytest

from peers import clients
from peers.conftest import prepared
from peers.postfix import Postfix
from peers.server import Road
from support.intake_files import (
    ALICE,
    PASSWORD,
    SUBMISSION,
    TLS,
    RunningIntake,
    an_intake_by_file,
)
from support.repository import ROOT
from support.token_issuer import AUDIENCE, an_issuer, token

pytestmark = [pytest.mark.needs("peers"), pytest.mark.timeout(300)]

CONTENT = b"From: a@example.org\r\nSubject: by a client\r\n\r\nhello\r\n.\r\n..\r\n"
SMTPS: dict[str, Any] = {"name": "smtps", "role": "submission", "tls": TLS | {"mode": "Implicit"}}
BOTH = SUBMISSION | {"listeners": [*SUBMISSION["listeners"], SMTPS]}

LOGIN = """\
smtp_sasl_auth_enable = yes
smtp_sasl_security_options = noanonymous
smtp_sasl_mechanism_filter = {mechanism}
smtp_sasl_password_maps = texthash:{base}/logins
smtp_tls_security_level = secure
smtp_tls_secure_cert_match = localhost
smtp_tls_CAfile = {base}/authority.pem
"""

VERIFYING = """\
relay_domains = example.org
smtpd_relay_restrictions = reject_unauth_destination
smtpd_recipient_restrictions = reject_unverified_recipient
unverified_recipient_reject_code = 550
address_verify_map =
address_verify_poll_count = 30
"""


async def by_msmtp(
    base: Path,
    running: RunningIntake,
    mechanism: str,
    secret: str,
    user: str = ALICE,
    *,
    starttls: bool = True,
) -> tuple[int, str]:
    return await clients.msmtp(
        base,
        running.ports["submission" if starttls else "smtps"],
        CONTENT,
        ["b@dest.example", "c@dest.example"],
        authority=running.certificates.authority,
        sender="a@example.org",
        mechanism=mechanism,
        user=user,
        secret=secret,
        starttls=starttls,
    )


@pytest.mark.parametrize("mechanism", ["plain", "login", "scram-sha-256"])
@pytest.mark.parametrize("starttls", [True, False])
async def test_msmtp_submits_mail(base: Path, mechanism: str, starttls: bool) -> None:
    prepared(Postfix)
    async with an_intake_by_file(base, BOTH) as running:
        sent = await by_msmtp(base, running, mechanism, PASSWORD, starttls=starttls)
        refused = await by_msmtp(base, running, mechanism, "wrong", starttls=starttls)

    assert sent[0] == 0, sent
    assert refused[0] != 0
    ((mail, content),) = running.queue.mails
    assert mail.recipients == ("b@dest.example", "c@dest.example")
    assert content.endswith(CONTENT)


@pytest.mark.parametrize("mechanism", ["oauthbearer", "xoauth2"])
async def test_msmtp_submits_mail_by_a_token_of_an_issuer(base: Path, mechanism: str) -> None:
    prepared(Postfix)
    async with an_issuer() as issuer:
        users = {"oidc": {"issuer": issuer, "audience": AUDIENCE}}
        user = "a@example.org"
        async with an_intake_by_file(base, SUBMISSION | {"users": users}) as running:
            sent = await by_msmtp(base, running, mechanism, token(issuer), user)
            expired = token(issuer, exp=1)
            refused = await by_msmtp(base, running, mechanism, expired, user)

    assert sent[0] == 0, sent
    assert refused[0] != 0
    ((_, content),) = running.queue.mails
    assert content.endswith(CONTENT)


@asynccontextmanager
async def a_host(base: Path) -> AsyncIterator[RunningIntake]:
    """Run an intake, and put `sendmail` into `base`, which sends to it."""
    relay = {"listeners": [{"name": "relay", "role": "relay"}]}
    async with an_intake_by_file(base, relay) as running:
        file, script = base / "sendmail.yaml", base / "sendmail"
        file.write_text(f"server: 127.0.0.1:{running.ports['relay']}\ndomain: host.example\n")
        run = "from postroad.cli.mail.sendmail import main; main()"
        script.write_text(
            f"#!/bin/sh\nexport PYTHONPATH={ROOT}/operator\n"
            f"exec {sys.executable} -c '{run}' -C {file} \"$@\"\n"
        )
        script.chmod(0o755)
        yield running


async def test_mutt_sends_an_attachment_by_sendmail(base: Path) -> None:
    prepared(Postfix)
    (base / "data.txt").write_bytes(b"caf\xc3\xa9 " * 300)
    async with a_host(base) as running:
        (base / "muttrc").write_text(
            f"set sendmail = '{base}/sendmail -oem -oi'\nset from = 'a@example.org'\n"
            "set use_envelope_from = yes\nset copy = no\nset write_bcc = yes\n"
        )
        words = ("-F", str(base / "muttrc"), "-s", "by mutt", "-c", "c@dest.example")
        hidden = ("-b", "hidden@dest.example", "-a", str(base / "data.txt"), "--")
        code, said = await clients.outside(
            base, "mutt", *words, *hidden, "b@dest.example", content=b"hello\n.\n..\n"
        )

    assert code == 0, said
    ((mail, content),) = running.queue.mails
    assert mail.sender == "a@example.org"
    assert set(mail.recipients) == {"b@dest.example", "c@dest.example", "hidden@dest.example"}
    read = email.message_from_bytes(content, policy=policy.default)
    text, attached = read.iter_parts()
    assert (read["Subject"], read["Bcc"]) == ("by mutt", None)
    assert text.get_content() == "hello\r\n.\r\n..\r\n"
    assert attached.get_content().strip() == "café " * 299 + "café"


async def test_mailx_sends_by_sendmail_from_the_user(base: Path) -> None:
    prepared(Postfix)
    async with a_host(base) as running:
        (base / "mailrc").write_text(f"set sendmail={base}/sendmail\n")
        code, said = await clients.outside(
            *(base, "bsd-mailx", "-s", "by mailx", "-b", "hidden@dest.example", "b@dest.example"),
            content=b"hello\n.hidden\n",
            MAILRC=str(base / "mailrc"),
        )

    assert code == 0, said
    ((mail, content),) = running.queue.mails
    assert (mail.sender or "").endswith("@host.example")
    assert set(mail.recipients) == {"b@dest.example", "hidden@dest.example"}
    header, _, body = content.partition(b"\r\n\r\n")
    assert b"hidden@dest.example" not in header
    assert body == b"hello\r\n.hidden\r\n"


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "SCRAM-SHA-256"])
async def test_postfix_submits_mail(base: Path, mechanism: str) -> None:
    prepared(Postfix)
    async with an_intake_by_file(base, SUBMISSION) as running:
        port, own = running.ports["submission"], base / "postfix"
        own.mkdir()
        (own / "authority.pem").write_bytes(running.certificates.authority.read_bytes())
        (own / "logins").write_text(f"[127.0.0.1]:{port} {ALICE}:{PASSWORD}\n")
        peer = Postfix(own, Road(port), LOGIN.format(base=own, mechanism=mechanism))
        await peer.start()
        try:
            await asyncio.to_thread(send, peer.port, "b@dest.example")
            await arrived(running)
        finally:
            await peer.stop()

    ((mail, content),) = running.queue.mails
    assert mail.recipients == ("b@dest.example",)
    assert mail.origin is not None
    assert mail.origin.protocol == "ESMTPSA"
    assert content.endswith(b"hello\r\n.\r\n..\r\n")


async def test_postfix_asks_an_intake_for_recipients_as_the_mx_before_it(base: Path) -> None:
    prepared(Postfix)
    (base / "recipients.txt").write_text("known@example.org\n")
    document = {
        "listeners": [{"name": "mx", "role": "mx"}],
        "domains": [{"name": "example.org", "recipients": {"file": "recipients.txt"}}],
    }
    async with an_intake_by_file(base, document) as running:
        peer = Postfix(base / "postfix", Road(running.ports["mx"]), VERIFYING)
        await peer.start()
        try:
            await asyncio.to_thread(send, peer.port, "known@example.org")
            with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
                await asyncio.to_thread(send, peer.port, "unknown@example.org")
            await arrived(running)
        finally:
            await peer.stop()

    ((code, text),) = refused.value.recipients.values()
    assert code == 550
    assert b"5.1.1" in text
    ((mail, _),) = running.queue.mails
    assert mail.recipients == ("known@example.org",)


def send(port: int, recipient: str) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
        client.sendmail("a@example.org", [recipient], CONTENT)


async def arrived(running: RunningIntake) -> None:
    async with asyncio.timeout(60):
        while not running.queue.mails:
            await asyncio.sleep(0.05)
