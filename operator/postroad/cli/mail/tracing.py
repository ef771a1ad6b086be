"""`postroad trace`: what became of mail, from the attempt log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import click

from postroad.adapters.disk.attempt_log import read_attempts
from postroad.cli.options import DURATION, json_option, say
from postroad.domain.delivery.attempt_log import AttemptSelector, LoggedAttempt, to_document
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.values.durations import format_duration
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput


@click.command()
@click.option(
    "--log",
    "folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    envvar="POSTROAD_WORKER_ATTEMPT_LOG",
    required=True,
    help="The folder of the attempt log (or POSTROAD_WORKER_ATTEMPT_LOG).",
)
@click.option("--recipient", help="A recipient, where the log has addresses.")
@click.option("--sender", help="The reverse-path, where the log has addresses; '<>': the null one.")
@click.option("--domain", help="The domain of recipients.")
@click.option("--site", help="The site that the mail was handed to, or was to be.")
@click.option("--mail-id", type=click.UUID, help="The id of a mail.")
@click.option("--outcome", type=click.Choice([each.value for each in OutcomeKind]))
@click.option("--within", type=DURATION, help="Attempts of the last so long, e.g. 24h.")
@json_option
def trace(
    folder: Path,
    recipient: str | None,
    sender: str | None,
    domain: str | None,
    site: str | None,
    mail_id: UUID | None,
    outcome: str | None,
    within: timedelta | None,
    as_json: bool,
) -> None:
    """Print the attempts at delivering mail, also of mail that is gone, in order of time.

    Workers write them where POSTROAD_WORKER_ATTEMPT_LOG names a folder, with addresses where
    POSTROAD_WORKER_ATTEMPT_LOG_ADDRESSES is true.
    """
    wanted = AttemptSelector(
        recipient=recipient,
        sender="" if sender == "<>" else sender,
        domain=domain,
        site=site,
        mail_id=mail_id,
        outcome=None if outcome is None else OutcomeKind(outcome),
        since=None if within is None else datetime.now(UTC) - within,
    )
    if wanted == AttemptSelector():
        raise click.UsageError("name what to search for, such as --recipient or --within 1h")
    found, without_addresses, unreadable = _search(folder, wanted)
    for line in found:
        say(to_document(line), as_json=as_json, text=attempt_text(line))
    if unreadable:
        click.echo(f"postroad: {unreadable} lines cannot be read", err=True)
    if not found and wanted.needs_addresses and without_addresses:
        raise InvalidInput(
            f"{without_addresses} lines of the log have no addresses, none with addresses fits",
            hint="search by --domain or --mail-id; POSTROAD_WORKER_ATTEMPT_LOG_ADDRESSES=true "
            "keeps addresses from now on",
        )
    if not found:
        click.echo("postroad: no attempt fits", err=True)


def _search(folder: Path, wanted: AttemptSelector) -> tuple[list[LoggedAttempt], int, int]:
    """Return the lines that fit in order of time, and how many have no addresses, or cannot be
    read. Files of several processes are read one after the other, so that few are open."""
    found: list[LoggedAttempt] = []
    without_addresses = unreadable = 0
    for line in read_attempts(folder, wanted.since):
        if line is None:
            unreadable += 1
            continue
        without_addresses += line.recipient is None
        if wanted.fits(line):
            found.append(line)
    return sorted(found, key=lambda line: line.at), without_addresses, unreadable


def attempt_text(line: LoggedAttempt) -> str:
    """Return an attempt as people read it: one line."""
    sender = line.sender if line.sender is not None else line.sender_domain
    outcome = f"{line.kind.value}, given up" if line.given_up else line.kind.value
    queued = timedelta(seconds=round(max(0.0, line.queued_seconds)))
    parts = [
        str(rfc3339(line.at)),
        str(line.mail_id),
        f"{sender or '<>'} -> {line.recipient or line.domain}",
        f"attempt {line.attempt}",
        f"{outcome}{f' ({line.reason.value})' if line.reason else ''}",
        f"after {format_duration(queued)}" if queued else "at once",
        f"site {line.site}" if line.site else "",
        line.reply,
    ]
    return "  ".join(part for part in parts if part)
