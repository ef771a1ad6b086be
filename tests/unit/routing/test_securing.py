"""How a connection is secured: what is required, raised by what the domain publishes."""

from datetime import timedelta

import pytest

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, OldestTls, TlsMode
from postroad.routing.answers import Answer, AnswerKind, TlsaRecord
from postroad.routing.routes import NoRoute, Route, RoutingPlan
from postroad.routing.securing import (
    DomainPolicy,
    MxSecurity,
    PublishedSecurity,
    StsMode,
    StsPolicy,
    secured,
)
from postroad.routing.tables import RouteRequest, RoutingTable
from postroad.worker.route_finder import RouteFinder
from support.memory.clock import SeededRandomness
from support.memory.connections import MemoryResolver

USABLE = TlsaRecord(3, 1, 1, b"x" * 32)
UNUSABLE = [
    TlsaRecord(0, 1, 1, b"x" * 32),
    TlsaRecord(1, 1, 1, b"x" * 32),
    TlsaRecord(255, 1, 1, b"x" * 32),
    TlsaRecord(3, 2, 1, b"x" * 32),
    TlsaRecord(3, 1, 3, b"x" * 32),
    TlsaRecord(3, 1, 1, b"x" * 31),
    TlsaRecord(3, 1, 2, b"x" * 32),
    TlsaRecord(3, 0, 0, b""),
]
STS, DANE = PublishedSecurity.STS, PublishedSecurity.DANE


def answer(*records: TlsaRecord, is_validated: bool = True) -> Answer:
    kind = AnswerKind.RECORDS if records else AnswerKind.NO_NAME
    return Answer(kind, timedelta(0), certificates=records, is_validated=is_validated)


BOGUS = Answer(AnswerKind.UNAVAILABLE, timedelta(0), reason="SERVFAIL")


def policy(mode: StsMode, *hosts: str) -> DomainPolicy:
    return DomainPolicy(StsPolicy(mode, hosts, timedelta(days=1)), "kept")


ENFORCED, ELSEWHERE = policy(StsMode.ENFORCE, "mx.example"), policy(StsMode.ENFORCE, "b.example")
TESTED, ENDED = policy(StsMode.TESTING, "b.example"), policy(StsMode.NONE)
NONE = DomainPolicy(None, "no record")
REFUSED = "refused"


@pytest.mark.parametrize(
    ("sts", "tlsa", "expected"),
    [
        (None, None, "opportunistic"),
        (NONE, None, "opportunistic"),
        (ENDED, None, "opportunistic"),
        (TESTED, None, "opportunistic"),
        (ENFORCED, None, "required"),
        (ELSEWHERE, None, REFUSED),
        (None, answer(), "opportunistic"),
        (None, answer(USABLE), "required by TLSA"),
        (None, answer(USABLE, is_validated=False), "opportunistic"),
        (None, answer(*UNUSABLE), "encrypted"),
        (None, answer(*UNUSABLE, USABLE), "required by TLSA"),
        (None, BOGUS, REFUSED),
        (ENFORCED, answer(USABLE), "required by TLSA"),
        (ENFORCED, answer(*UNUSABLE), "required"),
        (ENFORCED, BOGUS, REFUSED),
        (ELSEWHERE, answer(USABLE), REFUSED),
    ],
)
def test_the_decision(sts: DomainPolicy | None, tlsa: Answer | None, expected: str) -> None:
    asked = [] if tlsa is None else [("mx.example", tlsa)]
    found = secured(NextHop("mx.example"), sts, asked)

    by = " by TLSA" if found.hop.by_tlsa else ""
    assert (REFUSED if found.refusal else f"{found.hop.tls}{by}") == expected
    assert (found.tlsa is not None) is found.hop.by_tlsa
    if found.tlsa is not None:
        assert found.tlsa.records == (USABLE,)


@pytest.mark.parametrize("mode", [each for each in TlsMode if each is not TlsMode.NONE])
@pytest.mark.parametrize("sts", [None, NONE, ENDED, TESTED, ENFORCED])
@pytest.mark.parametrize("tlsa", [None, answer(), answer(*UNUSABLE), answer(USABLE)])
def test_nothing_that_is_published_lowers_what_is_required(
    mode: TlsMode, sts: DomainPolicy | None, tlsa: Answer | None
) -> None:
    found = secured(
        NextHop("mx.example", tls=mode), sts, [] if tlsa is None else [("mx.example", tlsa)]
    )

    assert list(TlsMode).index(found.hop.tls) >= list(TlsMode).index(mode)
    assert (found.hop.tls is TlsMode.IMPLICIT) is (mode is TlsMode.IMPLICIT)


def test_the_name_that_cname_records_lead_to_counts_first() -> None:
    """Source: RFC 7672 2.2.3."""
    other = TlsaRecord(3, 1, 1, b"y" * 32)
    asked = [("target.example", answer(USABLE)), ("mx.example", answer(other))]
    found = secured(NextHop("mx.example"), None, asked)
    behind = secured(NextHop("mx.example"), None, [("target.example", answer()), asked[1]])

    assert found.tlsa == ("target.example", (USABLE,))
    assert behind.tlsa == ("mx.example", (other,))


class Policies:
    """The port `StsPolicies` over one answer."""

    def __init__(self, found: DomainPolicy) -> None:
        self.found = found
        self.asked: list[str] = []

    async def find(self, domain: str) -> DomainPolicy:
        self.asked.append(domain)
        return self.found


