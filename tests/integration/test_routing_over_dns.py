"""Where mail goes by what a name server answers, well or badly: a table of cases.

The name server is `support.dns_server`, on loopback; no other one is asked.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import pytest

from postroad.adapters.dns import DnsResolver, NameServer
from postroad.domain.mail.mail import domain_of
from postroad.domain.values.networks import Networks
from postroad.routing.routes import AddressFamily, NoRoute, OwnNames, Route, RoutingPlan
from postroad.routing.tables import RouteRequest, RoutingTable
from postroad.worker.route_finder import RouteFinder
from support.dns_server import DnsServer, running
from support.memory.clock import SeededRandomness

OWN = OwnNames(frozenset({"ours"}), Networks.of(["198.51.100.0/24"]))
PLAN = RoutingPlan(RoutingTable(), OWN, Networks.of(["10.0.0.0/8"]))
IPV4_ONLY = RoutingPlan(RoutingTable(), OWN, families=(AddressFamily.IPV4,))

HOSTS = """
    mx1  A     192.0.2.1
    mx2  A     192.0.2.2
    mx2  AAAA  2001:db8::2
    mx3  A     192.0.2.3
    six  AAAA  2001:db8::6
    bare A     192.0.2.80
    alias CNAME mx1
    ours A     198.51.100.1
    nat  A     198.51.100.7
    loopback A 127.0.0.1
    mapped AAAA ::ffff:127.0.0.1
    many A 239.1.2.3
    pod  A     10.1.2.3
    nodata TXT "no address"
    down !SERVFAIL
