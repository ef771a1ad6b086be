"""Which rule signs a mail: the nearest domain, the first that allows the tenant."""

from __future__ import annotations

import pytest

from postroad.signing.signatures import SigningPlan, SigningRule

ACME = SigningRule("one.example", (), frozenset({"acme"}))
REST = SigningRule("one.example", (), covers_subdomains=True)
SUB = SigningRule("sub.one.example", ())
OTHER = SigningRule("two.example", (), frozenset({"acme"}), covers_subdomains=True)
PLAN = SigningPlan((ACME, REST, SUB, OTHER))


@pytest.mark.parametrize(
    ("domain", "tenant", "rule"),
    [
        ("one.example", "acme", ACME),
        ("one.example", "else", REST),
        ("one.example", None, REST),
        ("a.b.one.example", "acme", REST),
        ("sub.one.example", "acme", SUB),
        ("x.sub.one.example", None, REST),
        ("two.example", "acme", OTHER),
        ("x.two.example", "acme", OTHER),
        ("two.example", None, None),
        ("example", None, None),
        ("notone.example", None, None),
    ],
)
def test_a_rule_is_found(domain: str, tenant: str | None, rule: SigningRule | None) -> None:
    assert PLAN.find(domain, tenant) is rule
