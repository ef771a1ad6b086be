"""Internationalised names become what DNS and servers without SMTPUTF8 know."""

from __future__ import annotations

import pytest

from postroad.domain.mail.seven_bits import (
    ascii_address,
    ascii_domain,
    same_domain,
    spellings,
)
from postroad.errors import InvalidInput

LABEL = "a" * 63


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("Post@Example.ORG", "Post@Example.ORG"),
        ("odd@xn--never-valid-.example", "odd@xn--never-valid-.example"),
        ("post@bücher.example", "post@xn--bcher-kva.example"),
        ('"a@b"@bücher.example', '"a@b"@xn--bcher-kva.example'),
        ("jörg@bücher.example", "jörg@xn--bcher-kva.example"),
        ("Post@BÜCHER.Example", "Post@xn--bcher-kva.example"),
        ("post@ü..example", "post@ü..example"),
    ],
)
def test_the_domain_of_an_address_gets_its_ascii_form_where_it_has_one(
    address: str, expected: str
) -> None:
    assert ascii_address(address) == expected


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ("Example.ORG.", "example.org"),
        ("BÜCHER.Example.", "xn--bcher-kva.example"),
        ("ＢÜCHER.Example", "xn--bcher-kva.example"),
        ("_dmarc.example-", "_dmarc.example-"),
        ("xn--never-valid-.example", "xn--never-valid-.example"),
        (LABEL, LABEL),
        (f"{LABEL}.{LABEL}.{LABEL}.{'b' * 61}.", f"{LABEL}.{LABEL}.{LABEL}.{'b' * 61}"),
    ],
)
def test_a_domain_is_as_dns_has_it(domain: str, expected: str) -> None:
    assert ascii_domain(domain) == expected


@pytest.mark.parametrize(
    "domain",
    ["", ".", "a..b", "a b", "ü..example", f"a{LABEL}", f"{LABEL}.{LABEL}.{LABEL}.{'b' * 62}"],
)
def test_what_dns_cannot_have_is_refused(domain: str) -> None:
    with pytest.raises(InvalidInput, match="is no domain name"):
        ascii_domain(domain)


@pytest.mark.parametrize(
    ("domain", "found"),
    [
        ("B\u00dcCHER.example", {"b\u00fccher.example", "xn--bcher-kva.example"}),
        (
            "bu\u0308cher.example",
            {"bu\u0308cher.example", "b\u00fccher.example", "xn--bcher-kva.example"},
        ),
        ("XN--BCHER-KVA.example", {"b\u00fccher.example", "xn--bcher-kva.example"}),
        ("Example.org", {"example.org"}),
        ("[192.0.2.1]", {"[192.0.2.1]"}),
        ("", {""}),
    ],
)
def test_a_domain_has_the_same_spellings_in_each_of_them(domain: str, found: set[str]) -> None:
    assert spellings(domain) == found
    assert len({same_domain(each) for each in found}) == 1
