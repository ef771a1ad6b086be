"""`postroad reroute`: lets the mail of a site or a domain go elsewhere for a time."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import click
from pydantic import ValidationError

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap import shared_state_of
from postroad.cli.options import DURATION, with_queue
from postroad.cli.sites.sites import known_sites, site_name
from postroad.delivery_settings.hops import HopTls, TieredHop
from postroad.domain.delivery.attempts import checked_reason
from postroad.domain.delivery.sites import (
    MAX_REROUTES,
    MAX_SUSPENSION,
    Reroute,
    RerouteOf,
    has_no_rule,
    has_program,
    is_rule_name,
    key_of,
    reroutes_in,
)
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.next_hops import NextHop, TlsMode, parse_host_port
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.errors import InvalidInput
from postroad.ports.delivery import SharedState, Topic
from postroad.ports.mail_queue import MailQueue
from postroad.worker.sites.control import READ_EVERY


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
    shared_state = shared_state_of(queue)
    if end:
        if target or tls or duration or reason:
            raise click.UsageError("--end stands beside --site or --domain alone")
        await _end(shared_state, of, name)
        return
    if target is None or duration is None or reason is None:
        raise click.UsageError("give --to, --for and --reason, or --end")
    if not timedelta(seconds=1) <= duration <= MAX_SUSPENSION:
        raise InvalidInput(
            f"mail is rerouted for 1s to {format_duration(MAX_SUSPENSION)}: repeat the command"
            " before that is over"
        )
    until = MachineClock().now() + duration
    made = _reroute(of, name, target, tls, until, checked_reason(reason))
    await _check_room(shared_state, made)
    workers = await shared_state.published(Topic.WORKERS)
    _check_programs(workers)
    if made.rule is not None:
        _check_rule(workers, made.rule)
    await shared_state.publish(Topic.REROUTES, made.key, made.text(), duration)
    click.echo(f"mail for the {of} {name} goes to {made.target} until {rfc3339(until)}")
    if of is RerouteOf.SITE and name not in await known_sites(shared_state):
        click.echo(
            "no worker shows a site of this name: compare it with `postroad sites`", err=True
        )


def _named(site: str | None, domain: str | None) -> tuple[RerouteOf, str]:
    """Raises: InvalidInput; click.UsageError."""
    if (site is None) == (domain is None):
        raise click.UsageError("give either --site or --domain")
    if domain is not None:
        return RerouteOf.DOMAIN, ascii_domain(domain)
    assert site is not None
    return RerouteOf.SITE, site_name(site)


def _reroute(
    of: RerouteOf, name: str, target: str, tls: str | None, until: datetime, reason: str
) -> Reroute:
    """Raises: InvalidInput."""
    if is_rule_name(target):
        if tls is not None:
            raise InvalidInput(
                f"the rule {target} has TLS of its own", hint="leave --tls out, or name HOST:PORT"
            )
        return Reroute(of, name, until, reason, rule=target)
    return Reroute(of, name, until, reason, hop=_hop(target, TlsMode(tls or TlsMode.OPPORTUNISTIC)))


def _hop(target: str, tls: TlsMode) -> NextHop:
    """Return a server, as the schema of routing has it. Raises: InvalidInput."""
    host, port = parse_host_port(target, tls.default_port)
    try:
        return TieredHop(host=host, port=port, tls=HopTls(mode=tls)).smart_host().next_hop
    except ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"mail cannot go to {target}: {text}") from error


async def _check_room(shared_state: SharedState, made: Reroute) -> None:
    """Raises: InvalidInput, ServerError."""
    entries = await shared_state.published(Topic.REROUTES)
    if made.key not in entries and len(entries) >= MAX_REROUTES:
        raise InvalidInput(
            f"{MAX_REROUTES} sites and domains are rerouted already",
            hint="end some with --end, or write a rule into the routes",
        )


def _check_programs(workers: Mapping[str, str]) -> None:
    """Raises: InvalidInput where no worker obeys reroutes."""
    if workers and all(map(has_program, workers.values())):
        raise InvalidInput(
            "the workers of this queue hand all mail to a program, which obeys no reroute",
            hint="suspend the site with `postroad suspend`, or give the queue another handler",
        )


def _check_rule(workers: Mapping[str, str], rule: str) -> None:
    """Raises: InvalidInput where no worker has a rule of this name."""
    if workers and all(has_no_rule(rule, text) for text in workers.values()):
        raise InvalidInput(
            f"no worker has a rule {rule}",
            hint="name a rule of the routes that they use, or a server as HOST:PORT",
        )
    if not workers:
        click.echo(f"no worker runs that shows whether there is a rule {rule}", err=True)


async def _end(shared_state: SharedState, of: RerouteOf, name: str) -> None:
    """Raises: InvalidInput, ServerError."""
    key = key_of(of, name)
    held = reroutes_in(await shared_state.published(Topic.REROUTES), MachineClock().now())
    await shared_state.take_down(Topic.REROUTES, key)
    if key not in {each.key for each in held}:
        raise InvalidInput(
            f"the {of} {name} is not rerouted", hint="`postroad sites` shows what is"
        )
    click.echo(f"mail for the {of} {name} goes by its route within {format_duration(READ_EVERY)}")
