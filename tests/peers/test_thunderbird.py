"""Thunderbird submits mail, by the commands that are written here."""

from __future__ import annotations

import email
import re
from email import policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from peers import thunderbird
from peers.conftest import prepared
from peers.postfix import Postfix
from peers.tap import Tap
from stack.progress import Progress
from support.intake_files import ALICE, PASSWORD, SUBMISSION, TLS, an_intake_by_file

pytestmark = [pytest.mark.needs("peers"), pytest.mark.timeout(600)]

SMTPS: dict[str, Any] = {"name": "smtps", "role": "submission", "tls": TLS | {"mode": "Implicit"}}
MAIL: dict[str, str | bool] = {
    "user": ALICE,
    "password": PASSWORD,
    "from": "a@example.org",
    "to": "b@dest.example, c@dest.example",
    "bcc": "hidden@dest.example",
    "subject": "by Thunderbird: é",
    "DSN": False,
    "body": "hello\n.\n..\ncafé\n",
}

SAID = [
    "EHLO [127.0.0.1]",
    "AUTH PLAIN",
    "MAIL FROM:<a@example.org> BODY=8BITMIME SIZE",
    "RCPT TO:<b@dest.example>",
    "RCPT TO:<c@dest.example>",
    "RCPT TO:<hidden@dest.example>",
    "DATA",
]
"""One command at a time, without the credentials and the number of octets."""


def commands(tap: Tap) -> list[str]:
    lines = [each.decode().removesuffix("\r\n") for each in tap.said]
    return lines[: lines.index("DATA") + 1]


@pytest.mark.parametrize("secured", ["STARTTLS", "TLS"])
async def test_thunderbird_submits_mail(base: Path, secured: str) -> None:
    prepared(Postfix)  # as root
    thunderbird.installed().ensure(Progress())
    document = SUBMISSION | {"listeners": [*SUBMISSION["listeners"], SMTPS]}
    async with (
        an_intake_by_file(base, document) as running,
        Tap(running.ports["smtps"], running.certificates) as tap,
    ):
        port = running.ports["submission"] if secured == "STARTTLS" else tap.port
        failed = await thunderbird.send(base, port, running.certificates.authority, MAIL, secured)

    assert failed == ""
    if secured == "TLS":
        assert [re.sub("=[0-9]+$|(?<=PLAIN) .*", "", each) for each in commands(tap)] == SAID
    ((mail, content),) = running.queue.mails
    assert mail.sender == "a@example.org"
    assert set(mail.recipients) == {"b@dest.example", "c@dest.example", "hidden@dest.example"}
    assert mail.origin is not None
    assert mail.origin.protocol == "ESMTPSA"
    read = email.message_from_bytes(content, policy=policy.default)
    assert (read["Subject"], read["Bcc"]) == ("by Thunderbird: é", None)
    assert "Thunderbird" in read["User-Agent"]
    assert isinstance(read, EmailMessage)
    assert read.get_content() == "hello\r\n.\r\n..\r\ncafé\r\n"
