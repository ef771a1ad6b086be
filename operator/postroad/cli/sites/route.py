"""Commands that need no mail: `postroad route`, where mail for an address goes, and why; `signing`,
what has to be in DNS for the keys that sign; `bounce`, what refusals are counted as."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import open_queue, shared_state_of
from postroad.bootstrap.delivery_file import selected_keys
from postroad.bootstrap.transports import open_resolver, open_sts
from postroad.cli.options import ParsedType, json_option, say
from postroad.delivery_settings.files import read_delivery
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.delivery.sites import RerouteTable, reroutes_in
from postroad.domain.error_codes import FAILED, TRY_AGAIN
from postroad.domain.mail.mail import OutcomeKind, check_address, domain_of
from postroad.domain.smtp.bounces import BounceRule, decided
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput
from postroad.ports.delivery import Topic
from postroad.routing.routes import NoRoute, Route
from postroad.routing.tables import NULL_SENDER, RouteRequest
from postroad.settings import from_environment
from postroad.worker.route_finder import RouteFinder

_EXIT_CODES = {OutcomeKind.FAILED: FAILED, OutcomeKind.DEFERRED: TRY_AGAIN}


def _address_or_domain(text: str) -> str:
    """Return a mailbox, a domain, or `postmaster`. Raises: InvalidMail."""
    check_address(text if "@" in text else f"postmaster@{text}")
    return text


ADDRESS = ParsedType("address", _address_or_domain)


@click.command()
@click.argument("addresses", metavar="ADDRESS...", type=ADDRESS, nargs=-1, required=True)
@click.option(
    "--delivery",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A file of delivery (YAML), whose section `routing` decides; without it, MX records do.",
)
@click.option("--sender", default=NULL_SENDER, help="The reverse-path; without it, the null one.")
@click.option("--tenant", help="The tenant whose mail it is.")
@click.option("--queue", "url", metavar="URL", help="A queue, whose reroutes count, too.")
@json_option
def route(
    addresses: tuple[str, ...],
    delivery: Path | None,
    sender: str,
    tenant: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Print the next hops of mail for an ADDRESS (or a domain), and why.

    Asks DNS (and the web server of a domain, for its MTA-STS policy, where a rule
    honours them), and connects to no next hop. Exit code 0: there is a route for each address; 1:
    mail for one fails; 75: none fails, one is deferred."""
    routing = RoutingSettings() if delivery is None else _routing_in(delivery)
    reverse_path = None if sender in ("", NULL_SENDER) else sender
    requests = [RouteRequest(_domain_in(each), reverse_path, tenant) for each in addresses]
    found = asyncio.run(_routes(routing, requests, url))
    for address, each in zip(addresses, found, strict=True):
        say(printed_route(address, each), as_json=as_json, text=route_text(address, each))
    codes = {_EXIT_CODES[each.outcome.kind] for each in found if isinstance(each, NoRoute)}
    if codes:
        sys.exit(min(codes))


def _routing_in(delivery: Path) -> RoutingSettings:
    """Raises: InvalidInput, InvalidSettings."""
    routing = read_delivery(delivery).routes()
    if routing is None:
        raise InvalidInput(f"{delivery} has no section routing, so all its mail goes to the relay")
    return routing


async def _routes(
    routing: RoutingSettings, requests: Sequence[RouteRequest], url: str | None
) -> list[Route | NoRoute]:
    table = RerouteTable() if url is None else await _reroutes_of(url)
    resolver, plan, sts = open_resolver(routing.resolver), routing.plan(), None
    if routing.honours_sts:
        sts = open_sts(routing.sts, resolver, plan.may_reach, from_environment().ca_file)
    router = RouteFinder(plan, resolver, SystemRandomness(), sts, lambda: table)
    return [await router.route(each) for each in requests]


async def _reroutes_of(url: str) -> RerouteTable:
    async with open_queue(url) as queue:
        entries = await shared_state_of(queue).published(Topic.REROUTES)
    return RerouteTable.of(reroutes_in(entries, MachineClock().now()))


def _domain_in(text: str) -> str:
    return domain_of(text) if "@" in text or text.lower() == "postmaster" else text.lower()


