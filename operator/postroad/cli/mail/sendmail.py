"""`sendmail` and `mailq` for programs of this machine, by the script `postroad-sendmail`, to which
links of these names lead. Exit codes: sysexits(3)."""

import asyncio
import os
import pwd
import smtplib
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import click

from postroad.bootstrap import open_queue
from postroad.bootstrap.embedded_store import root_of
from postroad.cli.mail.local_mail import LocalNames, SendmailRefused, Submitter, submitted
from postroad.cli.mail.sendmail_options import SendmailMode, SendmailOptions, parse_sendmail
from postroad.cli.options import plural
from postroad.domain.mail.mail import Mail
from postroad.domain.mail.seven_bits import encode_xtext
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Selector
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.text import escaped
from postroad.errors import (
    InvalidInput,
    InvalidQueueURL,
    InvalidSettings,
    PostroadError,
)
from postroad.ports.mail_queue import MailQueue
from postroad.settings.intake import SENDMAIL_FILE, SMTP_PORT, Sendmail, read_sendmail
from postroad.telemetry import logs

REPLY_SECONDS = 300
"""Time to wait for each reply of a server. Source: RFC 5321 4.5.3.2, of MAIL and RCPT."""


def main() -> None:
    """Run as `sendmail`, or as `mailq` where that is the name of the link."""
    name, *words = sys.argv
    try:
        run(parse_sendmail(name, words))
    except click.UsageError as error:
        _end(os.EX_USAGE, error.message)
    except SendmailRefused as error:
        _end(error.exit_code, str(error))
    except PostroadError as error:
        _end(code_of(error), error.explain())
    except OSError as error:
        _end(os.EX_TEMPFAIL, str(error))


def _end(code: int, message: str) -> None:
    click.echo(f"sendmail: {message}", err=True)
    sys.exit(code)


def code_of(error: PostroadError) -> int:
    if error.transient:
        return os.EX_TEMPFAIL
    if isinstance(error, InvalidSettings | InvalidQueueURL):
        return os.EX_CONFIG
    return os.EX_DATAERR if isinstance(error, InvalidInput) else os.EX_UNAVAILABLE


def run(options: SendmailOptions) -> None:
    """Raises: SendmailRefused, PostroadError, OSError."""
    logs.configure("WARNING")
    settings = _settings(options.file)
    if options.mode is SendmailMode.LIST:
        return _with_queue(settings, _list)
    if options.mode is SendmailMode.FLUSH:
        return _with_queue(settings, _flush)
    mail = submitted(
        sys.stdin.buffer.read(), options, _names(settings), _user(), uuid4(), datetime.now(UTC)
    )
    if settings.server is not None:
        return submit(settings.server, mail)

    async def enqueue(queue: MailQueue) -> None:
        enqueue_id = await queue.enqueue(mail)
        if options.is_verbose:
            click.echo(str(enqueue_id))

    return _with_queue(settings, enqueue)


def _settings(file: Path | None) -> Sendmail:
    """Return the settings of the file; a queue of the environment comes first."""
    url = os.environ.get("POSTROAD_QUEUE")
    is_there = file is not None or SENDMAIL_FILE.exists()
    settings = read_sendmail(file or SENDMAIL_FILE) if is_there else Sendmail()
    if url:
        return settings.model_copy(update={"queue": url, "server": None})
    if settings.queue is None and settings.server is None:
        raise InvalidSettings(
            f"it is not set where mail goes: write `queue` or `server` into {SENDMAIL_FILE}"
        )
    return settings


def _names(settings: Sendmail) -> LocalNames:
    domain = settings.domain or socket.getfqdn()
    return LocalNames(domain, settings.domain is not None, settings.local_to)


def _user() -> Submitter:
    number = os.getuid()
    try:
        return Submitter(pwd.getpwuid(number).pw_name, number)
    except KeyError:
        return Submitter(f"uid{number}", number)


def _with_queue(settings: Sendmail, work: Callable[[MailQueue], Coroutine[Any, Any, None]]) -> None:
    if settings.queue is None:
        raise InvalidSettings(f"it is not set which queue: write `queue` into {SENDMAIL_FILE}")
    url = settings.queue
    parts = urlsplit(url)
    if parts.scheme == "embedded" and (root := root_of(parts)).is_dir():
        become_owner(root)
        if root.stat().st_uid not in (os.geteuid(), 0):
            raise SendmailRefused(
                os.EX_NOPERM,
                f"only its user and root may use the queue in {root}: write `server` into"
                f" {SENDMAIL_FILE}, for the mail of other users",
            )

    async def session() -> None:
        async with open_queue(url) as queue:
            await work(queue)

    asyncio.run(session())


