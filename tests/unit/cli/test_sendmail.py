"""`sendmail` as programs of a host call it: its command line, and the mail that it makes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import click
import pytest

from postroad.cli.mail.local_mail import LocalNames, SendmailRefused, Submitter, submitted
from postroad.cli.mail.sendmail import code_of, listed, run
from postroad.cli.mail.sendmail_options import SendmailMode, parse_sendmail
from postroad.domain.mail.mail import Envelope, Mail
from postroad.domain.queues.documents import MailView
from postroad.errors import InvalidMail, InvalidSettings, QueueNotFound, StoreFull
from postroad.settings.intake import Sendmail, read_sendmail

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
MAIL_ID = UUID(int=7)
HOST = LocalNames("host.example.org", False, None)
TO_OPS = LocalNames("host.example.org", False, "ops@example.net")


def sent(content: bytes, *words: str, names: LocalNames = HOST) -> Mail:
    user = Submitter("app", 33)
    return submitted(content, parse_sendmail("sendmail", words), names, user, MAIL_ID, NOON)


def content_of(mail: Mail) -> bytes:
    assert isinstance(mail.content, bytes)
    return mail.content


@pytest.mark.parametrize(
    ("words", "sender", "recipients"),
    [
        ("-FCronDaemon -i -B8BITMIME -oem b@x.example", "app@host.example.org", ["b@x.example"]),
        ("-oem -oi -f a@x.example -- b@x.example", "a@x.example", ["b@x.example"]),
        ("-i -m -v b@x.example c@x.example", "app@host.example.org",
         ["b@x.example", "c@x.example"]),
        ("-t -i -fa@x.example", "a@x.example", ["t@x.example", "s@x.example"]),
        ("-ti -r bounce b@x.example", "bounce@host.example.org",
         ["b@x.example", "t@x.example", "s@x.example"]),
        ("-G -i -f <> b@x.example", None, ["b@x.example"]),
        ("-odb -O DeliveryMode=b -om -oee -L tag -U -n b@x.example", "app@host.example.org",
         ["b@x.example"]),
        ("-bm -X:trace b@x.example", None, None),
    ],
    ids=["cron", "mutt", "mailx", "PHP", "-t and recipients", "null", "ignored", "-X"],
)  # fmt: skip
def test_programs_that_send_get_the_envelope_that_they_mean(
    words: str, sender: str | None, recipients: list[str] | None
) -> None:
    content = b"To: T <t@x.example>\nBcc: s@x.example\nSubject: s\n\nbody\n"
    if recipients is None:
        with pytest.raises(click.UsageError):
            sent(content, *words.split())
        return

    mail = sent(content, *words.split())

    assert (mail.sender, list(mail.recipients)) == (sender, recipients)
    assert b"Bcc" not in content_of(mail)


@pytest.mark.parametrize(
    "words",
    [["-z"], ["-bd"], ["-bs"], ["-bt"], ["-q30m"], ["-f"], ["-N", "often"], ["-R", "some"],
     ["--help"]],
)  # fmt: skip
def test_options_that_are_not_offered_are_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse_sendmail("/usr/sbin/sendmail", words)


def test_the_name_of_the_link_and_b_p_list_and_q_flushes() -> None:
    assert parse_sendmail("/usr/bin/mailq", []).mode is SendmailMode.LIST
    assert parse_sendmail("sendmail", ["-bp"]).mode is SendmailMode.LIST
    assert parse_sendmail("sendmail", ["-q"]).mode is SendmailMode.FLUSH
    assert parse_sendmail("sendmail", ["-v", "--", "-q"]).recipients == ("-q",)
    assert parse_sendmail("mailq", ["-C", "/etc/f"]).file == Path("/etc/f")


def test_a_mail_gets_line_ends_and_the_fields_that_it_lacks() -> None:
    mail = sent(b"Subject: s\n\n.leading\n50%\r100%\0\n.\nleft out\n", "b@x.example")

    assert content_of(mail) == (
        b"Received: by host.example.org (postroad, from userid 33)\r\n"
        b"\tid 00000000-0000-0000-0000-000000000007; Sun, 29 Nov 2026 12:00:00 +0000\r\n"
        b"Subject: s\r\n"
        b"From: app@host.example.org\r\n"
        b"Date: Sun, 29 Nov 2026 12:00:00 +0000\r\n"
        b"Message-ID: <00000000-0000-0000-0000-000000000007@host.example.org>\r\n"
        b"\r\n"
        b".leading\r\n50%\r\n100%\r\n"
    )


@pytest.mark.parametrize("option", ["-i", "-oi"])
def test_a_dot_line_is_text_with_i(option: str) -> None:
    mail = sent(b"Subject: s\n\nx\n.\ny\n", option, "b@x.example")

    assert content_of(mail).endswith(b"\r\n\r\nx\r\n.\r\ny\r\n")


@pytest.mark.parametrize("end", [b".", b".\n", b".\r\n"])
def test_a_dot_line_without_i_ends_the_mail(end: bytes) -> None:
    assert content_of(sent(b"Subject: s\n\nx\n" + end, "b@x.example")).endswith(b"\r\n\r\nx\r\n")


@pytest.mark.parametrize(
    ("content", "header", "body"),
    [
        (b"hello\n", b"From: app@host.example.org", b"hello\r\n"),
        (b"Subject: s", b"Subject: s", b""),
        (b"Subject: s\n folded\nhello: x y\nno field\n\nz\n", b"hello: x y",
         b"no field\r\n\r\nz\r\n"),
        (b"From: A <a@x.example>\nDate: d\nMessage-ID: <1@x>\n\nz\n", b"Message-ID: <1@x>",
         b"z\r\n"),
    ],
    ids=["no header", "no body", "a line of no field", "complete"],
)  # fmt: skip
def test_the_body_begins_behind_the_last_field(content: bytes, header: bytes, body: bytes) -> None:
    found, _, rest = content_of(sent(content, "b@x.example")).partition(b"\r\n\r\n")

    assert header in found
    assert found.count(b"\r\nFrom: ") == 1
    assert found.count(b"\r\nDate: ") == 1
    assert rest == body


def test_names_without_a_domain_get_one_in_fields_of_addresses() -> None:
    content = (
        b"From: root (Cron Daemon)\nTo: root, B <b@x.example>\nReply-To: not an address\n"
        b"Subject: root\n\nx\n"
    )

    mail = sent(content, "-F", "Cron", "-f", "root", "b@x.example")

    assert mail.sender == "root@host.example.org"
    text = content_of(mail)
    assert b"\r\nFrom: Cron <root@host.example.org>\r\n" in text
    assert b"\r\nTo: root@host.example.org, b@x.example\r\n" in text
    assert b"\r\nReply-To: not an address\r\nSubject: root\r\n" in text


def test_local_recipients_go_where_they_are_set_to_or_are_refused() -> None:
    assert sent(b"x\n", "root", "b@x.example", names=TO_OPS).recipients == (
        "ops@example.net", "b@x.example",
    )  # fmt: skip
    of_domain = LocalNames("example.org", True, None)
    assert sent(b"To: root\n\nx\n", "-t", names=of_domain).recipients == ("root@example.org",)
    with pytest.raises(SendmailRefused, match=r"root is a local name.*localTo") as refused:
        sent(b"x\n", "root", "b@x.example")
    assert refused.value.exit_code == os.EX_NOUSER


@pytest.mark.parametrize(
    ("content", "words", "code"),
    [
        (b"Subject: s\n\nx\n", [], os.EX_USAGE),
        (b"Subject: s\n\nx\n", ["-t"], os.EX_USAGE),
        (b"x\n", ["-f", "a@x.example, c@x.example", "b@x.example"], os.EX_USAGE),
        (b"", ["b@x.example"], os.EX_DATAERR),
        (b"To: b@x.example\nno field\n\nx\n", ["-t"], os.EX_DATAERR),
        (b"To: b@x.example <evil@y.example>\n\nx\n", ["-t"], os.EX_DATAERR),
        (b"Resent-To: b@x.example\nResent-To: c@x.example\n\nx\n", ["-t"], os.EX_DATAERR),
        (b"Subject: a\rBcc: b@x.example\n\nx\n", ["-t"], os.EX_DATAERR),
    ],
    ids=["none", "none in the header", "two senders", "empty", "no field", "hidden", "resent twice",
         "CR"],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_by_its_code(
    content: bytes, words: list[str], code: int
) -> None:
    with pytest.raises(SendmailRefused) as refused:
        sent(content, *words)

    assert refused.value.exit_code == code


def test_a_mail_that_was_resent_goes_to_those_to_whom_it_was() -> None:
    content = b"To: a@x.example\nResent-To: b@x.example\nResent-Bcc: c@x.example\n\nx\n"

    mail = sent(content, "-t")

    assert mail.recipients == ("b@x.example", "c@x.example")
    assert b"Bcc" not in content_of(mail)


def test_reports_are_asked_for_as_the_options_say() -> None:
    dsn = sent(b"x\n", "-N", "success,failure", "-R", "hdrs", "-V", "e=1", "b@x.example").dsn

    assert dsn is not None
    assert (dsn.ret, dsn.envid) == ("HDRS", "e=1")
    assert dsn.recipients["b@x.example"].notify == ("SUCCESS", "FAILURE")
    assert sent(b"x\n", "b@x.example").dsn is None


@pytest.mark.parametrize(
    ("error", "code"),
    [(StoreFull(), 75), (InvalidMail("x"), 65), (InvalidSettings("x"), 78), (QueueNotFound(), 69)],
)  # fmt: skip
def test_errors_of_the_queue_have_codes_of_sysexits(error: Exception, code: int) -> None:
    assert isinstance(error, StoreFull | InvalidMail | InvalidSettings | QueueNotFound)
    assert code_of(error) == code


def test_mailq_lists_a_mail_as_postfix_does() -> None:
    envelope = Envelope(None, ("b@x.example", "c@x.example"))
    view = MailView(MAIL_ID, MAIL_ID, envelope, NOON, NOON, None, True, 1, 2048, "451 \x1b later")

    first, reason, *recipients = listed(view).splitlines()

    assert first.startswith(f"{MAIL_ID}!      2048 ")
    assert first.endswith(" MAILER-DAEMON")
    assert reason == "(451 \x1b later)"
    assert [each.strip() for each in recipients] == ["b@x.example", "c@x.example"]


def test_the_file_says_where_mail_goes_and_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "sendmail.yaml"
    file.write_text("server: 127.0.0.1:2525\nlocalTo: ops@example.org\ndomain: example.org\n")
    assert read_sendmail(file) == Sendmail(
        server="127.0.0.1:2525", local_to="ops@example.org", domain="example.org"
    )

    file.write_text("servers: 127.0.0.1:x\nlocalTo: ops\n")
    with pytest.raises(InvalidSettings, match=r"localTo.*did you mean server\?"):
        read_sendmail(file)


def test_a_queue_of_another_user_is_refused_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    monkeypatch.setenv("POSTROAD_QUEUE", f"embedded://{tmp_path}")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(SendmailRefused, match="write `server`") as refused:
        run(parse_sendmail("mailq", []))

    assert refused.value.exit_code == os.EX_NOPERM
