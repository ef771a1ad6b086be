"""TLS and logins of an intake in a cluster: a certificate is renewed in its Secret, and users in
theirs, and no pod restarts."""

from __future__ import annotations

import smtplib
import ssl
from pathlib import Path

import pytest

from postroad.intake.logins.passwords import record_of
from postroad.intake_settings.user_file import UserFile, written
from support.certificates import Certificates
from support.kubectl import Manifest, eventually, secret
from support.resources import relay
from support.sandbox import Sandbox
from support.spec_cases import SUBMISSION, TLS, USERS

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

KUBELET_SECONDS = 240
"""The time until a pod has a changed Secret: the kubelet looks once in a minute or so, and may use
a copy that is as old."""


def made(folder: Path, name: str) -> Certificates:
    (folder / name).mkdir()
    return Certificates.make(folder / name)


def tls_secret(sandbox: Sandbox, files: Certificates) -> Manifest:
    pair = {"tls.crt": files.chain.read_text(), "tls.key": files.key.read_text()}
    return secret("intake-tls", sandbox.namespace, pair) | {"type": "kubernetes.io/tls"}


def shown_at(port: int) -> str:
    """Return the certificate of a session that begins now."""
    return ssl.get_server_certificate(("localhost", port), timeout=10)


def send(port: int, recipient: str, files: Certificates) -> None:
    """Send a mail to an intake that the authority vouches for."""
    context = files.client_context()
    with smtplib.SMTP_SSL("localhost", port, context=context, timeout=30) as client:
        code, greeting = client.ehlo()
        assert (code, greeting.split(b"\n")[0]) == (250, b"mx.example.org")
        client.sendmail("a@origin.example", [recipient], b"Subject: x\r\n\r\nunder TLS\r\n")


def test_a_renewed_certificate_is_shown_to_new_sessions_and_no_pod_restarts(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    first, second = made(tmp_path, "first"), made(tmp_path, "second")
    smtps = relay("127.0.0.0/8", name="smtps", port=465, tls=TLS | {"mode": "Implicit"})
    intake = {"replicas": 1, "listeners": [relay("127.0.0.0/8", tls=TLS), smtps]}
    sandbox.apply(sandbox.mail_queue(intake=intake, hostname="mx.example.org"))
    eventually(
        lambda: sandbox.condition("IntakeReady").get("reason") == "CredentialsMissing",
        within_seconds=120,
    )
    sandbox.apply(tls_secret(sandbox, first))
    sandbox.wait_ready(within_seconds=KUBELET_SECONDS)
    (before,) = sandbox.pods("intake")

    with sandbox.kubectl.forwarded(sandbox.namespace, "service/outgoing-intake", 465) as port:
        send(port, "first@dest.example", first)
        assert shown_at(port).strip() in first.chain.read_text()

        sandbox.apply(tls_secret(sandbox, second))
        eventually(
            lambda: shown_at(port).strip() in second.chain.read_text(),
            within_seconds=KUBELET_SECONDS,
            every_seconds=2,
        )
        send(port, "second@dest.example", second)
    with sandbox.smtp() as port, smtplib.SMTP("localhost", port, timeout=30) as client:
        client.starttls(context=second.client_context())
        client.sendmail("a@origin.example", ["third@dest.example"], b"by STARTTLS\r\n")

    recipients = [f"{name}@dest.example" for name in ("first", "second", "third")]
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=60)
    for each in recipients:
        (content,) = sandbox.sink.contents()[each]
        assert b"\tby mx.example.org with ESMTPS id " in content
    assert_unchanged(sandbox, before)
    sandbox.wait_ready()


def assert_unchanged(sandbox: Sandbox, before: Manifest) -> None:
    (after,) = sandbox.pods("intake")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0]


PASSWORD = "correct horse"


def users_of(sandbox: Sandbox, *names: str) -> Manifest:
    records = tuple(record_of(each, PASSWORD) for each in names)
    text = written(UserFile(secret="s" * 32, users=records))
    return secret("users", sandbox.namespace, {"users.yaml": text})


def reply_to_login(port: int, user: str, files: Certificates, recipient: str | None = None) -> int:
    """Log in under STARTTLS, and send a mail of the user where it may; return the reply."""
    with smtplib.SMTP("localhost", port, timeout=30) as client:
        client.starttls(context=files.client_context())
        try:
            code, _ = client.login(user, PASSWORD)
            if recipient is not None:
                client.sendmail(user, [recipient], f"From: {user}\r\n\r\nx\r\n".encode())
        except (smtplib.SMTPAuthenticationError, smtplib.SMTPSenderRefused) as refused:
            return refused.smtp_code
    return code


def test_a_user_of_a_secret_sends_and_other_users_and_rules_are_followed_without_a_restart(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    files = made(tmp_path, "only")
    first, second = "first@origin.example", "second@origin.example"
    intake = {"replicas": 1, "listeners": [SUBMISSION], "users": USERS}
    sandbox.apply(tls_secret(sandbox, files), users_of(sandbox, first))
    sandbox.apply(sandbox.mail_queue(intake=intake))
    sandbox.wait_ready(within_seconds=KUBELET_SECONDS)
    (before,) = sandbox.pods("intake")

    with sandbox.kubectl.forwarded(sandbox.namespace, "service/outgoing-intake", 587) as port:
        assert reply_to_login(port, first, files, "first@dest.example") == 235
        assert reply_to_login(port, second, files) == 535

        sandbox.apply(users_of(sandbox, second))
        rules = {"rules": [{"senders": ["@origin.example"], "tenant": "origin"}]}
        sandbox.apply(sandbox.mail_queue(intake=intake | rules))
        eventually(
            lambda: reply_to_login(port, second, files) == 235,
            within_seconds=KUBELET_SECONDS,
            every_seconds=5,
        )
        assert reply_to_login(port, first, files) == 535
        assert reply_to_login(port, second, files, "second@dest.example") == 235
        rules = {"rules": [{"senders": ["@elsewhere.example"]}]}
        sandbox.apply(sandbox.mail_queue(intake=intake | rules))
        eventually(
            lambda: reply_to_login(port, second, files, "third@dest.example") == 553,
            within_seconds=KUBELET_SECONDS,
            every_seconds=5,
        )

    recipients = ["first@dest.example", "second@dest.example"]
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=60)
    assert_unchanged(sandbox, before)
    sandbox.wait_ready()
