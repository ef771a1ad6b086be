"""Networks are read strictly, and an address lies in one of its own family."""

from __future__ import annotations

import pytest

from postroad.domain.values.networks import EVERY_ADDRESS, LOOPBACK, Networks, client_of
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


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("10.0.0.0/8", "10.96.0.1"),
        ("10.0.0.0/8", "::ffff:10.96.0.1"),
        ("10.0.0.0/8", "::ffff:0:10.96.0.1"),
        ("10.0.0.0/8", "::10.96.0.1"),
        ("10.0.0.0/8", "64:ff9b::a60:1"),
        ("10.0.0.0/8", "64:ff9b:1::a60:1"),
        ("10.0.0.0/8", "64:ff9b:1:fffe::a60:1"),
        ("10.0.0.0/8", "64:ff9b:1:a60:0:100::"),
        ("10.0.0.0/8", "64:ff9b:1:ff0a:60:1::"),
        ("10.0.0.0/8", "64:ff9b:1:ffff:a:6000:100:0"),
        ("10.0.0.0/8", "2002:a60:1::"),
        ("10.0.0.0/8", "2002:a60:1:ffff::25"),
        ("10.0.0.0/8", "2001:0:c000:201::f59f:fffe"),
        ("10.0.0.0/8", "2001:0:a60:1::3fff:fdfe"),
        ("10.0.0.0/8", "2001:db8::5efe:a60:1"),
        ("10.0.0.0/8", "2001:db8::200:5efe:a60:1"),
        ("10.0.0.0/8", "fe80::5efe:a60:1%eth0"),
        ("127.0.0.0/8", "64:ff9b::7f00:1"),
        ("169.254.0.0/16", "64:ff9b::a9fe:a9fe"),
        ("2002::/16", "2002:c000:201::"),
    ],
)
def test_a_connection_to_an_ipv4_address_within_an_ipv6_address_may_end_in_its_network(
    network: str, address: str
) -> None:
    assert Networks.parse(network).may_be_reached_by(address)


@pytest.mark.parametrize(
    "address",
    ["64:ff9b::c000:201", "64:ff9b:1:fffe::808:808", "2002:c000:201::a60:1", "2001:db8::a60:1",
     "::1", "::", "192.0.2.1", "mx.example", ""],
)  # fmt: skip
def test_a_connection_to_another_address_does_not_end_there(address: str) -> None:
    assert not Networks.parse("10.0.0.0/8, 0.0.0.0/8, 240.0.0.0/4").may_be_reached_by(address)


@pytest.mark.parametrize(
    "address", ["2001:db8::5efe:a00:1", "2002:a00:1::1", "64:ff9b::a00:1", "::10.0.0.1"]
)
def test_a_client_that_chooses_its_ipv6_address_lies_in_no_network_of_ipv4(address: str) -> None:
    assert address not in Networks.parse("10.0.0.0/8")


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("2002:c000:201:1::1", "192.0.2.1"),
        ("2002:c000:201:ffff::1", "192.0.2.1"),
        ("64:ff9b::c000:201", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::5efe:c000:201", "2001:db8::"),
    ],
)
def test_a_client_counts_by_what_one_host_has(address: str, client: str) -> None:
    assert client_of(address) == client


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
        (", ".join(f"{1 << n}.0.0.0/{8 - n}" for n in range(8)), True),
        ("1.0.0.0/8, 2.0.0.0/7, 4.0.0.0/6, 16.0.0.0/4, 32.0.0.0/3, 64.0.0.0/2, 128.0.0.0/1", False),
        (
            "0.0.0.0/5,8.0.0.0/7,11.0.0.0/8,12.0.0.0/6,16.0.0.0/4,32.0.0.0/3,64.0.0.0/2,128.0.0.0/1",
            True,
        ),
        ("2000::/4", True),
        ("2000::/5", False),
        ("10.0.0.0/8, fd00::/8", False),
    ],
)
def test_networks_that_hold_the_internet_are_known_as_such(networks: str, is_open: bool) -> None:
    assert Networks.parse(networks).hold_the_internet is is_open
    assert EVERY_ADDRESS.hold_the_internet
    assert not LOOPBACK.hold_the_internet
