"""`postroad reroute`: lets the mail of a site or a domain go elsewhere for a time."""

from datetime import timedelta

import click

from postroad.adapters.clocks import MachineClock
from postroad.administration import rerouting
from postroad.administration.rerouting import Target, end_reroute
from postroad.administration.sites import site_name
from postroad.bootstrap import shared_state_of
from postroad.cli.options import DURATION, with_queue
from postroad.domain.delivery.sites import READ_EVERY, RerouteOf
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.next_hops import TlsMode
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.ports.mail_queue import MailQueue


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
