"""Rights of users who have logged in: whose rule is whose."""

from __future__ import annotations

import pytest

from postroad.intake.logins.results import LoggedInUser, LoginClient
from postroad.intake.submission import Permissions, UserRates
from postroad.intake_settings.senders import SenderRule

RULES = [
    SenderRule.model_validate({"users": ["kate@example.org", "*@bank.example"], "tenant": "bank"})
]


@pytest.mark.parametrize(
    ("name", "tenant"),
    [
        ("Kate@Example.org", "bank"),
        ("ann@BANK.example", "bank"),
        ("\u212aate@example.org", None),
        ("eve@ban\u212a.example", None),
        ("ann@bank.example.net", None),
    ],
)
def test_a_rule_is_for_its_users_and_for_none_with_a_letter_that_looks_the_same(
    name: str, tenant: str | None
) -> None:
    permissions = Permissions(RULES, UserRates(), lambda: 0.0)

    assert permissions.of(LoggedInUser(name), LoginClient("192.0.2.1")).tenant == tenant
