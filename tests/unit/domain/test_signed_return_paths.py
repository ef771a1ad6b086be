"""Reverse-paths that only this side can make. Source: ADR 0091."""

from __future__ import annotations

import string
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail import return_paths
from postroad.domain.mail.mail import check_address
from postroad.domain.mail.return_paths import MAX_AGE, ReturnPaths, is_signed, return_path

OLD, NEW = b"an old secret, of 24 octets", b"a new secret of 24 octets!"
PATHS = ReturnPaths([NEW])
DAY = date(2026, 11, 29)
SENDER, TO = "bounces@list.example", "user@example.net"


def signed(
    sender: str = SENDER, recipient: str = TO, tenant: str | None = None, paths: ReturnPaths = PATHS
) -> str:
    path = paths.path(sender, recipient, tenant, DAY)
    assert path is not None
    check_address(path)
    assert len(path.rpartition("@")[0].encode()) <= 64
    return path


def test_the_token_stands_behind_the_form_of_postfix() -> None:
    path = signed()

    plain, at, domain = (return_path(SENDER, TO) or "").rpartition("@")
    assert path.startswith(f"{plain}=")
    assert path.endswith(f"{at}{domain}")
    assert is_signed(path)
    assert not is_signed(f"{plain}{at}{domain}")


@pytest.mark.parametrize("tenant", [None, "acme", "größe"])
@pytest.mark.parametrize(
    "recipient",
    [
        "user@example.net",
        "user+tag=x@example.net",
        "Jürgen@bücher.example",
        "u" * 60 + "@a.example",
    ],
)
@pytest.mark.parametrize("sender", [SENDER, "a+b@list.example", "B@[192.0.2.1]", "c@BÜ.example"])
def test_a_path_leads_back_to_its_mail_whatever_the_case(
    sender: str, recipient: str, tenant: str | None
) -> None:
    path = signed(sender, recipient, tenant)

    for seen in (path, path.upper(), path.lower()):
        found = PATHS.open(seen, DAY)
        assert found is not None
        assert found.tenant == tenant
        assert found.sender.rpartition("@")[0] == sender.rpartition("@")[0].lower()
        about = found.about(["other@example.net", recipient.upper()])
        assert about is not None
        assert about.rpartition("@")[0] == recipient.rpartition("@")[0].lower()


@pytest.mark.parametrize("recipient", ["\u212aate@example.net", "straße@example.net"])
def test_no_path_names_another_mailbox_than_its_recipient(recipient: str) -> None:
    assert PATHS.path(SENDER, recipient, None, DAY) is None


def test_a_recipient_that_is_too_long_is_found_among_the_addresses_of_a_report() -> None:
    long = "u" * 50 + "@example.net"
    found = PATHS.open(signed(recipient=long), DAY)

    assert found is not None
    assert found.recipient is None
    assert found.about([]) is None
    assert found.about(["user@example.net", "", "@", "x"]) is None
    assert found.about(["<a>", long]) == long


def test_no_other_reads_the_tenant_from_a_path() -> None:
    assert "acme" not in signed(tenant="acme")


def test_a_tenant_that_is_too_long_leaves_the_path_unsigned() -> None:
    assert PATHS.path(SENDER, TO, "t" * 33, DAY) is None
    assert PATHS.path("b" * 60 + "@list.example", TO, None, DAY) is None
    assert PATHS.path(SENDER, "postmaster", None, DAY) is None


@given(st.data())
def test_any_other_octet_makes_the_path_another_ones(data: st.DataObject) -> None:
    path = signed(recipient=data.draw(st.sampled_from((TO, "u" * 60 + "@a.example"))))
    at = data.draw(st.integers(0, len(path) - 1))
    alphabet = string.ascii_lowercase + string.digits + "+=."
    other = data.draw(st.sampled_from([each for each in alphabet if each != path[at]]))

    assert PATHS.open(path[:at] + other + path[at + 1 :], DAY) is None


def test_a_token_is_of_its_sender_its_recipient_and_its_tenant() -> None:
    token = signed().rpartition("@")[0].rpartition("=")[2]

    for other in ("b+user=example.net", "bounces+other=example.net", "bounces+"):
        assert PATHS.open(f"{other}={token}@list.example", DAY) is None
    assert PATHS.open(f"bounces+user=example.net={token}@other.example", DAY) is None
    assert PATHS.open(f"bounces+user=example.net={token}mzxw6@list.example", DAY) is None


@given(st.text(max_size=90))
def test_no_address_is_an_error(text: str) -> None:
    assert PATHS.open(text, DAY) is None
    assert PATHS.open(f"a+{text}=abcdefghijkl@list.example", DAY) is None


def test_a_path_that_is_too_long_to_be_ours_costs_no_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    token = signed().rpartition("@")[0].rpartition("=")[2]
    macs: list[object] = []

    def noted(*parts: object) -> bytes:
        macs.append(parts)
        return b""

    monkeypatch.setattr(return_paths, "_mac", noted)

    for pluses in (150, 1900):
        assert PATHS.open(f"b{'+' * pluses}u=example.net={token}@l.example", DAY) is None
    assert not macs
    assert PATHS.open(f"b{'+' * 20}u=example.net={token}@l.example", DAY) is None
    assert len(macs) == 20


def test_a_path_is_accepted_for_its_time_alone() -> None:
    path = signed()

    assert PATHS.open(path, DAY - timedelta(days=1)) is not None  # clocks differ
    assert PATHS.open(path, DAY + MAX_AGE) is not None
    for days in (-2, MAX_AGE.days + 1, 256, 512, 256 * 7 + 3):
        assert PATHS.open(path, DAY + timedelta(days=days)) is None


def test_a_secret_takes_the_place_of_another() -> None:
    older = signed(paths=ReturnPaths([OLD]))

    assert PATHS.open(older, DAY) is None
    assert ReturnPaths([NEW, OLD]).open(older, DAY) is not None
    assert signed(paths=ReturnPaths([NEW, OLD])) == signed()


def test_no_representation_shows_a_secret() -> None:
    found = PATHS.open(signed(recipient="u" * 60 + "@a.example"), DAY)

    assert b"secret" not in f"{PATHS!r} {found!r}".encode()
