"""`postroad suppression`: the addresses that a queue does not mail, by tenant."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, TextIO

import click

from postroad.adapters.clocks import MachineClock
from postroad.administration.suppression import (
    BY_HAND,
    checked_tenant,
    keeps_hashes,
    readmit,
    suppress,
)
from postroad.bootstrap import suppression_list_of
from postroad.cli.options import DURATION, json_option, with_queue
from postroad.cli.tables import TextTable
from postroad.domain.delivery.attempts import checked_reason
from postroad.domain.delivery.suppressed import (
    SuppressedAddress,
    read_line,
)
from postroad.domain.values.instants import rfc3339
from postroad.domain.values.text import json_line
from postroad.errors import InvalidInput
from postroad.ports.delivery import SuppressionList
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment

TOGETHER = 50_000
"""Addresses of one write, and in memory, where they take some 30 MB. Hashes lie all over the file
of a directory, so that each write changes most of it, twice: with its journal."""

MAX_LINE = 4096


def _checked_tenant(_context: click.Context, _option: click.Parameter, tenant: str) -> str:
    return checked_tenant(tenant)


tenant_option = click.option(
    "--tenant",
    default="",
    callback=_checked_tenant,
    help="Whose list; without it, that of mail without a tenant.",
)
for_option = click.option(
    "--for", "lifetime", type=DURATION, help="For how long, such as 720h; without it, for good."
)
reason_option = click.option("--reason", default=BY_HAND, help="Why; stands in reports to senders.")


def _kept(command: Callable[..., Any]) -> Callable[..., Any]:
    @click.option(
        "--hashed/--plain",
        "is_hashed",
        default=None,
        help="Keep the SHA-256 of an address alone, or itself; by default as the file of delivery "
        "(POSTROAD_WORKER_DELIVERY_FILE) has it, else plain.",
    )
    @wraps(command)
    def run(is_hashed: bool | None, **options: Any) -> Any:
        hashed = (
            keeps_hashes(from_environment().worker.delivery_file)
            if is_hashed is None
            else is_hashed
        )
        return command(is_hashed=hashed, **options)

    return run


@click.group()
def suppression() -> None:
    """Addresses that are not mailed, by tenant.

    Workers look at the list where the file of delivery has `suppression`. Addresses are compared
    without regard to case."""


@suppression.command()
@_kept
@with_queue
@tenant_option
@reason_option
@for_option
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
async def add(
    queue: MailQueue,
    tenant: str,
    reason: str,
    lifetime: timedelta | None,
    addresses: tuple[str, ...],
    is_hashed: bool,
) -> None:
    """Put addresses on the list."""
    count = await suppress(
        suppression_list_of(queue),
        tenant,
        addresses,
        reason,
        MachineClock().now(),
        lifetime=lifetime,
        is_hashed=is_hashed,
    )
    _say_count("suppressed", count)


@suppression.command()
@with_queue
@tenant_option
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
async def remove(queue: MailQueue, tenant: str, addresses: tuple[str, ...]) -> None:
    """Take addresses off the list; where it has hashes, `sha256:…` does, too."""
    count, missing = await readmit(suppression_list_of(queue), tenant, addresses)
    if missing:
        raise InvalidInput(
            f"{', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''} not on the list"
            f" of {_named(tenant)}",
            hint="the others are off it now" if count else "name the tenant by --tenant",
        )
    _say_count("no more suppressed", count)


@suppression.command("list")
@with_queue
@tenant_option
@json_option
async def list_(queue: MailQueue, tenant: str, as_json: bool) -> None:
    """Print the list, in no order that means anything."""
    with TextTable(
        "ADDED", "ADDRESS", "BY", "REFUSALS", "UNTIL", "REASON", as_json=as_json
    ) as table:
        async for each in suppression_list_of(queue).entries(tenant):
            printed = each.printed()
            refusals = f"{each.count or ''}{', mailed yet' if each.is_pending else ''}"
            cells = (each.name, str(each.by), refusals, rfc3339(each.expires_at) or "")
            table.add(printed, str(printed["added_at"]), *cells, each.reason)


@suppression.command("import")
@_kept
@with_queue
@tenant_option
@reason_option
@click.argument("file", type=click.File("r", encoding="utf-8", errors="replace"))
async def import_(
    queue: MailQueue, tenant: str, reason: str, file: TextIO, is_hashed: bool
) -> None:
    """Put the addresses of a FILE (-: standard input) on the list: one a line, or what `export`
    printed; empty lines and those with # are passed over.

    A wrong line ends it; the lines before are on the list then, and may be imported again."""
    at, why = MachineClock().now(), checked_reason(reason)
    kept, total = suppression_list_of(queue), 0
    portion: list[SuppressedAddress] = []
    wrong: InvalidInput | None = None
    try:
        for entry in _entries(file, why, at, is_hashed=is_hashed):
            portion.append(entry)
            if len(portion) >= TOGETHER:
                total += await _put(kept, tenant, portion)
    except InvalidInput as error:
        wrong = error
    total += await _put(kept, tenant, portion)
    _say_count("suppressed", total)
    if wrong is not None:
        raise wrong


def _entries(
    file: TextIO, reason: str, at: datetime, *, is_hashed: bool
) -> Iterable[SuppressedAddress]:
    """Yield the entries of a file, line by line. Raises: InvalidInput, which names the line."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        try:
            if len(line) == MAX_LINE:
                raise InvalidInput(f"it has more than {MAX_LINE} characters")
            found = read_line(line, reason, at, is_hashed=is_hashed)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}") from error
        if found is not None:
            yield found


async def _put(kept: SuppressionList, tenant: str, portion: list[SuppressedAddress]) -> int:
    count = len(portion)
    if portion:
        await kept.add(tenant, portion)
        portion.clear()
    return count


@suppression.command()
@with_queue
@tenant_option
async def export(queue: MailQueue, tenant: str) -> None:
    """Print the list as `import` reads it: one JSON object a line."""
    async for each in suppression_list_of(queue).entries(tenant):
        click.echo(json_line(each.printed()))


def _say_count(verb: str, count: int) -> None:
    click.echo(f"{verb}: {count} address{'' if count == 1 else 'es'}")


def _named(tenant: str) -> str:
    return f"the tenant {tenant}" if tenant else "mail without a tenant"
