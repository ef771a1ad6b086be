"""Where a worker hands mail to, by its settings and its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from postroad.bootstrap.delivery.ways import Way, rules_of, window_of
from postroad.cli import main
from postroad.cli.processes.delivering import way_and_file
from postroad.cli.processes.delivery_options import with_relay
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.smtp.next_hops import HopLogin, NextHop, SourceAddresses
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.errors import InvalidSettings
from postroad.settings import Settings, from_environment


def way_of(settings: Settings) -> Way:
    return way_and_file(settings)[0]


@pytest.mark.parametrize(
    ("relay", "tls", "environment", "expected"),
    [
        ("hop.example", None, {}, "hop.example:25"),
        ("hop.example", "required", {}, "hop.example:25"),
        ("hop.example", "implicit", {}, "hop.example:465"),
        ("hop.example:2465", "implicit", {}, "hop.example:2465"),
        ("hop.example", None, {"TLS": "implicit"}, "hop.example:465"),
        ("hop.example", "required", {"TLS": "implicit"}, "hop.example:25"),
        (None, None, {"HOST": "hop.example", "TLS": "implicit"}, "hop.example:465"),
        (None, "implicit", {"HOST": "hop.example", "PORT": "26"}, "hop.example:26"),
        ("hop.example", "implicit", {"PORT": "26"}, "hop.example:26"),
    ],
)
def test_the_port_of_a_next_hop_follows_its_tls_where_none_is_named(
    relay: str | None, tls: str | None, environment: dict[str, str], expected: str
) -> None:
    named = {f"POSTROAD_WORKER_RELAY_{name}": value for name, value in environment.items()}

    hop = way_of(with_relay(from_environment(named), relay, tls, None, None, {}))

    assert isinstance(hop, NextHop)
    assert str(hop) == expected
    assert hop.tls == (tls or environment.get("TLS", "opportunistic"))


@pytest.mark.parametrize(
    ("relay", "environment", "expected"),
    [
        ("unix:/run/lmtp", {"HOST": "hop.example"}, "unix:/run/lmtp"),
        (None, {"SOCKET": "/run/lmtp"}, "unix:/run/lmtp"),
        ("hop.example", {"SOCKET": "/run/lmtp"}, "hop.example:25"),
    ],
)
def test_the_command_line_decides_between_a_host_and_a_socket(
    relay: str | None, environment: dict[str, str], expected: str
) -> None:
    named = {f"POSTROAD_WORKER_RELAY_{name}": value for name, value in environment.items()}

    assert str(way_of(with_relay(from_environment(named), relay, None, None, None, {}))) == expected


@pytest.mark.parametrize(
    ("connections", "queue", "window"), [(1, 2, 3), (50, 2, 150), (51, 1, 51), (200, 1, 200)]
)
def test_a_mail_follows_another_one_over_few_connections_to_a_relay(
    connections: int, queue: int, window: int
) -> None:
    """A slow mail holds up no other where there are many."""
    settings = with_relay(Settings(), "relay.example", None, connections, None, {})
    way = way_of(settings)
    rules = rules_of(settings, way)

    assert (rules.connections, rules.backlog, rules.longest_queue) == (connections, 1, queue)
    assert window_of(settings, way) == window
    assert isinstance(way, NextHop)
    assert not way.chunking


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"HOST": "a.example", "SOCKET": "/s"}, "to the relay a.example or to the socket /s"),
        ({"SOCKET": "/s", "TLS": "required"}, "neither TLS nor a login"),
        ({"SOCKET": "/s", "LOGIN_FOLDER": "/l"}, "neither TLS nor a login"),
        ({"SOCKET": "s"}, "write the whole path"),
    ],
)
def test_a_socket_that_cannot_be_used_is_refused(environment: dict[str, str], problem: str) -> None:
    named = {f"POSTROAD_WORKER_RELAY_{name}": value for name, value in environment.items()}

    with pytest.raises(InvalidSettings, match=problem):
        way_of(from_environment(named))


def test_the_command_refuses_what_is_no_path_of_a_socket() -> None:
    result = CliRunner().invoke(main, ["mta", "--queue", "memory://a", "--relay", "unix:lmtp"])

    assert result.exit_code == 2
    assert "write the whole path" in result.output


def test_a_login_needs_verified_tls_and_its_files(tmp_path: Path) -> None:
    chosen = {"relay_login_folder": tmp_path, "relay_login_mechanism": "XOAUTH2"}

    def hop(tls: str, **more: object) -> NextHop:
        settings = with_relay(from_environment({}), "hop.example", tls, None, None, chosen | more)
        found = way_of(settings)
        assert isinstance(found, NextHop)
        return found

    with pytest.raises(InvalidSettings, match="cannot be read"):
        hop("required")
    (tmp_path / "username").write_text("a")
    (tmp_path / "password").write_text("hunter2")
    with pytest.raises(InvalidSettings, match="TLS opportunistic"):
        hop("opportunistic")
    assert hop("required").login == HopLogin(tmp_path, Mechanism.XOAUTH2)
    assert hop("none", relay_login_unverified=True).login is not None
    assert "hunter2" not in repr(hop("required"))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("192.0.2.1", ("192.0.2.1",)),
        ("192.0.2.1, 2001:db8::1", ("192.0.2.1", "2001:db8::1")),
        ("", None),
    ],
)
def test_the_source_of_connections(text: str, addresses: tuple[str, ...] | None) -> None:
    named = {"POSTROAD_WORKER_RELAY_HOST": "h", "POSTROAD_WORKER_SOURCE_ADDRESSES": text}
    hop = way_of(from_environment(named))

    assert isinstance(hop, NextHop)
    assert hop.source == (None if addresses is None else SourceAddresses(addresses))


@pytest.mark.parametrize("text", ["192.0.2.1,192.0.2.2", "mx.example.org"])
def test_a_source_that_is_none_is_refused(text: str) -> None:
    named = {"POSTROAD_WORKER_RELAY_HOST": "h", "POSTROAD_WORKER_SOURCE_ADDRESSES": text}
    with pytest.raises(InvalidSettings, match="are no source addresses"):
        way_of(from_environment(named))


def test_the_command_has_the_options_of_the_login(tmp_path: Path) -> None:
    options = ("--relay", "hop.example", "--relay-login-folder", str(tmp_path))
    result = CliRunner().invoke(main, ["mta", "--queue", "memory://a", *options])

    assert result.exit_code != 0
    assert "a login is not sent to a next hop with TLS opportunistic" in result.output


def test_mail_goes_by_routes_where_the_file_of_delivery_has_them(tmp_path: Path) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("routing: {postmasterDomain: x.example}")

    way = way_of(with_relay(from_environment({}), None, None, None, file, {}))

    assert isinstance(way, RoutingSettings)
    assert way.postmaster_domain == "x.example"


@pytest.mark.parametrize(
    ("relay", "text", "problem"),
    [
        (None, "signing: []", "no next hop"),
        ("hop.example", "routing: {}", "either to the relay hop.example or by the routing"),
        (None, "routing: {rules: [{name: a}]}", "give either mx"),
    ],
)
def test_mail_goes_one_way(tmp_path: Path, relay: str | None, text: str, problem: str) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)

    with pytest.raises(InvalidSettings, match=problem):
        way_of(with_relay(from_environment({}), relay, None, None, file, {}))
