"""Reverse-paths that name the recipient. Source: ADR 0071."""

from __future__ import annotations

import pytest

from postroad.domain.mail.mail import check_address
from postroad.domain.mail.return_paths import return_path

SENDER = "bounces@list.example"


@pytest.mark.parametrize(
    ("sender", "recipient", "expected"),
    [
        (SENDER, "user@example.net", "bounces+user=example.net@list.example"),
        (SENDER, "User+tag@Example.net", "bounces+User+tag=Example.net@list.example"),
        (SENDER, "a=b@example.net", "bounces+a=b=example.net@list.example"),
        (SENDER, "user@bücher.example", "bounces+user=xn--bcher-kva.example@list.example"),
        (SENDER, "jürgen@example.net", "bounces+jürgen=example.net@list.example"),
        (SENDER, "postmaster", "bounces+postmaster@list.example"),
        ("b@[192.0.2.1]", "user@example.net", "b+user=example.net@[192.0.2.1]"),
        (SENDER, "user@[192.0.2.1]", None),
        (SENDER, '"a user"@example.net', None),
        ('"the list"@list.example', "user@example.net", None),
    ],
)
def test_a_return_path_has_the_form_of_postfix(
    sender: str, recipient: str, expected: str | None
) -> None:
    found = return_path(sender, recipient)

    assert found == expected
    if found is not None:
        check_address(found)


@pytest.mark.parametrize(("length", "fits"), [(64, True), (65, False)])
def test_a_local_part_has_64_octets_at_most(length: int, fits: bool) -> None:
    user = "u" * (length - len("bounces+=example.net"))
    wide = "é" * ((length - len("bounces+=example.net")) // 2)
    odd = "x" * ((length - len("bounces+=example.net")) % 2)

    assert (return_path(SENDER, f"{user}@example.net") is not None) is fits
    assert (return_path(SENDER, f"{odd}{wide}@example.net") is not None) is fits


@pytest.mark.parametrize(("length", "fits"), [(254, True), (255, False)])
def test_a_path_has_254_octets_at_most(length: int, fits: bool) -> None:
    rest = length - len("b+user=example.net@.example")
    domain = ".".join(["d" * 50] * 4)[:rest].replace("..", ".").rstrip(".")
    domain += "d" * (rest - len(domain))

    assert (return_path(f"b@{domain}.example", "user@example.net") is not None) is fits
