"""Next hops are written host:port."""

from pathlib import Path

import pytest

from postroad.domain.smtp.next_hops import (
    MAX_SOCKET,
    NextHop,
    Protocol,
    TlsMode,
    address_literal,
    parse_host_port,
)
from postroad.errors import InvalidInput


def test_a_next_hop_without_a_port_has_that_of_its_protocol() -> None:
    implicit = TlsMode.IMPLICIT.default_port
    others = {mode.default_port for mode in TlsMode if mode is not TlsMode.IMPLICIT}

    assert (implicit, others) == (465, {25})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smtp.example.org", ("smtp.example.org", 25)),
        ("smtp.example.org:2525", ("smtp.example.org", 2525)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("a:65535", ("a", 65535)),
        ("[::1]:2525", ("::1", 2525)),
        ("[::1]", ("::1", 25)),
    ],
)
def test_host_and_port_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_host_port(text, 25) == expected


@pytest.mark.parametrize(
    "text", ["", ":25", "25", "25:25", "a:b", "a:1:2", "::1", "a:65536", "a b:1", "[x"]
)
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_host_port(text, 25)


def test_only_verified_modes_never_send_in_clear() -> None:
    verified = {mode for mode in TlsMode if mode.is_verified}

    assert verified == {TlsMode.REQUIRED, TlsMode.IMPLICIT}


def test_an_address_stands_for_a_name_as_a_literal_without_its_zone() -> None:
    assert address_literal("192.0.2.1") == "[192.0.2.1]"
    assert address_literal("fe80::1%eth0") == "[IPv6:fe80::1]"


def test_a_next_hop_is_shown_as_it_is_written() -> None:
    assert str(NextHop("::1", 25)) == "[::1]:25"
    assert str(NextHop("a.example", 26)) == "a.example:26"
    assert str(NextHop("a.example")) == "a.example:25"


def test_a_server_at_a_unix_socket_takes_lmtp_in_clear() -> None:
    hop = NextHop.at_socket(Path("/run/lmtp"))

    assert (hop.protocol, hop.tls, str(hop)) == (Protocol.LMTP, TlsMode.NONE, "unix:/run/lmtp")
    assert NextHop.at_socket(Path("/" + "a" * (MAX_SOCKET - 1)))


@pytest.mark.parametrize("path", ["", "lmtp", "/a\0b", "/" + "ä" * 54])
def test_what_can_be_no_socket_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="Unix socket"):
        NextHop.at_socket(Path(path))
