"""`postroad sites`, `suspend`, `resume`, `reroute`: what workers know of the sites that get their
mail, which ones get none for a time, and whose mail goes elsewhere. `flush`: makes delayed mail due
now, also that of one site."""

from datetime import timedelta
from typing import Any

import click

from postroad.adapters.clocks import MachineClock
from postroad.administration import rerouting
from postroad.administration import sites as administration
from postroad.administration.rerouting import Target, end_reroute
from postroad.administration.sites import listed_sites, printed, site_name, try_site
from postroad.bootstrap import shared_state_of
from postroad.cli.mail.selected import change_by_spark
from postroad.cli.options import (
    DURATION,
    by_spark,
    json_option,
    on_purpose,
    say_count,
    selecting,
    with_queue,
)
from postroad.cli.tables import TextTable
from postroad.distributed.administration.administration import EntryChange
from postroad.domain.delivery.sites import (
    MAX_DEFERRAL,
    READ_EVERY,
    Reroute,
    RerouteOf,
    SiteView,
)
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.queues.selection import Selector
from postroad.domain.smtp.next_hops import TlsMode
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.ports.mail_queue import MailQueue, Operation


@click.command()
@with_queue
@json_option
async def sites(queue: MailQueue, as_json: bool) -> None:
    """List the sites that workers have mail for, those that are suspended, and what is rerouted.

    As of the last 15 seconds; a worker lists a hundred sites at most, those with the most to show.
    """
    found = await listed_sites(shared_state_of(queue), MachineClock().now())
    head = ("STATE", "OPEN", "WORKING", "WAITING", "SITE", "UNTIL", "WORKER", "ANSWER")
    with TextTable(*head, as_json=as_json) as table:
        for each in found.sites:
            table.add(each.printed(), *_cells(each.worker, each.view, each.reroute))
        for reroute in found.domains:
            value = {"worker": None, "site": None, "domain": reroute.name}
            cells = ("rerouted", "", "", "", f"domain {reroute.name}", "", "", _words(reroute))
            table.add({**value, "rerouted": printed(reroute)}, *cells)
    if not found.sites and not found.domains and not as_json:
        click.echo("no worker has shown a site within the last 15 seconds", err=True)
    if found.more and not as_json:
        click.echo(f"and {found.more} more sites with less to show")


@click.command()
@with_queue
@click.argument("site")
@click.option(
    "--for",
    "duration",
    type=DURATION,
    required=True,
    help="For how long, such as 2h; 720h at most.",
)
@click.option("--reason", required=True, help="Why; it is shown, also as the error of mail.")
async def suspend(queue: MailQueue, site: str, duration: timedelta, reason: str) -> None:
    """Send no mail to a SITE, as `postroad sites` and the attempt log name it.

    Workers obey within seconds. Mail that a connection has goes on; all other mail for the site
    waits, without an attempt."""
    now = MachineClock().now()
    made, is_known = await administration.suspend(
        shared_state_of(queue), now, site, duration, reason
    )
    click.echo(f"{site} gets no mail until {rfc3339(made.until)}")
    if not is_known:
        click.echo(
            "no worker shows a site of this name: compare it with `postroad sites`", err=True
        )


@click.command()
@with_queue
@click.argument("site")
async def resume(queue: MailQueue, site: str) -> None:
    """Send mail to a suspended SITE again.

    Mail that was deferred comes by itself within half an hour, or by `postroad flush` once workers
    have read it, which takes five seconds."""
    await administration.resume(shared_state_of(queue), MachineClock().now(), site)
    click.echo(
        f"{site} gets mail again within {format_duration(READ_EVERY)}; what was deferred comes"
        f" within {format_duration(MAX_DEFERRAL)}"
    )


def _words(reroute: Reroute) -> str:
    return f"rerouted to {reroute.target} until {rfc3339(reroute.until)}: {reroute.reason}"


def _cells(worker: str | None, view: SiteView, reroute: Reroute | None) -> tuple[str, ...]:
    answer = view.reason if view.reason is not None else view.reply or ""
    words = [each for each in (answer, _words(reroute) if reroute else "") if each]
    counts = map(str, (view.connections, view.at_work, view.waiting))
    return (view.state, *counts, view.site, view.until or "", worker or "", "; ".join(words))


@click.command()
@with_queue
@click.option("--site", help="A site, as `postroad sites` names it.")
@click.option("--domain", help="A domain, in place of a site.")
@click.option(
    "--to",
    "target",
    metavar="ROUTE",
    help="The name of a rule of the routes, or a server as HOST:PORT.",
)
@click.option(
    "--tls",
    type=click.Choice([str(each) for each in TlsMode]),
    help="How the connection to HOST:PORT is secured; opportunistic by default.",
)
@click.option("--for", "duration", type=DURATION, help="For how long, such as 2h; 720h at most.")
@click.option("--reason", help="Why; it is shown.")
@click.option("--end", is_flag=True, help="End it before its time.")
async def reroute(
    queue: MailQueue,
    site: str | None,
    domain: str | None,
    target: str | None,
    tls: str | None,
    duration: timedelta | None,
    reason: str | None,
    end: bool,
) -> None:
    """Let the mail of a site or a domain go elsewhere for a time.

    Workers obey within seconds. Mail that a connection has goes on; mail that waits for its next
    attempt comes by itself, or by `postroad flush`. It outlives restarts of workers."""
    of, name = _named(site, domain)
    shared_state, now = shared_state_of(queue), MachineClock().now()
    if end:
        if target or tls or duration or reason:
            raise click.UsageError("--end stands beside --site or --domain alone")
        await end_reroute(shared_state, now, of, name)
        within = format_duration(READ_EVERY)
        click.echo(f"mail for the {of} {name} goes by its route within {within}")
        return
    if target is None or duration is None or reason is None:
        raise click.UsageError("give --to, --for and --reason, or --end")
    made, problems = await rerouting.reroute(
        shared_state, now, of, name, Target(target, tls), duration, reason
    )
    click.echo(f"mail for the {of} {name} goes to {made.target} until {rfc3339(made.until)}")
    for each in problems:
        click.echo(each, err=True)


def _named(site: str | None, domain: str | None) -> tuple[RerouteOf, str]:
    """Raises: InvalidInput; click.UsageError."""
    if (site is None) == (domain is None):
        raise click.UsageError("give either --site or --domain")
    if domain is not None:
        return RerouteOf.DOMAIN, ascii_domain(domain)
    assert site is not None
    return RerouteOf.SITE, site_name(site)


def _by_spark(*, site: str | None, **options: Any) -> None:
    if site is not None:
        raise click.UsageError("--site goes without --spark")
    selecting(change_by_spark(EntryChange.FLUSH, Operation.FLUSH.past))(**options)


@click.command(Operation.FLUSH.value)
@by_spark(_by_spark)
@with_queue
@selecting
@click.option(
    "--site",
    help="The mail of one site, as `postroad sites` names it: workers try the site at once, as if "
    "it had never failed. Needs a worker that has had mail for it.",
)
@json_option
async def flush(queue: MailQueue, selector: Selector, site: str | None, as_json: bool) -> None:
    """Make the selected delayed mails due now."""
    if site is not None:
        if not selector.is_empty:
            raise click.UsageError("--site cannot be combined with other selectors")
        tried = await try_site(shared_state_of(queue), MachineClock(), site_name(site))
        for text in tried.problems:
            click.echo(text, err=True)
        selector = tried.selector
    counted = queue.flush(on_purpose(selector))
    await say_count(counted, as_json=as_json, verb=Operation.FLUSH.past)
