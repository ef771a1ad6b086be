"""Listeners of role http: what a file of intake may say of them, and when aiohttp is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from postroad.domain.mail.mail import CONTENT_DIGEST, Mail
from postroad.domain.queues.references import digest_of
from postroad.errors import InvalidInput, InvalidSettings
from postroad.intake_settings.intake_file import IntakeFile, read_intake

USERS = {"file": "users.yaml"}
CERTIFICATES = [{"cert": "tls.crt", "key": "tls.key"}]


def read(folder: Path, users: Any = USERS, **listener: Any) -> IntakeFile:
    file = folder / "intake.yaml"
    document = {"listeners": [{"name": "h", "role": "http", "port": 8025} | listener]}
    file.write_text(yaml.safe_dump(document | ({"users": users} if users else {})))
    return read_intake(file)


@pytest.mark.parametrize(
    ("listener", "address"),
    [
        ({}, "127.0.0.1"),
        ({"host": "localhost"}, "localhost"),
        ({"host": "::1"}, "::1"),
        ({"tls": {"mode": "Implicit", "certificates": CERTIFICATES}}, "*"),
    ],
)
def test_http_listens_on_loopback_or_with_tls(
    tmp_path: Path, listener: dict[str, Any], address: str
) -> None:
    assert read(tmp_path, **listener).listeners[0].address == address


@pytest.mark.parametrize(
    ("listener", "error"),
    [
        ({"host": "*"}, "needs tls, or a loopback address"),
        ({"host": "192.0.2.1"}, "needs tls, or a loopback address"),
        ({"tls": {"certificates": CERTIFICATES}}, "mode: Implicit"),
        ({"proxyFrom": ["192.0.2.1"]}, "proxyFrom"),
        ({"from": ["192.0.2.1"]}, "`from` is of the role relay"),
        ({"users": None}, "users is missing"),
    ],
)
def test_http_that_would_not_be_safe_is_refused(
    tmp_path: Path, listener: dict[str, Any], error: str
) -> None:
    with pytest.raises(InvalidSettings, match=error):
        read(tmp_path, **listener)


def test_a_digest_stands_for_the_content_of_a_mail_with_a_key(tmp_path: Path) -> None:
    def mail(content: Any, digest: str | None) -> Mail:
        attributes = {} if digest is None else {CONTENT_DIGEST: digest}
        return Mail("a@example.org", ("b@dest.example",), content, attributes=attributes)

    file = tmp_path / "mail"
    assert digest_of(mail(b"x", "1")) == digest_of(mail(file, "1"))
    assert digest_of(mail(b"x", "1")) != digest_of(mail(b"x", "2"))
    with pytest.raises(InvalidInput):
        digest_of(mail(file, None))


def test_an_intake_without_http_imports_no_aiohttp() -> None:
    program = "import sys, postroad.cli.processes.intake; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