"""
"""What the hosts of the cases are; a case adds its domain."""

PLENTY = "\n".join(f"d MX 10 h{n}\nh{n} A 192.0.2.9" for n in range(120))
LARGE = "\n".join(f"d MX {n} a-rather-long-name-of-a-mail-exchanger-{n}" for n in range(60))


class Case(NamedTuple):
    """The expected tiers as `host=address,address`, tiers divided by ` | `; or how the reply begins
    and the outcome."""

    name: str
    source: str
    script: str
    expected: str
    address: str = "a@d"
    plan: RoutingPlan = PLAN
    seconds: float = 10.0
    """For a question; little where an answer never comes."""


ROUTING = "RFC 5321 5.1"
MX1 = "mx1=192.0.2.1"
MX2 = "mx2=192.0.2.2,2001:db8::2"
MX3 = "mx3=192.0.2.3"
NO_ANSWER = "deferred 451 4.4.3"
NO_SERVER = "failed 550 5.4.4"
NO_DOMAIN = "failed 550 5.1.2"
LOOP = "failed 554 5.4.6"
SOON = 0.3

CASES = [
    Case("one", ROUTING, "d MX 10 mx1", MX1),
    Case(
        "by preference",
        ROUTING,
        "d MX 20 mx1; d MX 5 mx2; d MX 300 mx3",
        f"{MX2} | {MX1} | {MX3}",
    ),
    Case(
        "equal preference",
        ROUTING,
        "d MX 10 mx1; d MX 10 mx2",
        f"{MX1} {MX2}",
    ),
    Case(
        "named twice",
        ROUTING,
        "d MX 10 mx1; d MX 5 mx1; d MX 7 mx3",
        f"{MX1} | {MX3}",
    ),
    Case("implicit", ROUTING, "", "bare=192.0.2.80", "a@bare"),
    Case("implicit, IPv6 only", "RFC 5321 5.1; RFC 3974", "", "six=2001:db8::6", "a@six"),
    Case("implicit, no address", ROUTING, "", NO_SERVER, "a@nodata"),
    Case("no fallback beside MX", ROUTING, "d MX 10 gone; d A 192.0.2.5", NO_SERVER),
    Case("no such domain", "RFC 5321 5.1; RFC 3463 3.2", "", NO_DOMAIN, "a@gone"),
    Case("null MX", "RFC 7505 4.1", "d MX 0 .; d A 192.0.2.5", "failed 556 5.1.10"),
    Case("null MX, other preference", "RFC 7505 3", "d MX 10 .", "failed 556 5.1.10"),
    Case("null MX beside others", "RFC 7505 3", "d MX 0 .; d MX 10 mx1", MX1),
    Case("MX to an address", "RFC 1035 3.3.9", "d MX 10 192.0.2.1", NO_SERVER),
    Case("MX to an address and a host", "RFC 1035 3.3.9", "d MX 5 192.0.2.1; d MX 10 mx1", MX1),
    Case("MX to an alias", "RFC 2181 10.3", "d MX 10 alias", "alias=192.0.2.1"),
    Case("MX to AAAA only", "RFC 5321 5.1; RFC 3974", "d MX 10 six", "six=2001:db8::6"),
    Case("IPv6 not used", ROUTING, "d MX 10 six", NO_SERVER, plan=IPV4_ONLY),
    Case("both families, one used", ROUTING, "d MX 10 mx2", "mx2=192.0.2.2", plan=IPV4_ONLY),
    Case("domain is an alias", ROUTING, "d CNAME e; e MX 10 mx1", MX1),
    Case(
        "chain of aliases",
        "RFC 1034 3.6.2",
        "; ".join(f"c{n} CNAME c{n + 1}" for n in range(6)) + "; d CNAME c0; c6 MX 10 mx1",
        MX1,
    ),
    Case("alias to nowhere", "RFC 6604 2", "d CNAME gone", NO_DOMAIN),
    Case("loop of aliases", "RFC 1034 3.6.2", "d CNAME e; e CNAME d", NO_ANSWER),
    Case(
        "aliases left to the client", "RFC 1034 4.3.1", "d CNAME e; e MX 10 mx1; d !CNAME-ONLY", MX1
    ),
    Case("one host without address", ROUTING, "d MX 5 gone; d MX 10 mx1", MX1),
    Case("SERVFAIL", ROUTING, "d !SERVFAIL", NO_ANSWER),
    Case("REFUSED", ROUTING, "d !REFUSED", NO_ANSWER),
    Case("no answer", ROUTING, "d !SILENT", NO_ANSWER, seconds=SOON),
    Case("no message", ROUTING, "d !GARBAGE", NO_ANSWER, seconds=SOON),
    Case("referral", "RFC 2308 2.2; RFC 1034 4.3.1", "d !REFERRAL", NO_ANSWER),
    Case("server that knows nothing", "RFC 1034 4.3.1", "d !IGNORANT", NO_ANSWER),
    Case("truncated", "RFC 7766 5", "d MX 10 mx1; d !TRUNCATED", MX1),
    Case(
        "truncated, no TCP", "RFC 7766 5", "d MX 10 mx1; d !TRUNCATED-ONLY", NO_ANSWER, seconds=SOON
    ),
    Case(
        "large answer",
        "RFC 6891 6.2.5",
        LARGE + "; a-rather-long-name-of-a-mail-exchanger-3 A 192.0.2.9",
        "a-rather-long-name-of-a-mail-exchanger-3=192.0.2.9",
    ),
    Case("no message over TCP", "RFC 7766 5", "d MX 10 mx1; d !TRUNCATED-GARBAGE", NO_ANSWER),
    Case("without EDNS", "RFC 6891 7", "d MX 10 mx1; d !NO-EDNS", MX1),
    Case("forged id first", "RFC 5452 9.1", "d MX 10 mx1; d !FORGED-FIRST", MX1),
    Case("other question first", "RFC 5452 9.1", "d MX 10 mx1; d !WRONG-QUESTION", MX1),
    Case("other case", "RFC 4343 3", "d MX 10 mx1; d !OTHER-CASE; mx1 !OTHER-CASE", MX1),
    Case("one host fails", ROUTING, "d MX 5 down; d MX 10 mx1", MX1),
    Case("every host fails", ROUTING, "d MX 5 down; d MX 10 gone", NO_ANSWER),
    Case("one family fails", ROUTING, "d MX 10 mx1; mx1 AAAA !SERVFAIL", MX1),
    Case("no IPv4, IPv6 fails", ROUTING, "d MX 10 e; e TXT x; e AAAA !SERVFAIL", NO_ANSWER),
    Case("own name", ROUTING, "d MX 10 mx1; d MX 20 ours; d MX 20 mx2; d MX 30 mx3", MX1),
    Case("own name is the best", ROUTING, "d MX 10 ours; d MX 20 mx1", LOOP),
    Case("own address", ROUTING, "d MX 10 mx1; d MX 20 nat; d MX 30 mx3", MX1),
    Case("own address is the best", ROUTING, "d MX 10 nat; d MX 10 mx1", LOOP),
    Case("better host than own fails", ROUTING, "d MX 10 down; d MX 20 nat", NO_ANSWER),
    Case("own address in a huge set", ROUTING, PLENTY + "; d MX 5 nat", LOOP),
    Case("loopback", "RFC 5321 5.1; RFC 1122 3.2.1.3", "d MX 10 loopback", LOOP),
    Case("loopback, mapped", "RFC 4291 2.5.5.2", "d MX 10 mapped", LOOP),
    Case("multicast", "RFC 5771", "d MX 10 many; d MX 20 mx1", MX1),
    Case("skipped network", ROUTING, "d MX 10 pod", NO_SERVER),
    Case("huge set", ROUTING, PLENTY, "20 hosts"),
    Case("literal", "RFC 5321 4.1.3", "", "192.0.2.1=192.0.2.1", "a@[192.0.2.1]"),
    Case("literal, IPv6", "RFC 5321 4.1.3", "", "2001:db8::1=2001:db8::1", "a@[IPv6:2001:db8::1]"),
    Case("literal of neither", "RFC 5321 4.1.3", "", NO_DOMAIN, "a@[300.1.1.1]"),
    Case("own literal", ROUTING, "", LOOP, "a@[198.51.100.7]"),
    Case("address without brackets", "RFC 5321 4.1.3", "", NO_DOMAIN, "a@192.0.2.1"),
    Case("U-labels", "RFC 5891 5", "xn--bcher-kva MX 10 mx1", MX1, "a@Bücher"),
    Case("A-labels", "RFC 5891 5.3", "xn--bcher-kva MX 10 mx1", MX1, "a@XN--Bcher-kva"),
    Case("ideographic full stop", "RFC 5895 2", "xn--bcher-kva.d MX 10 mx1", MX1, "a@bücher。d"),
    Case("no U-label", "RFC 5891 4.2", "", NO_DOMAIN, "a@☃-"),
    Case("label of 64 octets", "RFC 5891 4.4", "", NO_DOMAIN, f"a@{'l' * 64}.d"),
    Case("domain of 254 octets", "RFC 1035 2.3.4", "", NO_DOMAIN, f"a@{'abcdefg.' * 31}toolong"),
    Case("postmaster without a domain", "RFC 5321 4.5.1", "", "deferred 451 4.3.5", "postmaster"),
]


def summary(found: Route | NoRoute) -> str:
    """Return a result as `Case.expected` has it."""
    if isinstance(found, NoRoute):
        return f"{found.outcome.kind} {' '.join(found.outcome.text.split()[:2])}"
    tiers = [
        " ".join(sorted(f"{hop.next_hop.host}={','.join(hop.addresses)}" for hop in tier))
        for tier in found.tiers
    ]
    hosts = [hop for tier in found.tiers for hop in tier]
    return f"{len(hosts)} hosts" if len(hosts) > 10 else " | ".join(tiers)


async def routed(server: DnsServer, case: Case) -> Route | NoRoute:
    resolver = DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=case.seconds))
    router = RouteFinder(case.plan, resolver, SeededRandomness())
    return await router.route(RouteRequest(domain_of(case.address)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_route_is_what_dns_answers(case: Case) -> None:
    async with running(DnsServer(HOSTS + case.script)) as server:
        found = await routed(server, case)

        assert summary(found) == case.expected, case.source
        assert found.explanations, "each result is explained"


async def test_a_huge_set_of_mx_records_costs_few_questions() -> None:
    case = next(each for each in CASES if each.name == "huge set")
    async with running(DnsServer(HOSTS + case.script)) as server:
        await routed(server, case)

        assert len(server.received) <= 2 + 2 * 20


async def test_names_are_absolute_whatever_the_search_domains_are() -> None:
    async with running(DnsServer("d MX 10 mx1\nmx1 A 192.0.2.1")) as server:
        await routed(server, Case("", "RFC 1034 3.1", "", "", "a@d"))
        await routed(server, Case("", "RFC 1034 3.1", "", "", "a@gone"))

        assert {each.name for each in server.received} == {"d", "mx1", "gone"}


async def test_a_truncated_answer_is_asked_for_again_over_tcp() -> None:
    script = "d MX 10 mx1\nd !TRUNCATED"
    async with running(DnsServer(HOSTS + script)) as server:
        await routed(server, Case("", "RFC 7766 5", "", ""))

        transports = [each.transport for each in server.received if each.name == "d"]
        assert transports == ["UDP", "TCP"]


async def test_two_servers_of_which_one_is_silent_are_one_that_answers() -> None:
    """The next question begins with the server that answered."""
    async with (
        running(DnsServer("d !SILENT\ne !SILENT")) as silent,
        running(DnsServer("d MX 10 e\ne A 192.0.2.1")) as good,
    ):
        servers = [NameServer("127.0.0.1", each.port) for each in (silent, good)]
        router = RouteFinder(PLAN, DnsResolver(servers, timedelta(seconds=2)), SeededRandomness())

        found = await router.route(RouteRequest("d"))

        assert summary(found) == "e=192.0.2.1"
        assert [each.name for each in silent.received] == ["d"]


async def test_a_server_that_is_lame_does_not_hide_one_that_knows() -> None:
    async with (
        running(DnsServer("d !REFERRAL\nmx1 !IGNORANT")) as lame,
        running(DnsServer(HOSTS + "d MX 10 mx1")) as good,
    ):
        servers = [NameServer("127.0.0.1", each.port) for each in (lame, good)]
        router = RouteFinder(PLAN, DnsResolver(servers, timedelta(seconds=10)), SeededRandomness())

        found = await router.route(RouteRequest("d"))

        assert summary(found) == MX1
        assert lame.received
