"""Submission by users who log in: smtplib and scramp are clients. Source: RFC 6409, RFC 4954."""

from __future__ import annotations

import asyncio
import base64
import re
import smtplib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from postroad.intake.logins import guessing
from support.intake_files import (
    ALICE,
    PASSWORD,
    SUBMISSION,
    an_intake_by_file,
    by_scram,
    write_users,
)

MAIL = b"From: Alice <alice@example.org>\r\nSubject: x\r\n\r\nhello\r\n"


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


def plain(client: smtplib.SMTP, name: str, password: str) -> None:
    client.auth("PLAIN", lambda _=None: f"\0{name}\0{password}")


def login(client: smtplib.SMTP, name: str, password: str) -> None:
    answers = iter((name, password))
    client.auth("LOGIN", lambda _=None: next(answers), initial_response_ok=False)


@pytest.mark.parametrize("log_in", [by_scram, plain, login])
async def test_submission_takes_mail_of_a_user_who_has_logged_in(
    tmp_path: Path, log_in: Callable[[smtplib.SMTP, str, str], None]
) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> None:
            with running.client() as client:
                client.ehlo()
                log_in(client, ALICE, PASSWORD)
                client.sendmail("a@example.org", ["b@dest.example"], MAIL)

        await in_thread(work)

    ((mail, content),) = running.queue.mails
    assert (mail.sender, mail.recipients) == ("a@example.org", ("b@dest.example",))
    assert b"with ESMTPSA id" in content
    assert content.endswith(MAIL)


@pytest.mark.parametrize("log_in", [by_scram, plain, login])
@pytest.mark.parametrize(
    ("name", "password"), [(ALICE, "wrong"), ("bob@example.org", PASSWORD)], ids=["wrong", "none"]
)
async def test_a_wrong_password_and_an_unknown_user_get_the_same_reply(
    tmp_path: Path,
    log_in: Callable[[smtplib.SMTP, str, str], None],
    name: str,
    password: str,
) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> tuple[int, bytes | str, tuple[int, bytes]]:
            with running.client() as client:
                client.ehlo()
                with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
                    log_in(client, name, password)
                return (
                    refused.value.smtp_code,
                    refused.value.smtp_error,
                    client.docmd("MAIL", "FROM:<a@example.org>"),
                )

        code, text, after = await in_thread(work)

    assert (code, text) == (535, b"5.7.8 wrong user name or password")
    assert after[0] == 530


