"""Networks are read strictly, and an address lies in one of its own family."""

from __future__ import annotations

import pytest

from postroad.domain.networks import EVERY_ADDRESS, LOOPBACK, Networks
from postroad.errors import InvalidInput


@pytest.mark.parametrize(
    ("networks", "address", "lies_in"),
    [
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "::ffff:a01:203", True),
        ("10.0.0.0/8", "::10.1.2.3", False),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("2001:db8::/32, fe80::/10", "2001:db8:1::1", True),
        ("2001:db8::/32, fe80::/10", "fe80::1%eth0", True),
        ("2001:db8::/32", "2001:db9::1", False),
        ("::/0", "127.0.0.1", False),
        ("::/0", "::ffff:127.0.0.1", False),
        ("0.0.0.0/0", "::1", False),
        ("127.0.0.0/8", "localhost", False),
        ("127.0.0.0/8", "", False),
        ("127.0.0.0/8", "127.1", False),
    ],
)
def test_an_address_lies_in_a_network(networks: str, address: str, lies_in: bool) -> None:
    assert (address in Networks.parse(networks)) is lies_in


def test_ipv4_written_as_ipv6_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(InvalidInput, match=r"write 10\.0\.0\.0/8$"):
        Networks.parse("::ffff:10.1.2.3/104")


def test_no_address_lies_in_no_networks() -> None:
    assert "127.0.0.1" not in Networks()
    assert str(Networks()) == "none"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("10.0.0.1/8", "write 10.0.0.0/8"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "write 10.0.0.0/8"),
        ("::ffff:192.0.2.1", "write 192.0.2.1/32"),
        ("10.0.0.0/33", "no network"),
        ("10.0.0.0/255.0.0.0", "no network"),
        ("10.0.0.0/0.255.255.255", "no network"),
        ("10.0.0.0/-1", "no network"),
        ("10.0.0.0/٨", "no network"),
        ("010.0.0.0/8", "no network"),
        ("10/8", "no network"),
        ("fe80::1%eth0", "no network"),
        ("localhost", "no network"),
        ("10.0.0.0/8,", "no network"),
        ("", "no network"),
    ],
)
def test_what_is_no_network_is_refused_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice):
        Networks.parse(text)


@pytest.mark.parametrize(
    ("networks", "is_open"),
    [
        ("0.0.0.0/0", True),
        ("::/0", True),
        ("2000::/3", True),
        ("127.0.0.0/8, 0.0.0.0/1, 128.0.0.0/1", True),
        ("0.0.0.0/1, ::/4", False),
        ("10.0.0.0/8, fd00::/8", False),
    ],
)
def test_networks_that_hold_the_internet_are_known_as_such(networks: str, is_open: bool) -> None:
    assert Networks.parse(networks).hold_the_internet is is_open
    assert EVERY_ADDRESS.hold_the_internet
    assert not LOOPBACK.hold_the_internet
