"""Reroutes: the mail of a site or a domain goes elsewhere for a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from postroad.administration.sites import known_sites
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
from postroad.domain.smtp.next_hops import NextHop, TlsMode, parse_host_port
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput
from postroad.ports.delivery import SharedState, Topic


@dataclass(frozen=True, slots=True)
class Target:
    """Route that mail takes instead: the name of a rule of the routes, or a server as HOST:PORT,
    with how the connection to it is secured (opportunistic by default)."""

    name: str
    tls: str | None = None


async def reroute(
    shared_state: SharedState,
    now: datetime,
    of: RerouteOf,
    name: str,
    target: Target,
    duration: timedelta,
    reason: str,
) -> tuple[Reroute, tuple[str, ...]]:
    """Let the mail of a site or a domain go elsewhere. Return the reroute, and what is to be known
    about it. Raises: InvalidInput, ServerError."""
    if not timedelta(seconds=1) <= duration <= MAX_SUSPENSION:
        raise InvalidInput(
            f"mail is rerouted for 1s to {format_duration(MAX_SUSPENSION)}: repeat the command"
            " before that is over"
        )
    made = _reroute(of, name, target, now + duration, checked_reason(reason))
    await _check_room(shared_state, made)
    workers = await shared_state.published(Topic.WORKERS)
    _check_programs(workers)
    if made.rule is not None:
        _check_rule(workers, made.rule)
    await shared_state.publish(Topic.REROUTES, made.key, made.text(), duration)
    problems = []
    if made.rule is not None and not workers:
        problems.append(f"no worker runs that shows whether there is a rule {made.rule}")
    if of is RerouteOf.SITE and name not in await known_sites(shared_state):
        problems.append("no worker shows a site of this name: compare it with `postroad sites`")
    return made, tuple(problems)


async def end_reroute(shared_state: SharedState, now: datetime, of: RerouteOf, name: str) -> None:
    """End a reroute before its time. Raises: InvalidInput where there is none, ServerError."""
    key = key_of(of, name)
    held = reroutes_in(await shared_state.published(Topic.REROUTES), now)
    await shared_state.take_down(Topic.REROUTES, key)
    if key not in {each.key for each in held}:
        raise InvalidInput(
            f"the {of} {name} is not rerouted", hint="`postroad sites` shows what is"
        )


def _reroute(of: RerouteOf, name: str, target: Target, until: datetime, reason: str) -> Reroute:
    """Raises: InvalidInput."""
    if is_rule_name(target.name):
        if target.tls is not None:
            raise InvalidInput(
                f"the rule {target.name} has TLS of its own",
                hint="leave --tls out, or name HOST:PORT",
            )
        return Reroute(of, name, until, reason, rule=target.name)
    tls = TlsMode(target.tls or TlsMode.OPPORTUNISTIC)
    return Reroute(of, name, until, reason, hop=_hop(target.name, tls))


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
