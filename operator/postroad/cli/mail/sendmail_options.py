"""The command line of `sendmail`, as cron, mutt, mailx, PHP and git write it. Pure.

Options that would not change what becomes of the mail are taken and ignored, so that programs made
for another sendmail go on; sendmail(1) of Postfix 3.7 has the list."""

import getopt
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath

import click

from postroad.domain.mail.mail import DsnOptions, RecipientDsn
from postroad.errors import InvalidMail

_OPTIONS = "A:B:C:F:GL:N:O:R:UV:b:e:f:h:imno:p:q:r:tv"
"""A colon: with a value. Ignored are A, B, e, G, h, L, m, n, O, p, U, and all of o but `-oi`."""


class SendmailMode(StrEnum):
    """Work of one call, by the value of `-b`."""

    SEND = "m"
    LIST = "p"
    FLUSH = "q"


@dataclass(frozen=True, slots=True)
class SendmailOptions:
    """Decisions of a command line. `sender`: None is the user, the empty one the null
    reverse-path; `notify` of each recipient; `dsn` of the mail."""

    mode: SendmailMode
    recipients: tuple[str, ...]
    are_recipients_in_header: bool
    ends_at_dot: bool
    sender: str | None
    full_name: str
    notify: RecipientDsn
    dsn: DsnOptions
    is_verbose: bool
    file: Path | None


def parse_sendmail(name: str, words: Sequence[str]) -> SendmailOptions:
    """Return what a command line says; `name` is that of the command. Raises: UsageError."""
    listed = list(words)
    flushes = "-q" in listed[: listed.index("--") if "--" in listed else None]
    if flushes:  # the one option whose value may be absent
        listed.remove("-q")
    try:
        pairs, recipients = getopt.getopt(listed, _OPTIONS)
    except getopt.GetoptError as error:
        raise click.UsageError(f"{error}: see docs/host.md for those that are taken") from error
    given = dict(pairs)
    if "-q" in given:
        raise click.UsageError("-q takes no value here: use `postroad flush` and its selectors")
    is_mailq = PurePath(name).name == "mailq"
    mode = (
        SendmailMode.LIST
        if is_mailq
        else SendmailMode.FLUSH
        if flushes
        else given.get("-b", SendmailMode.SEND)
    )
    if mode not in {*SendmailMode}:
        raise click.UsageError(f"-b{mode} is not offered: `postroad mta` is the server")
    senders = [value for option, value in pairs if option in {"-f", "-r"}]
    try:
        dsn = DsnOptions(given["-R"].upper() if "-R" in given else None, given.get("-V"))
        notify = tuple(given["-N"].upper().split(",")) if "-N" in given else ()
        asked = RecipientDsn(notify)
    except InvalidMail as error:
        raise click.UsageError(str(error)) from error
    return SendmailOptions(
        SendmailMode(mode),
        tuple(recipients),
        "-t" in given,
        not ("-i" in given or ("-o", "i") in pairs),
        (senders[-1] if senders[-1] != "<>" else "") if senders else None,
        given.get("-F", ""),
        asked,
        dsn,
        "-v" in given,
        Path(given["-C"]) if "-C" in given else None,
    )