def become_owner(directory: Path) -> None:
    """Become the user of a directory, for good, if this process is root and may be another: files
    that root makes in a store, its user cannot open. Raises: OSError."""
    found = directory.stat()
    if os.geteuid() == 0 and found.st_uid != 0:
        os.setgroups([found.st_gid])  # first: a user that is not root may change no group
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)


async def _flush(queue: MailQueue) -> None:
    await queue.flush(Selector.all())


async def _list(queue: MailQueue) -> None:
    count, octets = 0, 0
    async for view in queue.browse(Selector.all()):
        if not count:
            click.echo(
                f"{'-Queue ID-':-<38} {'--Size--':>8} ----Arrival Time---- -Sender/Recipient-"
            )
        click.echo(f"{escaped(listed(view))}\n")
        count, octets = count + 1, octets + view.size_bytes
    total = f"-- {-(-octets // 1024)} Kbytes in {plural(count, 'Request')}."
    click.echo(total if count else "Mail queue is empty")


def listed(view: MailView) -> str:
    """Return a mail as `mailq` of Postfix lists it: `!` is a held one; the reason of the delay in
    brackets; the recipients left."""
    accepted = view.accepted_at.astimezone().strftime("%a %b %d %H:%M:%S")
    mark = "!" if view.held else " "
    sender = view.mail.sender or "MAILER-DAEMON"
    lines = [f"{view.enqueue_id}{mark}  {view.size_bytes:8} {accepted:>20} {sender}"]
    if view.last_error:
        lines.append(f"({view.last_error})")
    return "\n".join([*lines, *(f"{'':69}{each}" for each in view.mail.recipients)])


def submit(server: str, mail: Mail) -> None:
    """Send a mail by SMTP, for all of its recipients or for none, since a program that is given an
    error sends all of it again. Raises: SendmailRefused, OSError."""
    host, port = parse_host_port(server, SMTP_PORT)
    try:
        client = smtplib.SMTP(host, port, timeout=REPLY_SECONDS)
        try:
            client.ehlo_or_helo_if_needed()
            _converse(client, mail)
            with suppress(smtplib.SMTPException, OSError):  # the mail is the server's
                client.quit()
        finally:
            client.close()
    except smtplib.SMTPResponseException as error:
        raise _refused(error.smtp_code, error.smtp_error, os.EX_UNAVAILABLE) from error
    except smtplib.SMTPNotSupportedError as error:
        raise SendmailRefused(os.EX_UNAVAILABLE, f"{server}: {error}") from error


def _converse(client: smtplib.SMTP, mail: Mail) -> None:
    assert isinstance(mail.content, bytes)
    takes_dsn = mail.dsn is not None and client.has_extn("dsn")
    takes_8_bits = not mail.content.isascii() and client.has_extn("8bitmime")
    options = ["BODY=8BITMIME"] if takes_8_bits else []
    if not "".join((mail.sender or "", *mail.recipients)).isascii():
        options.append("SMTPUTF8")
    if mail.dsn is not None and takes_dsn:
        options += [f"RET={mail.dsn.ret}"] if mail.dsn.ret else []
        options += [f"ENVID={encode_xtext(mail.dsn.envid)}"] if mail.dsn.envid else []
    _expect(client.mail(mail.sender or "", options), os.EX_UNAVAILABLE)
    for each in mail.recipients:
        notify = mail.dsn.recipients[each].notify if mail.dsn is not None and takes_dsn else ()
        words = [f"NOTIFY={','.join(notify)}"] if notify else []
        _expect(client.rcpt(each, words), os.EX_NOUSER)
    _expect(client.data(mail.content), os.EX_DATAERR)


def _expect(reply: tuple[int, bytes], refused: int) -> None:
    code, text = reply
    if code // 100 != 2:
        raise _refused(code, text, refused)


def _refused(code: int, text: bytes | str, refused: int) -> SendmailRefused:
    words = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return SendmailRefused(refused if code >= 500 else os.EX_TEMPFAIL, escaped(f"{code} {words}"))
