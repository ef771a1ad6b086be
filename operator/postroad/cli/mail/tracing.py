"""`postroad trace`: what became of mail, from the attempt log or from the lake."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from postroad.administration.tracing import search_attempts
from postroad.cli.options import (
    DURATION,
    INSTANT,
    is_given,
    json_option,
    lake_option,
    master_option,
)
from postroad.cli.tables import TextTable
from postroad.domain.delivery.attempts import AttemptSelector, LoggedAttempt, to_document
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.errors import InvalidInput


@click.command()
@click.argument("what", metavar="[ADDRESS|ID]", required=False)
@click.option(
    "--log",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="POSTROAD_WORKER_ATTEMPT_LOG",
    help="The folder of the attempt log (or POSTROAD_WORKER_ATTEMPT_LOG).",
)
@click.option(
    "--queue",
    "url",
    metavar="URL",
    envvar="POSTROAD_QUEUE",
    help="The queue, whose lake is read where no attempt log is named (or POSTROAD_QUEUE).",
)
@lake_option
@master_option
@click.option("--recipient", help="A recipient, of a log with addresses.")
@click.option("--sender", help="The reverse-path, of a log with addresses; '<>': the null one.")
@click.option("--domain", help="The domain of recipients, of a log.")
@click.option("--site", help="The site that the mail was handed to, or was to be, of a log.")
@click.option(
    "--outcome", type=click.Choice([each.value for each in OutcomeKind]), help="Of a log."
)
@click.option("--from", "since", type=INSTANT, help="From then on; default: since the beginning.")
@click.option("--to", "before", type=INSTANT, help="Before then; default: until now.")
@click.option("--within", type=DURATION, help="In place of --from: the last so long, e.g. 24h.")
@json_option
def trace(
    *,
    what: str | None,
    log: Path | None,
    url: str | None,
    folder: Path | None,
    master: str,
    within: timedelta | None,
    since: datetime | None,
    before: datetime | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Print what became of mail, also of mail that is gone: of the mails from or to an address, or
    of one by its mail id or an enqueue id.

    The attempt log, which workers write where POSTROAD_WORKER_ATTEMPT_LOG names a folder, has the
    attempts at delivering them (addresses: with POSTROAD_WORKER_ATTEMPT_LOG_ADDRESSES=true). The
    lake of a queue has every entry of them, and the view what the lake has not yet."""
    if within is not None:
        if since is not None:
            raise click.UsageError("give --from or --within")
        now = datetime.now(UTC)
        since = now - min(within, now - EPOCH)
    given = {name: value for name, value in fields.items() if value is not None}
    options = {"--queue": "url", "--lake": "folder", "--master": "master"}
    of_a_lake = [option for option, name in options.items() if is_given(name)]
    if of_a_lake and is_given("log"):
        raise click.UsageError(f"--log and {of_a_lake[0]} name two places to read: give one")
    if log is not None and not of_a_lake:
        _trace_log(log, _selector(what, given, since, before), as_json=as_json)
        return
    if url is None:
        raise click.UsageError(
            "name what to read: an attempt log by --log, or a queue with a lake by --queue"
        )
    if given:
        raise click.UsageError(
            f"--{next(iter(given))} is for an attempt log: of a lake, give ADDRESS or ID"
        )
    if what is None:
        raise click.UsageError("name what to search for in the lake: ADDRESS or ID")
    from postroad.bootstrap.archiving import is_in_a_directory

    if folder is None and is_in_a_directory(url):
        raise InvalidInput(
            f"{url!r} alone has no trace of mail that is gone",
            hint="name the attempt log with --log; of a lake, name its directory with --lake",
        )
    from postroad.cli.pipeline.lake import LakeRequest, print_result
    from postroad.cli.pipeline.results import trace as job

    request = LakeRequest(url, folder, master, since, before)
    print_result(request, partial(job, what=what), as_json=as_json)


def _selector(
    what: str | None, given: dict[str, str], since: datetime | None, before: datetime | None
) -> AttemptSelector:
    fields: dict[str, Any] = dict(given)
    if "outcome" in given:
        fields["outcome"] = OutcomeKind(given["outcome"])
    if given.get("sender") == "<>":
        fields["sender"] = ""
    if what is not None:
        try:
            fields["identifier"] = UUID(what)
        except ValueError:
            if "@" not in what:
                raise click.UsageError(f"{what!r} is neither an id nor an address") from None
            fields["address"] = what
    wanted = AttemptSelector(since=since, before=before, **fields)
    if wanted == AttemptSelector():
        raise click.UsageError("name what to search for: ADDRESS, ID, or such as --recipient")
    return wanted


def _trace_log(folder: Path, wanted: AttemptSelector, *, as_json: bool) -> None:
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder of an attempt log", hint="name one by --log")
    found, read, without_addresses, unreadable = search_attempts(folder, wanted)
    with TextTable(*ATTEMPT_HEAD, as_json=as_json) as table:
        for line in found:
            table.add(to_document(line), *attempt_cells(line))
    if unreadable:
        click.echo(f"postroad: {unreadable} lines cannot be read", err=True)
    if not found and wanted.needs_addresses and without_addresses:
        raise InvalidInput(
            f"{without_addresses} lines of the log have no addresses, none with addresses fits",
            hint="search by --domain or an id; POSTROAD_WORKER_ATTEMPT_LOG_ADDRESSES=true "
            "keeps addresses from now on",
        )
    if not found:
        click.echo(
            f"postroad: no attempt fits: {read} lines were searched; mail that was not attempted"
            " yet, or that an administrator ended, has none",
            err=True,
        )


def _connection_text(line: LoggedAttempt) -> str:
    facts = line.connection
    if facts is None or not facts.address:
        return ""
    secured = f" {facts.tls} {'verified' if facts.verified else 'unverified'}" if facts.tls else ""
    return f"via {line.host}[{facts.address}]:{facts.port}{secured}"


ATTEMPT_HEAD = (
    *("AT", "MAIL", "FROM", "TO", "ATTEMPT", "OUTCOME", "AFTER", "SITE", "CONNECTION", "REPLY"),
)


def attempt_cells(line: LoggedAttempt) -> tuple[str, ...]:
    """Return an attempt as people read it, by ATTEMPT_HEAD."""
    sender = line.sender if line.sender is not None else line.sender_domain
    outcome = f"{line.kind.value}, given up" if line.given_up else line.kind.value
    queued = timedelta(seconds=round(max(0.0, line.queued_seconds)))
    return (
        str(rfc3339(line.at)),
        str(line.mail_id),
        sender or "<>",
        line.recipient or line.domain,
        str(line.attempt),
        f"{outcome}{f' ({line.reason.value})' if line.reason else ''}",
        format_duration(queued),
        line.site,
        _connection_text(line),
        line.reply,
    )
