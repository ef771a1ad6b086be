"""Which rule decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.routing.tables import (
    RouteRequest,
    RoutingTable,
    Rule,
    SenderPatterns,
)


@pytest.mark.parametrize(
    ("patterns", "domain", "expected"),
    [
        (["example.org"], "example.org", "example.org"),
        (["example.org"], "mail.example.org", None),
        (["*.example.org"], "example.org", None),
        (["*.example.org"], "mail.example.org", "*.example.org"),
        (["*.example.org"], "a.b.example.org", "*.example.org"),
        (["*.example.org"], "badexample.org", None),
        (["*.org", "*.example.org"], "a.example.org", "*.example.org"),
        (["*"], "example.org", "*"),
        (["*"], "[192.0.2.1]", "*"),
        (["[192.0.2.1]"], "[192.0.2.1]", "[192.0.2.1]"),
        (["*.1]"], "[192.0.2.1]", None),
        ([], "example.org", None),
    ],
)
def test_a_pattern_matches_a_domain_or_all_below_one(
    patterns: list[str], domain: str, expected: str | None
) -> None:
    assert DomainPatterns.of(patterns).match(domain) == expected


@pytest.mark.parametrize(
    ("patterns", "sender", "expected"),
    [
        (["a@example.org"], "a@example.org", "a@example.org"),
        (["a@example.org"], "A@Example.org", "a@example.org"),
        (["a@example.org"], "b@example.org", None),
        (["@example.org"], "b@example.org", "@example.org"),
        (["@example.org"], "b@mail.example.org", None),
        (["@*.example.org"], "b@mail.example.org", "@*.example.org"),
        (["<>"], None, "<>"),
        (["@*"], None, None),
        (["<>"], "a@example.org", None),
    ],
)
def test_a_pattern_matches_a_mailbox_a_domain_or_the_null_sender(
    patterns: list[str], sender: str | None, expected: str | None
) -> None:
    assert SenderPatterns.of(patterns).match(sender) == expected


RULES = (
    Rule("null", senders=SenderPatterns.of(["<>"]), domains=DomainPatterns.of(["a.example"])),
    Rule("exact", DomainPatterns.of(["a.example"])),
    Rule("tenant", DomainPatterns.of(["*.example"]), tenants=frozenset({"acme"})),
    Rule("below", DomainPatterns.of(["*.example"])),
    Rule("other tenant", tenants=frozenset({"umbrella"})),
)


@pytest.mark.parametrize(
    ("request_", "rule", "words"),
    [
        (RouteRequest("a.example"), "null", ("domain a.example", "sender <>")),
        (RouteRequest("a.example", "x@y.example"), "exact", ("domain a.example",)),
        (RouteRequest("b.example", None, "acme"), "tenant", ("domain *.example", "tenant acme")),
        (RouteRequest("b.example", None, "umbrella"), "below", ("domain *.example",)),
        (RouteRequest("b.org", None, "umbrella"), "other tenant", ("tenant umbrella",)),
    ],
)
def test_the_first_rule_that_matches_decides(
    request_: RouteRequest, rule: str, words: tuple[str, ...]
) -> None:
    found = RoutingTable(RULES).find(request_)

    assert found is not None
    assert (found[0].name, found[1]) == (rule, words)


def test_no_rule_may_match() -> None:
    assert RoutingTable(RULES).find(RouteRequest("b.org")) is None


NAMES = st.sampled_from(["a.b", "c.a.b", "b", "d", "[::1]"])
PATTERNS = st.lists(st.sampled_from(["a.b", "c.a.b", "*.b", "*.a.b", "*", "d"]), min_size=1)
DRAWN = st.builds(
    Rule,
    name=st.uuids().map(str),
    domains=st.none() | PATTERNS.map(DomainPatterns.of),
    senders=st.none() | st.just(SenderPatterns.of(["<>"])),
    tenants=st.none() | st.sets(st.sampled_from("xy"), min_size=1).map(frozenset),
)
REQUESTS = st.builds(
    RouteRequest, NAMES, st.sampled_from([None, "a@b"]), st.sampled_from([None, "x", "y"])
)


@given(st.lists(DRAWN, max_size=6), REQUESTS)
def test_the_index_finds_what_reading_every_rule_finds(
    rules: list[Rule], request_: RouteRequest
) -> None:
    found = RoutingTable(tuple(rules)).find(request_)

    expected = next((rule for rule in rules if rule.match(request_) is not None), None)
    assert (found and found[0]) == expected


@given(st.lists(DRAWN, max_size=6), REQUESTS)
def test_a_hidden_rule_is_never_found(rules: list[Rule], request_: RouteRequest) -> None:
    table = RoutingTable(tuple(rules))

    found = table.find(request_)

    assert found is None or found[0] not in [rule for rule, _ in table.hidden()]


def test_a_rule_is_hidden_by_one_that_matches_all_its_mail() -> None:
    rules = (
        Rule("below", DomainPatterns.of(["*.example", "example"])),
        Rule("host", DomainPatterns.of(["a.example", "example"])),
        Rule("deeper", DomainPatterns.of(["*.a.example"])),
        Rule("wider", DomainPatterns.of(["a.example", "org"])),
        Rule("tenants", tenants=frozenset({"x", "y"})),
        Rule("one tenant", tenants=frozenset({"x"})),
        Rule("all"),
        Rule("after all", DomainPatterns.of(["net"])),
    )

    hidden = [(rule.name, before.name) for rule, before in RoutingTable(rules).hidden()]

    assert hidden == [
        ("host", "below"),
        ("deeper", "below"),
        ("one tenant", "tenants"),
        ("after all", "all"),
    ]


def test_a_rule_is_compared_only_with_those_before_it_for_one_of_its_domains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Rule] = []

    def covers(rule: Rule, other: Rule) -> bool:
        compared.append(other)
        return rule is other

    monkeypatch.setattr(Rule, "covers", covers)
    rules = [Rule(f"r{number}", DomainPatterns.of([f"d{number}.a"])) for number in range(50)]

    hidden = RoutingTable((Rule("all", senders=SenderPatterns.of(["<>"])), *rules)).hidden()

    assert not list(hidden)
    assert len(compared) == 50, "each rule with the first only"
