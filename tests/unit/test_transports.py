"""What a process calls itself to a next hop."""

from __future__ import annotations

import socket

import pytest

from postroad.bootstrap.transports import ehlo_name_of
from postroad.domain.smtp.next_hops import address_literal
from postroad.settings import Settings


@pytest.mark.parametrize(
    ("machine", "setting", "expected"),
    [
        ("mx.example.org", None, "mx.example.org"),
        ("outgoing-worker-5c9f-x2x", None, None),
        ("localhost", None, None),
        ("localhost.localdomain", None, None),
        ("localhost", "mx.example.org", "mx.example.org"),
        ("mx.example.org", "[192.0.2.1]", "[192.0.2.1]"),
    ],
)
def test_a_machines_name_is_used_where_it_means_something_elsewhere(
    monkeypatch: pytest.MonkeyPatch, machine: str, setting: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: machine)

    assert ehlo_name_of(Settings(hostname=setting)) == expected


@pytest.mark.parametrize(
    ("address", "literal"),
    [
        ("192.0.2.1", "[192.0.2.1]"),
        ("2001:db8::1", "[IPv6:2001:db8::1]"),
        ("fe80::1%eth0", "[IPv6:fe80::1]"),
    ],
)
def test_an_address_is_written_as_smtp_writes_it(address: str, literal: str) -> None:
    assert address_literal(address) == literal
