"""What one client may have of the intake, by a clock that the test moves."""

from __future__ import annotations

import pytest

from postroad.intake.clients import (
    MIN_KEPT,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_MAILS,
    TOO_MANY_SESSIONS,
    ClientLimits,
    Clients,
)

ONE, OTHER = "192.0.2.1", "192.0.2.2"


def test_a_client_has_its_sessions_and_another_one_its_own() -> None:
    clients = Clients(ClientLimits(sessions=2))

    assert [clients.connected(ONE, 0.0) for _ in range(3)] == [None, None, TOO_MANY_SESSIONS]
    assert clients.connected(OTHER, 0.0) is None
    clients.left(ONE, 0.0)
    assert clients.connected(ONE, 0.0) is None


def test_a_rate_may_be_used_up_at_once_and_comes_back_evenly() -> None:
    clients = Clients(ClientLimits(connections_per_minute=6))

    assert [clients.connected(ONE, 5.0) for _ in range(7)] == [None] * 6 + [TOO_MANY_CONNECTIONS]
    assert clients.connected(ONE, 14.9) == TOO_MANY_CONNECTIONS
    assert clients.connected(ONE, 15.1) is None
    assert clients.connected(ONE, 15.2) == TOO_MANY_CONNECTIONS
    assert [clients.connected(ONE, 100.0) for _ in range(7)] == [None] * 6 + [TOO_MANY_CONNECTIONS]


def test_mails_are_counted_over_all_sessions_of_a_client() -> None:
    clients = Clients(ClientLimits(mails_per_minute=2))
    for address in (ONE, ONE, OTHER):
        clients.connected(address, 0.0)

    assert [clients.begins_mail(ONE, 1.0) for _ in range(3)] == [None, None, TOO_MANY_MAILS]
    assert clients.begins_mail(OTHER, 1.0) is None
    assert clients.begins_mail(ONE, 32.0) is None


def test_mails_of_a_client_that_has_left_are_counted() -> None:
    clients = Clients(ClientLimits(mails_per_minute=1))
    clients.connected(ONE, 0.0)
    clients.left(ONE, 0.0)

    assert [clients.begins_mail(ONE, 0.0) for _ in range(2)] == [None, TOO_MANY_MAILS]


def test_a_new_connection_gives_no_new_rate() -> None:
    clients = Clients(ClientLimits(connections_per_minute=1, mails_per_minute=1))
    clients.connected(ONE, 0.0)
    clients.begins_mail(ONE, 59.0)
    clients.left(ONE, 59.0)

    assert clients.connected(ONE, 61.0) is None
    assert clients.begins_mail(ONE, 61.0) == TOO_MANY_MAILS


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_network_of_64_bits_is_one_client(first: str, second: str, is_one: bool) -> None:
    clients = Clients(ClientLimits(sessions=1))
    clients.connected(first, 0.0)

    assert (clients.connected(second, 0.0) is TOO_MANY_SESSIONS) == is_one


def test_a_client_that_has_left_is_forgotten() -> None:
    clients = Clients(ClientLimits(sessions=2))
    clients.connected(ONE, 0.0)
    clients.left(ONE, 0.0)

    assert len(clients) == 0


def test_clients_whose_rates_are_whole_again_are_forgotten() -> None:
    clients = Clients(ClientLimits(connections_per_minute=1))
    clients.connected(ONE, 0.0)
    most = 0
    for number in range(50 * MIN_KEPT):
        now = number / 10
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        assert clients.connected(address, now) is None
        clients.left(address, now)
        most = max(most, len(clients))

    assert most <= 2 * MIN_KEPT, "600 of them can have used something within a minute"
    clients.left(ONE, 1e6)