async def test_scram_plus_binds_a_login_to_the_certificate(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> None:
            with running.client() as client:
                client.ehlo()
                by_scram(client, ALICE, PASSWORD, ("tls-server-end-point", client.sock))
            with running.client() as client:
                client.ehlo()
                with pytest.raises(smtplib.SMTPAuthenticationError):
                    by_scram(client, ALICE, PASSWORD, ("tls-server-end-point", b"x" * 32))

        await in_thread(work)


async def test_submission_offers_logins_under_tls_alone(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> None:
            with running.client(secured=False) as client:
                client.ehlo()
                assert not client.has_extn("auth")
                assert client.docmd("AUTH", "PLAIN AGEAYg==")[0] == 538
                assert client.docmd("MAIL", "FROM:<a@example.org>")[0] == 530
                client.starttls(context=running.certificates.client_context())
                client.ehlo()
                offered = client.esmtp_features["auth"].split()
                assert offered == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256", "PLAIN", "LOGIN"]

        await in_thread(work)


@pytest.mark.parametrize(
    ("command", "answers", "code"),
    [
        ("PLAIN !!!", (), 501),
        ("PLAIN", ("*",), 501),
        ("PLAIN", ("AAAA",), 501),
        ("PLAIN", ("AAA=",), 535),
        ("PLAIN =", (), 501),
        ("NONE", (), 504),
        ("", (), 504),
        ("PLAIN " + base64.b64encode(b"root\0alice@example.org\0x").decode(), (), 535),
        ("PLAIN " + base64.b64encode(b"\0a\r\nb\0x").decode(), (), 535),
        ("PLAIN " + base64.b64encode(b"\0" + b"a" * 300 + b"\0x").decode(), (), 535),
        ("PLAIN " + base64.b64encode(b"\xff\0\xff\0\xff").decode(), (), 501),
        ("LOGIN", ("A" * 20_000,), 500),
        ("SCRAM-SHA-256", ("eCx5LG4=",), 501),
        ("SCRAM-SHA-256 " + base64.b64encode(b"y,,n=a,r=abc").decode(), (), 535),
    ],
)
async def test_malformed_logins_are_refused_and_the_session_goes_on(
    tmp_path: Path, command: str, answers: tuple[str, ...], code: int
) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> int:
            with running.client() as client:
                client.ehlo()
                got = client.docmd("AUTH", command)
                for each in answers:
                    assert got[0] == 334
                    got = client.docmd(each)
                plain(client, ALICE, PASSWORD)
                return got[0]

        assert await in_thread(work) == code


RULES = [
    {
        "users": ["*@example.org"],
        "senders": ["@example.org"],
        "tenant": "example",
        "perMinute": 2,
        "maxSize": "64Ki",
        "fixUp": True,
    }
]


async def test_a_rule_bounds_senders_size_and_rate_and_gives_the_tenant(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION | {"rules": RULES}) as running:

        def work() -> None:
            with running.client() as client:
                client.ehlo()
                plain(client, ALICE, PASSWORD)
                assert client.docmd("MAIL", "FROM:<x@else.example>")[0] == 553
                assert client.docmd("MAIL", "FROM:<>")[0] == 553
                assert client.docmd("MAIL", "FROM:<a@example.org> SIZE=70000")[0] == 552
                for author, code in (("x@else.example", 550), ("b@example.org", 250)):
                    client.docmd("MAIL", "FROM:<a@example.org> AUTH=<>")
                    client.docmd("RCPT", "TO:<b@dest.example>")
                    got, _ = client.data(f"From: {author}\r\nBcc: secret@x.example\r\n\r\nhi\r\n")
                    assert got == code
                assert client.docmd("MAIL", "FROM:<a@example.org>")[0] == 450

        await in_thread(work)

    ((mail, content),) = running.queue.mails
    assert mail.attributes == {"postroad.tenant": "example"}
    header = content.partition(b"\r\n\r\n")[0]
    assert re.search(rb"\r\nDate: .*\r\nMessage-ID: <[0-9a-f]{16}@intake\.example>$", header, re.S)
    assert b"secret" not in content


@pytest.mark.parametrize(
    "header",
    [
        "From: a@example.org\r\nFrom: b@else.example",
        "From: a@example.org, b@else.example",
        "From: a@example.org\r\nSender: b@else.example",
        "Subject: none",
        'From: "a@example.org" <b@else.example>',
        "From: a@example.org <b@else.example>",
    ],
)
async def test_a_header_that_names_another_author_is_refused(tmp_path: Path, header: str) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION | {"rules": RULES}) as running:

        def work() -> int:
            with running.client() as client:
                client.ehlo()
                plain(client, ALICE, PASSWORD)
                client.docmd("MAIL", "FROM:<a@example.org>")
                client.docmd("RCPT", "TO:<b@dest.example>")
                return client.data(f"{header}\r\n\r\nhi\r\n")[0]

        assert await in_thread(work) == 550
    assert running.queue.mails == []


async def test_a_changed_file_of_users_is_used_without_a_restart(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def works(password: str) -> bool:
            with running.client() as client:
                client.ehlo()
                try:
                    plain(client, ALICE, password)
                except smtplib.SMTPAuthenticationError:
                    return False
                return True

        assert await asyncio.to_thread(works, PASSWORD)
        write_users(tmp_path / "users.yaml", **{ALICE: "another one"})
        running.process.look()
        while not await asyncio.to_thread(works, "another one"):
            await asyncio.sleep(0.01)
        assert not await asyncio.to_thread(works, PASSWORD)


async def test_a_password_is_not_found_out_from_a_network_that_may_not_log_in(
    tmp_path: Path,
) -> None:
    rules = [{"users": ["*"], "from": ["192.0.2.0/24"]}]
    async with an_intake_by_file(tmp_path, SUBMISSION | {"rules": rules}) as running:

        def work() -> list[tuple[int, bytes | str]]:
            got = []
            for log_in in (plain, by_scram):
                for password in (PASSWORD, "wrong"):
                    with running.client() as client:
                        client.ehlo()
                        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
                            log_in(client, ALICE, password)
                        got.append((refused.value.smtp_code, refused.value.smtp_error))
            return got

        assert set(await in_thread(work)) == {(535, b"5.7.8 wrong user name or password")}


async def test_a_session_whose_client_leaves_while_its_login_waits_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guessing, "FIRST_WAIT", 1e6)
    monkeypatch.setattr(guessing, "MAX_WAIT", 1e6)
    monkeypatch.setattr(guessing, "FREE_FAILURES", 0)
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> None:
            client = running.client()
            client.ehlo()
            client.putcmd("AUTH", "PLAIN " + base64.b64encode(b"\0a\0b").decode())
            client.close()

        await in_thread(work)
        while REGISTRY.get_sample_value("postroad_intake_sessions") != 0:
            await asyncio.sleep(0.01)


def instant(**later: int) -> str:
    return (datetime.now(UTC) + timedelta(**later)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("parameter", "least", "most"),
    [
        ("HOLDFOR=3600", 3600, 3600),
        (f"HOLDFOR={366 * 86400}", 366 * 86400, 366 * 86400),
        ("HOLDFOR=0", None, None),
        (f"HOLDFOR={366 * 86400 + 1}", None, None),
        ("HOLDUNTIL={later}", 6900, 7200),
        ("HOLDUNTIL={past}", None, None),
        ("HOLDUNTIL={far}", None, None),
        ("HOLDUNTIL=2027-02-31T00:00:00Z", None, None),
        ("HOLDUNTIL=2027-01-31T00:00:00", None, None),
        ("HOLDUNTIL=tomorrow", None, None),
        ("HOLDFOR=60 HOLDUNTIL={later}", None, None),
    ],
)
async def test_a_user_has_a_mail_held_back(
    tmp_path: Path, parameter: str, least: int | None, most: int | None
) -> None:
    """Source: RFC 4865."""
    later, past, far = instant(hours=2), instant(hours=-2), instant(days=367)
    parameter = parameter.format(later=later, past=past, far=far)
    async with an_intake_by_file(tmp_path, SUBMISSION) as running:

        def work() -> int:
            with running.client() as client:
                client.ehlo()
                longest, latest = client.esmtp_features["futurerelease"].split()
                assert int(longest) == 366 * 86400
                assert datetime.fromisoformat(latest) > datetime.now(UTC) + timedelta(days=365)
                plain(client, ALICE, PASSWORD)
                code = client.mail("a@example.org", [parameter])[0]
                if code == 250:
                    client.rcpt("b@dest.example")
                    client.data(MAIL)
                return code

        code = await in_thread(work)

    if least is None or most is None:
        assert (code, running.queue.mails) == (501, [])
        return
    (delay,) = running.queue.delays
    assert code == 250
    assert least <= delay.total_seconds() <= most
