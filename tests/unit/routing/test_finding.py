"""Routes by smart hosts, by MX records beside this server, and in random order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.domain.values.networks import Networks
from postroad.routing.answers import Answer, AnswerKind, MxRecord, Question, RecordType
from postroad.routing.finding import find_route
from postroad.routing.routes import NoRoute, OwnNames, Route, RoutingPlan
from postroad.routing.securing import MxSecurity
from postroad.routing.tables import (
    RouteRequest,
    RoutingTable,
    Rule,
    SenderPatterns,
    SmartHost,
)
from postroad.worker.route_finder import RouteFinder
from support.memory.clock import SeededRandomness
from support.memory.connections import MemoryResolver


def host(name: str, *, by_mx: bool = False, port: int = 25) -> SmartHost:
    return SmartHost(NextHop(name, port), by_mx)


def plan(*rules: Rule) -> RoutingPlan:
    return RoutingPlan(RoutingTable(rules), OwnNames(frozenset({"ours.example"})))


def dns() -> MemoryResolver:
    made = MemoryResolver()
    made.add("one.example", "192.0.2.1")
    made.add("two.example", "192.0.2.2", "2001:db8::2")
    made.add("local.example", "127.0.0.1")
    made.add("relay.example", (10, "one.example"), (20, "two.example"))
    made.add("null.example", (0, ""))
    made.add("d.example", (10, "two.example"))
    made.add("xn--bcher-kva.example", "192.0.2.3")
    made.fail("down.example")
    return made


async def found(
    made: RoutingPlan, domain: str = "d.example", sender: str | None = None, seed: int = 0
) -> Route | NoRoute:
    return await RouteFinder(made, dns(), SeededRandomness(seed)).route(
        RouteRequest(domain, sender)
    )


def names(route: Route | NoRoute) -> list[list[str]]:
    assert isinstance(route, Route), route
    return [[str(hop.next_hop) for hop in tier] for tier in route.tiers]


async def test_a_rule_leads_to_its_smart_hosts_tier_by_tier() -> None:
    rule = Rule(
        "smart",
        tiers=((host("one.example", port=587),), (host("192.0.2.9"),), (host("two.example"),)),
    )

    route = await found(plan(rule))

    assert names(route) == [["one.example:587"], ["192.0.2.9:25"], ["two.example:25"]]
    assert isinstance(route, Route)
    assert [hop.addresses for tier in route.tiers for hop in tier] == [
        ("192.0.2.1",),
        ("192.0.2.9",),
        ("192.0.2.2", "2001:db8::2"),
    ]
    assert route.explanations[0].text == "rule smart matches: all mail"


async def test_a_smart_host_may_be_this_machine() -> None:
    route = await found(plan(Rule("smart", tiers=((host("local.example", port=2526),),))))

    assert names(route) == [["local.example:2526"]]


async def test_a_smart_host_that_is_a_domain_leads_to_its_mx_hosts_before_the_next_tier() -> None:
    rule = Rule(
        "smart", tiers=((host("relay.example", by_mx=True, port=26),), (host("two.example"),))
    )

    assert names(await found(plan(rule))) == [
        ["one.example:26"],
        ["two.example:26"],
        ["two.example:25"],
    ]


@pytest.mark.parametrize(
    "primary",
    [
        host("gone.example"),
        host("down.example"),
        host("null.example", by_mx=True),
        host("down.example", by_mx=True),
    ],
    ids=str,
)
async def test_what_a_rule_names_wrongly_defers_mail_and_leaves_the_other_smart_hosts(
    primary: SmartHost,
) -> None:
    alone = await found(plan(Rule("smart", tiers=((primary,),))))
    beside = await found(plan(Rule("smart", tiers=((primary,), (host("one.example"),)))))

    assert isinstance(alone, NoRoute)
    assert alone.outcome.kind is OutcomeKind.DEFERRED
    assert alone.outcome.text == "451 4.4.4 no smart host of rule smart has an address"
    assert names(beside) == [["one.example:25"]]


async def test_a_rule_may_leave_a_domain_to_its_mx_records() -> None:
    rules = (
        Rule("direct", DomainPatterns.of(["d.example"]), security=MxSecurity(TlsMode.REQUIRED)),
        Rule("rest", tiers=((host("one.example"),),)),
    )

    direct, rest = await found(plan(*rules)), await found(plan(*rules), "gone.example")

    assert isinstance(direct, Route)
    assert direct.tiers[0][0].next_hop == NextHop("two.example", tls=TlsMode.REQUIRED)
    assert names(rest) == [["one.example:25"]]


async def test_a_rule_sees_domains_and_senders_in_a_labels() -> None:
    rule = Rule(
        "idn",
        DomainPatterns.of(["xn--bcher-kva.example"]),
        SenderPatterns.of(["@xn--bcher-kva.example"]),
        tiers=((host("one.example"),),),
    )

    route = await found(plan(rule), "bücher.example", "a@BÜCHER.example")

    assert names(route) == [["one.example:25"]]
    assert "is xn--bcher-kva.example in DNS" in [each.text for each in route.explanations]


async def test_the_bare_postmaster_has_the_configured_domain() -> None:
    made = RoutingPlan(RoutingTable(), postmaster_domain="d.example")

    assert names(await found(made, "")) == [["two.example:25"]]


async def test_one_site_is_shared_by_domains_with_the_same_hosts_in_the_same_order() -> None:
    resolver = dns()
    resolver.add("same.example", (1, "two.example"))
    resolver.add("a.example", (10, "one.example"), (10, "two.example"), (30, "three.example"))
    resolver.add("b.example", (5, "two.example"), (5, "one.example"), (6, "three.example"))
    resolver.add("c.example", (5, "two.example"), (6, "one.example"), (6, "three.example"))
    router = RouteFinder(plan(), resolver, SeededRandomness())

    sites = {}
    for domain in ("d.example", "same.example", "a.example", "b.example", "c.example"):
        route = await router.route(RouteRequest(domain))
        assert isinstance(route, Route)
        sites[domain[0]] = route.site

    assert sites["d"] == sites["s"]
    assert sites["a"] == sites["b"]
    assert len(set(sites.values())) == len({site.name for site in sites.values()}) == 3
    assert sites["d"].name == "two.example"
    assert sites["a"].name.startswith("one.example:25+2.")


async def test_a_site_differs_by_port_tls_and_protocol() -> None:
    rules = [
        Rule("smart", tiers=((SmartHost(hop),),))
        for hop in (
            NextHop("one.example"),
            NextHop("one.example", 587),
            NextHop("one.example", tls=TlsMode.REQUIRED),
        )
    ]

    routes = [await found(plan(rule)) for rule in rules]

    assert len({route.site.name for route in routes if isinstance(route, Route)}) == 3


async def test_hosts_of_one_preference_come_in_every_order() -> None:
    """Source: RFC 5321 5.1."""
    resolver = MemoryResolver()
    hosts = [f"h{number}.example" for number in range(3)]
    resolver.add("d.example", *((10, each) for each in hosts))
    for number, each in enumerate(hosts):
        resolver.add(each, f"192.0.2.{number}")
    router = RouteFinder(plan(), resolver, SeededRandomness(7))

    orders = Counter[str]()
    for _ in range(600):
        (tier,) = names(await router.route(RouteRequest("d.example")))
        orders[" ".join(tier)] += 1

    assert len(orders) == 6
    assert min(orders.values()) > 60, "each of six orders is as likely: 100 of 600"


async def test_a_route_holds_as_long_as_the_shortest_answer() -> None:
    class Hasty(MemoryResolver):
        async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
            answers = await super().look_up(*questions)
            seconds = [7 if each.type is RecordType.AAAA else 60 for each in questions]
            return tuple(
                replace(answer, ttl=timedelta(seconds=ttl))
                for answer, ttl in zip(answers, seconds, strict=True)
            )

    resolver = Hasty()
    resolver.add("d.example", "192.0.2.1")

    route = await RouteFinder(plan(), resolver, SeededRandomness()).route(RouteRequest("d.example"))

    assert route.ttl == timedelta(seconds=7)


OWN = OwnNames(frozenset({"h0", "h1"}), Networks.of(["192.0.2.2/31"]))
RECORDS = st.lists(
    st.builds(MxRecord, st.integers(0, 3), st.sampled_from([f"h{n}" for n in range(7)])),
    min_size=1,
    max_size=9,
)


def _answered(records: list[MxRecord], missing: set[int]) -> Route | NoRoute:
    """Route `d` with these MX records: host hN has 192.0.2.N, those missing have no address."""
    asking = find_route(
        RouteRequest("d"), RoutingPlan(RoutingTable(), OWN), lambda count: count - 1
    )
    questions = next(asking)
    try:
        while True:
            answers = [_of(question, records, missing) for question in questions]
            questions = asking.send(tuple(answers))
    except StopIteration as end:
        route: Route | NoRoute = end.value
        return route


def _of(question: Question, records: list[MxRecord], missing: set[int]) -> Answer:
    hour = timedelta(hours=1)
    if question.type is RecordType.MX:
        return Answer(AnswerKind.RECORDS, hour, exchanges=tuple(records))
    number = int(question.name[1:])
    if question.type is RecordType.AAAA or number in missing:
        return Answer(AnswerKind.NO_DATA, hour)
    return Answer(AnswerKind.RECORDS, hour, addresses=(f"192.0.2.{number}",))


@given(RECORDS, st.sets(st.integers(0, 6)))
def test_only_hosts_before_this_server_are_used(records: list[MxRecord], missing: set[int]) -> None:
    """Source: RFC 5321 5.1. h0 and h1 are this server by name, h2 and h3 by address."""
    preference: dict[str, int] = {}
    for record in records:
        preference[record.host] = min(record.preference, preference.get(record.host, 9))
    by_address = {"h2", "h3"} - {f"h{number}" for number in missing}
    ours = [value for each, value in preference.items() if each in {"h0", "h1"} | by_address]
    expected = sorted(
        (value, each)
        for each, value in preference.items()
        if value < min(ours, default=9) and int(each[1:]) not in missing
    )

    route = _answered(records, missing)

    if expected:
        assert isinstance(route, Route)
        hosts = [hop.next_hop.host for tier in route.tiers for hop in tier]
        assert sorted(hosts) == sorted(each for _, each in expected)
        assert [preference[each] for each in hosts] == [value for value, _ in expected]
    else:
        assert isinstance(route, NoRoute)
        assert route.outcome.text.startswith("554 5.4.6" if ours else "550 5.4.4")


@pytest.mark.parametrize("address", ["169.254.169.254", "IPv6:::ffff:169.254.169.254"])
async def test_link_local_addresses_are_no_next_hops(address: str) -> None:
    """Behind that of clouds are the credentials of a machine."""
    route = await found(plan(), f"[{address}]")

    assert isinstance(route, NoRoute)
    assert route.outcome.kind is OutcomeKind.FAILED
    assert "no server can have it" in route.explanations[-1].text
