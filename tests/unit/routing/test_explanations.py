"""Each decision on the way to a route is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.domain.smtp.next_hops import NextHop
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.domain.values.networks import Networks
from postroad.routing.routes import OwnNames, RoutingPlan
from postroad.routing.tables import RouteRequest, RoutingTable, Rule, SmartHost
from postroad.worker.route_finder import RouteFinder
from support.memory.clock import SeededRandomness
from support.memory.connections import MemoryResolver

RULES = (
    Rule(
        "smart",
        DomainPatterns.of(["smart.example"]),
        tiers=(
            (SmartHost(NextHop("mx.example")),),
            (SmartHost(NextHop("null.example"), by_mx=True),),
            (SmartHost(NextHop("192.0.2.9")),),
            (SmartHost(NextHop.at_socket(Path("/run/lmtp"))),),
        ),
    ),
)
PLAN = RoutingPlan(
    RoutingTable(RULES),
    OwnNames(frozenset({"ours.example"}), Networks.of(["198.51.100.0/24"])),
    Networks.of(["10.0.0.0/8"]),
    postmaster_domain="plain.example",
)


def dns() -> MemoryResolver:
    made = MemoryResolver()
    made.add("mx.example", "192.0.2.1", "2001:db8::1")
    made.add("alias.example", cname="mx.example")
    made.add("nat.example", "198.51.100.7")
    made.add("mixed.example", "10.1.1.1", "192.0.2.3", "ff02::1")
    made.add("bare.example")
    made.add("plain.example", (10, "mx.example"))
    made.add("by-way.example", cname="plain.example")
    made.add("null.example", (0, ""))
    made.add("odd.example", (0, ""), (1, "192.0.2.1"), (2, "a b"), (3, "mx.example"))
    made.add("aliased.example", (10, "alias.example"))
    made.add("twice.example", (10, "mx.example"), (20, "nat.example"), (30, "mixed.example"))
    made.add("named.example", (10, "mx.example"), (20, "ours.example"))
    made.add("mixture.example", (10, "mixed.example"), (10, "down.example"))
    made.add("huge.example", *((n, f"h{n}.example") for n in range(23)))
    for number in range(23):
        made.add(f"h{number}.example", "192.0.2.4")
    made.fail("down.example", "SERVFAIL from 192.0.2.53")
    return made


MIXED = "192.0.2.3; not 10.1.1.1: its network is skipped; not ff02::1: no server can have it"
TABLE = ("table", "no rule matches: the domain decides")
MX = ("mx.example", "192.0.2.1, 2001:db8::1")


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ("plain.example", [TABLE, ("plain.example MX", "mx.example (10); for 1h"), MX]),
        (
            "",
            [
                ("postmaster", "has the domain plain.example"),
                TABLE,
                ("plain.example MX", "mx.example (10); for 1h"),
                MX,
            ],
        ),
        (
            "by-way.example",
            [
                TABLE,
                ("by-way.example MX", "mx.example (10); by way of plain.example; for 1h"),
                MX,
            ],
        ),
        ("null.example", [TABLE, ("null.example MX", "null: the domain accepts no mail")]),
        ("gone.example", [TABLE, ("gone.example MX", "the domain does not exist")]),
        ("down.example", [TABLE, ("down.example MX", "SERVFAIL from 192.0.2.53")]),
        (
            "bare.example",
            [
                TABLE,
                ("bare.example MX", "none: the domain is its own host"),
                ("bare.example", "no address"),
            ],
        ),
        (
            "odd.example",
            [
                TABLE,
                ("odd.example MX", "mx.example (3); for 1h"),
                (".", "a null MX beside other MX records means nothing (RFC 7505 3)"),
                ("192.0.2.1", "an MX record names a host, not an address (RFC 1035 3.3.9)"),
                ("a b", "this is not the name of a host"),
                MX,
            ],
        ),
        (
            "aliased.example",
            [
                TABLE,
                ("aliased.example MX", "alias.example (10); for 1h"),
                ("alias.example", "192.0.2.1, 2001:db8::1; by way of mx.example"),
            ],
        ),
        (
            "twice.example",
            [
                TABLE,
                (
                    "twice.example MX",
                    "mx.example (10), nat.example (20), mixed.example (30); for 1h",
                ),
                MX,
                ("nat.example", "is this server (198.51.100.7)"),
                (
                    "mixed.example",
                    MIXED,
                ),
                ("twice.example", "this server has preference 20: only lower ones are used"),
            ],
        ),
        (
            "named.example",
            [
                TABLE,
                ("named.example MX", "mx.example (10), ours.example (20); for 1h"),
                ("ours.example", "is this server, with preference 20: only lower ones are used"),
                MX,
            ],
        ),
        (
            "mixture.example",
            [
                TABLE,
                ("mixture.example MX", "down.example (10), mixed.example (10); for 1h"),
                (
                    "down.example",
                    "no address; A: SERVFAIL from 192.0.2.53; AAAA: SERVFAIL from 192.0.2.53",
                ),
                (
                    "mixed.example",
                    MIXED,
                ),
            ],
        ),
        (
            "smart.example",
            [
                ("table", "rule smart matches: domain smart.example"),
                MX,
                ("null.example MX", "null: the domain accepts no mail"),
                (
                    "null.example",
                    "not used: 556 5.1.10 the domain null.example accepts no mail (null MX)",
                ),
                ("192.0.2.9", "is an address"),
                ("unix:/run/lmtp", "is a socket"),
            ],
        ),
        ("[192.0.2.1]", [TABLE, ("[192.0.2.1]", "is an address literal")]),
        ("[10.0.0.1]", [TABLE, ("[10.0.0.1]", "not 10.0.0.1: its network is skipped")]),
        ("[x]", [TABLE, ("[x]", "is no address of IPv4 or IPv6")]),
        ("192.0.2.1", [("192.0.2.1", "is no domain: write the address literal [...]")]),
        ("a b", [("a b", "a b is no domain name")]),
        (
            "Plain.Example.",
            [
                ("Plain.Example.", "is plain.example in DNS"),
                TABLE,
                ("plain.example MX", "mx.example (10); for 1h"),
                MX,
            ],
        ),
    ],
)
async def test_every_decision_is_written_down(domain: str, expected: list[tuple[str, str]]) -> None:
    route = await RouteFinder(PLAN, dns(), SeededRandomness()).route(RouteRequest(domain))

    found = [(each.subject, each.text) for each in route.explanations]
    assert sorted(found) == sorted(expected), "hosts of one preference come in random order"
    assert found[0] == expected[0]


async def test_hosts_that_are_left_out_are_counted() -> None:
    route = await RouteFinder(PLAN, dns(), SeededRandomness()).route(RouteRequest("huge.example"))

    assert route.explanations[-1].text == "3 more hosts are not looked up"