def dns(*validated: str) -> MemoryResolver:
    made = MemoryResolver()
    made.add("d.example", (10, "mx.example"), (20, "other.example"))
    made.add("mx.example", "192.0.2.1")
    made.add("other.example", "192.0.2.2")
    made.add_certificate("_25._tcp.mx.example", USABLE)
    made.validate(*validated)
    return made


ALL = ("d.example", "mx.example", "_25._tcp.mx.example", "other.example", "_25._tcp.other.example")


async def found(
    resolver: MemoryResolver, *honoured: PublishedSecurity, sts: DomainPolicy = NONE
) -> Route | NoRoute:
    plan = RoutingPlan(RoutingTable(), security=MxSecurity(honoured=frozenset(honoured)))
    finder = RouteFinder(plan, resolver, SeededRandomness(), Policies(sts))
    return await finder.route(RouteRequest("d.example"))


def modes(route: Route | NoRoute) -> list[str]:
    assert isinstance(route, Route), route
    return [
        f"{each.next_hop.host} {each.next_hop.tls}{' by TLSA' * each.next_hop.by_tlsa}"
        for tier in route.tiers
        for each in tier
    ]


async def test_dane_is_asked_for_where_everything_before_it_is_validated() -> None:
    assert modes(await found(dns(*ALL), DANE)) == [
        "mx.example required by TLSA",
        "other.example opportunistic",
    ]
    for missing in ALL[:2]:
        resolver = dns(*(each for each in ALL if each != missing))
        assert modes(await found(resolver, DANE))[0] == "mx.example opportunistic"
        assert "_25._tcp.mx.example" not in [each.name for each in resolver.asked]
    untouched = dns(*ALL)
    assert modes(await found(untouched))[0] == "mx.example opportunistic"
    assert not [each for each in untouched.asked if each.name.startswith("_25")]


@pytest.mark.parametrize(
    ("alias", "asked"),
    [
        ("target.example", ["_25._tcp.target.example", "_25._tcp.mx.example"]),
        ("*.example", ["_25._tcp.mx.example"]),
        ("a\\032b.example", ["_25._tcp.mx.example"]),
        (f"{'a' * 64}.example", ["_25._tcp.mx.example"]),
    ],
)
async def test_an_alias_that_is_no_name_of_a_host_is_passed_over(
    alias: str, asked: list[str]
) -> None:
    """It would stand in TLS as the server's name."""
    resolver = MemoryResolver()
    resolver.add("d.example", (10, "mx.example"))
    resolver.add("mx.example", cname=alias)
    resolver.add(alias, "192.0.2.1")
    resolver.validate("d.example", "mx.example", alias)
    await found(resolver, DANE)

    assert [each.name for each in resolver.asked if each.name.startswith("_25")] == asked


async def test_a_server_whose_tlsa_records_are_bogus_is_left_out() -> None:
    resolver = dns(*ALL)
    resolver.fail("_25._tcp.mx.example")
    assert modes(await found(resolver, DANE)) == ["other.example opportunistic"]

    resolver.fail("_25._tcp.other.example")
    route = await found(resolver, DANE)
    assert isinstance(route, NoRoute)
    assert route.outcome.kind is OutcomeKind.DEFERRED
    assert "4.7.5" in route.outcome.text


async def test_servers_outside_an_enforced_policy_get_nothing() -> None:
    assert modes(await found(dns(), STS, sts=ENFORCED)) == ["mx.example required"]
    route = await found(dns(), STS, sts=policy(StsMode.ENFORCE, "*.else.example"))
    assert isinstance(route, NoRoute)
    assert route.outcome.kind is OutcomeKind.DEFERRED
    assert [each.text for each in route.explanations if each.subject == "mx.example"] == [
        "192.0.2.1",
        "is not in the domain's MTA-STS policy",
    ]


async def test_policies_are_asked_for_where_they_are_honoured() -> None:
    plan = RoutingPlan(RoutingTable(), security=MxSecurity(honoured=frozenset({STS})))
    policies = Policies(ENFORCED)
    finder = RouteFinder(plan, dns(), SeededRandomness(), policies)
    await finder.route(RouteRequest("D.Example"))
    await finder.route(RouteRequest("[192.0.2.1]"))
    await RouteFinder(RoutingPlan(RoutingTable()), dns(), SeededRandomness(), policies).route(
        RouteRequest("d.example")
    )

    assert policies.asked == ["d.example"]


async def test_domains_with_other_requirements_share_no_site() -> None:
    routes = [
        await found(dns(*ALL)),
        await found(dns(*ALL), STS, sts=policy(StsMode.ENFORCE, "*.example", "mx.example")),
        await found(dns(*ALL), DANE),
        *[
            await RouteFinder(
                RoutingPlan(RoutingTable(), security=security), dns(), SeededRandomness()
            ).route(RouteRequest("d.example"))
            for security in (
                MxSecurity(oldest_tls=OldestTls.TLS_1_3),
                MxSecurity(verp=True),
                MxSecurity(chunking=False),
            )
        ],
    ]

    assert len({each.site for each in routes if isinstance(each, Route)}) == 6
    last = routes[-1]
    assert isinstance(last, Route)
    assert not any(each.next_hop.chunking for tier in last.tiers for each in tier)