def printed_route(address: str, found: Route | NoRoute) -> Mapping[str, object]:
    ttl = None if found.ttl is None else round(found.ttl.total_seconds())
    explanations = [{"subject": each.subject, "text": each.text} for each in found.explanations]
    if isinstance(found, NoRoute):
        outcome = {"outcome": found.outcome.kind, "reply": found.outcome.text}
        return {"address": address, **outcome, "ttl_seconds": ttl, "explanations": explanations}
    hops = [
        {
            "tier": number,
            "host": each.next_hop.host,
            "port": each.next_hop.port,
            "socket": each.next_hop.socket and str(each.next_hop.socket),
            "protocol": each.next_hop.protocol,
            "tls": each.next_hop.tls,
            "by_tlsa": each.next_hop.by_tlsa,
            "addresses": list(each.addresses),
        }
        for number, tier in enumerate(found.tiers, 1)
        for each in tier
    ]
    return {
        "address": address,
        "outcome": "route",
        "site": found.site.name,
        "next_hops": hops,
        "ttl_seconds": ttl,
        "explanations": explanations,
    }


def route_text(address: str, found: Route | NoRoute) -> str:
    if isinstance(found, NoRoute):
        lines = [f"{address}: {found.outcome.kind}: {found.outcome.text}"]
    else:
        lines = [f"{address}: site {found.site.name}{_kept(found.ttl)}"]
        lines += [
            f"  {number}  {each.next_hop}  {', '.join(each.addresses)}"
            f"  ({each.next_hop.protocol}, tls {each.next_hop.tls}"
            f"{' by TLSA' if each.next_hop.by_tlsa else ''})"
            for number, tier in enumerate(found.tiers, 1)
            for each in tier
        ]
    lines += ["  because"]
    lines += [f"    {each.subject}: {each.text}" for each in found.explanations]
    return "\n".join(lines)


def _kept(ttl: timedelta | None) -> str:
    return "" if ttl is None else f", for {format_duration(ttl)}"


_MAX_STRING = 255
"""Octets of one string of a TXT record. Source: RFC 1035 3.3.14."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@json_option
def signing(file: Path, as_json: bool) -> None:
    """Check the keys of a FILE of delivery, and print the TXT records for DNS.

    In the form of zone files. Asks no name server."""
    for name, key in selected_keys(file):
        kind, public = key.public
        record = f"v=DKIM1; k={kind}; p={public}"
        printed = {"name": name, "algorithm": key.algorithm, "bits": key.bits, "record": record}
        say(printed, as_json=as_json, text=_line(name, record))


def _line(name: str, record: str) -> str:
    pieces = range(0, len(record), _MAX_STRING)
    strings = " ".join(f'"{record[at : at + _MAX_STRING]}"' for at in pieces)
    return f"{name}. TXT ( {strings} )"


@click.group()
def bounce() -> None:
    """Classes of refusals of next hops."""


@bounce.command()
@click.option(
    "--rules",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A file of delivery, whose `bounceRules` come first; by default that of"
    " POSTROAD_WORKER_DELIVERY_FILE, if there is one.",
)
@json_option
@click.argument("text", nargs=-1)
def classify(file: Path | None, as_json: bool, text: tuple[str, ...]) -> None:
    """Print the class of a refusal, and the row and the source that decided.

    TEXT is the reply of a next hop with its codes; without it, or as -, each line of the standard
    input is one."""
    found = from_environment().worker.delivery_file if file is None else file
    own = () if found is None else read_delivery(found).bounce_rules
    if text and text != ("-",):
        _print(" ".join(text), own, as_json=as_json)
        return
    lines = [each.strip() for each in sys.stdin]
    if not any(lines):
        raise InvalidInput("there is no reply to classify", hint="write it, or put it on stdin")
    for line in filter(None, lines):
        _print(line, own, as_json=as_json)


def _print(text: str, own: tuple[BounceRule, ...], *, as_json: bool) -> None:
    counted, rule = decided(text, own=own)
    printed = {
        "text": text,
        "code": counted.code,
        "class": counted.reason.value,
        "words": counted.words,
        "row": None if rule is None else rule.evidence(text),
        "own": rule in own,
        "source": None if rule is None else rule.source,
    }
    lines = [counted.reason.value, f"  words   {counted.words}"]
    if rule is None:
        lines.append("  no row fits")
    else:
        row = f"  {'own row' if rule in own else 'row':<7} {' with '.join(rule.evidence(text))}"
        lines += (row, f"  source  {rule.source}")
    say(printed, as_json=as_json, text="\n".join(lines))
