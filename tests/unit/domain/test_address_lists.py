"""A list of addresses names the same recipients for every reader, or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.address_lists import addresses_in
from postroad.errors import InvalidInput

A, B = "a@x.example", "b@x.example"


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ("a@x.example; b@x.example", [A, B]),
        ("A <a@x.example>; B <b@x.example>", [A, B]),
        ("<a@x.example> <b@x.example>", [A, B]),
        ("a@x.example(b@evil.example", [A]),
        ('"b@evil.example" <a@x.example>', [A]),
        ('"a, b@evil.example <c@evil.example>" <a@x.example>', [A]),
        ("group: a@x.example, b@x.example;", [A, B]),
        ("empty: ;, a@x.example", [A]),
        ("undisclosed-recipients:;", []),
        ("a@x.example, , b@x.example,", [A, B]),
        ('a@x.example (one, (two) \\), "three), b@x.example', [A, B]),
        ("a@x.example,\r\n\tb@x.example", [A, B]),
        ("<@h.example,@i.example:a@x.example>", [A]),
        ("=?utf-8?q?Doe=2C_J?= <a@x.example>", [A]),
        ("=?utf-8?q?b=40evil.example=2C?= <a@x.example>", [A]),
        ("Doe J. R. <a@x.example>", [A]),
        ('"john doe"@x.example', ['"john doe"@x.example']),
        ('"john (x) doe"@x.example', ['"john (x) doe"@x.example']),
        ('"a\\"b\\\\"@x.example', ['"a\\"b\\\\"@x.example']),
        ("a @ x.example", [A]),
        ("a.(c)b@x . example", ["a.b@x.example"]),
        ("a@[192.0.2.1], b@[IPv6:2001:db8::1]", ["a@[192.0.2.1]", "b@[IPv6:2001:db8::1]"]),
        ("A. Müller <a@x.example>", [A]),
        ("M\udcfcller <a@x.example>", [A]),
        ("jörg@bücher.example", ["jörg@bücher.example"]),
        ("A <a@x.example", [A]),
        ("a@x.example>", [A]),
        ("<a@x.example>, <b@x.example", [A, B]),
        ("mailto:a@x.example", [A]),
        ("", []),
    ],
)  # fmt: skip
def test_a_list_names_its_addresses(value: str, addresses: list[str]) -> None:
    assert addresses_in(value) == addresses


@pytest.mark.parametrize(
    "value",
    [
        "a@x.example)b@evil.example",
        "a@x.example]<b@evil.example>",
        "a@x.example<b@evil.example>",
        "a@x.example <b@evil.example>",
        "A <a@x.example <b@evil.example>",
        "A <a@x.example, b@x.example",
        "<a@x.example>b@evil.example",
        "<a@x.example, b@evil.example>",
        '"a@x.example <b@evil.example>',
        "a@x.example b@evil.example",
        "a@b@evil.example",
        "A B a@x.example",
        "Doe, John <a@x.example>",
        "A, <a@x.example>",
        "a..b@x.example",
        ".a@x.example",
        "a@x.example.",
        "a@x.example,b",
        "a@",
        "<>",
        "=?utf-8?q?a=40x.example?=",
        "=?utf-8?q?A_<a=40x.example>?=",
        "j\udcf6rg@x.example",
        "a@j\udcf6rg.example",
        "a@x.exa\0mple",
        "a\u202e@x.example",
        '"a\nb"@x.example',
        "a\\b@x.example",
    ],
)
def test_a_list_that_could_hide_an_address_or_holds_no_text_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput):
        addresses_in(value)


@given(st.text(st.sampled_from('ab@.,;:<>()[]"\\ é\udcf6'), max_size=30))
def test_any_text_is_refused_or_names_whole_addresses(value: str) -> None:
    try:
        found = addresses_in(value)
    except InvalidInput:
        return
    assert all(addresses_in(each) == [each] for each in found)


@pytest.mark.parametrize("piece", ["a ", "(", '"', "a.", "<@", "a:", "\\", "a@b,", "<"])
def test_a_long_list_is_read_in_one_pass(piece: str) -> None:
    """Backtracking over it would take years."""
    try:
        addresses_in(piece * 10_000)
    except InvalidInput:
        pass
