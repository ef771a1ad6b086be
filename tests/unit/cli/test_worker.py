"""Where a worker hands mail to, by its settings and its command line."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from postroad.bootstrap.targets import DeliveryTarget, rules_of, window_of
from postroad.cli import main
from postroad.cli.processes.delivering import target_and_file
from postroad.cli.processes.worker import hop_of, with_delivery
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.smtp.next_hops import (
    HopLogin,
    NextHop,
    OldestTls,
    Protocol,
    SourceAddresses,
    TlsMode,
)
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.errors import InvalidSettings
from postroad.settings import Settings, from_environment
from support.certificates import Certificates


def target_of(
    relay: str | None, tls: str | None = None, file: Path | None = None, connections: int = 200
) -> DeliveryTarget:
    settings = with_delivery(from_environment({}), connections, file, {})
    return target_and_file(settings, hop_of(relay, tls))[0]


@pytest.mark.parametrize(
    ("relay", "tls", "expected"),
    [
        ("hop.example", None, "hop.example:25"),
        ("hop.example", "required", "hop.example:25"),
        ("hop.example", "implicit", "hop.example:465"),
        ("hop.example:2465", "implicit", "hop.example:2465"),
        ("sink", None, "sink:25"),
        ("[2001:db8::1]:26", None, "[2001:db8::1]:26"),
        ("{host: hop.example}", "implicit", "hop.example:465"),
        ("{host: hop.example, port: 587}", None, "hop.example:587"),
        ("unix:/run/lmtp", None, "unix:/run/lmtp"),
        ("unix:/run/lmtp", "none", "unix:/run/lmtp"),
    ],
)
def test_relay_option_names_a_next_hop_whose_port_follows_its_tls(
    relay: str, tls: str | None, expected: str
) -> None:
    hop = target_of(relay, tls)

    assert isinstance(hop, NextHop)
    assert str(hop) == expected
    assert hop.socket or hop.tls == (tls or "opportunistic")
    assert not hop.chunking or hop.socket


def test_relay_option_takes_every_field_of_a_hop(
    tmp_path: Path,
) -> None:
    certificates = Certificates.make(tmp_path)
    (tmp_path / "username").write_text("a")
    (tmp_path / "password").write_text("hunter2")
    text = (
        "{host: hop.example, protocol: LMTP, verp: true,"
        " chunking: true, source: {addresses: [192.0.2.1, '2001:db8::1']},"
        f" tls: {{mode: Required, minVersion: TLS13, caFile: {certificates.authority}}},"
        f" login: {{folder: {tmp_path}, mechanism: XOAUTH2}}}}"
    )

    assert target_of(text) == NextHop(
        "hop.example",
        25,
        TlsMode.REQUIRED,
        Protocol.LMTP,
        HopLogin(tmp_path, Mechanism.XOAUTH2),
        OldestTls.TLS_1_3,
        SourceAddresses(("192.0.2.1", "2001:db8::1")),
        verp=True,
        authorities=certificates.authority,
    )
    assert "hunter2" not in repr(target_of(text))


def test_relay_with_lookup_mx_is_the_only_rule() -> None:
    target = target_of("{host: relay.example, lookUp: MX}")

    assert isinstance(target, RoutingSettings)
    (rule,) = target.plan().table.rules
    assert [[each.by_mx for each in tier] for tier in rule.tiers] == [[True]]


@pytest.mark.parametrize(
    ("relay", "tls", "problem"),
    [
        ("{host: a.b, prot: 25}", None, "prot: there is no such field: did you mean port?"),
        ("{host: a.b, port: true}", None, "port: "),
        ("{host: a.b", None, "is not YAML"),
        ("{host: a.b, source: {addresses: [192.0.2.1, 192.0.2.2]}}", None, "one address of IPv4"),
        ("{host: a.b, source: {addresses: [mx.example]}}", None, "write an address of this"),
        ("{host: a.b, tls: {caFile: /ca}}", None, "caRef goes with mode Required"),
        ("{host: a.b, tls: {mode: Required, caFile: /no/ca}}", None, "cannot be read"),
        ("{host: a.b, login: {secretRef: {name: s}}}", "required", "a Secret is named in a Mail"),
        ("{host: a.b, login: {folder: /no}}", "required", "cannot be read"),
        ("{host: a.b, login: {folder: /no}}", None, "a login goes with tls.mode Required"),
        ("{host: relay, lookUp: MX}", None, "write a full name"),
        ("unix:lmtp", None, "write the whole path"),
        ("unix:/run/lmtp", "required", "a Unix socket has no port, no TLS and no login"),
        ("a b", None, "is not a host and port"),
        (None, "required", "--tls is of --relay"),
        (None, None, "no next hop"),
    ],
)
def test_relay_option_refuses_a_mistake_by_its_field(
    relay: str | None, tls: str | None, problem: str
) -> None:
    with pytest.raises((click.UsageError, InvalidSettings), match=re.escape(problem)):
        target_of(relay, tls)


@pytest.mark.parametrize(
    ("connections", "queue", "window"), [(1, 2, 3), (50, 2, 150), (51, 1, 51), (200, 1, 200)]
)
def test_a_mail_follows_another_one_over_few_connections_to_a_relay(
    connections: int, queue: int, window: int
) -> None:
    """A slow mail blocks no other where there are many."""
    settings = with_delivery(Settings(), connections, None, {})
    target = target_of("relay.example", connections=connections)
    rules = rules_of(settings, target)

    assert (rules.connections, rules.backlog, rules.longest_queue) == (connections, 1, queue)
    assert window_of(settings, target) == window
    assert isinstance(target, NextHop)
    assert not target.chunking


def test_the_command_refuses_what_is_no_path_of_a_socket() -> None:
    result = CliRunner().invoke(main, ["mta", "--queue", "memory://a", "--relay", "unix:lmtp"])

    assert result.exit_code != 0
    assert "write the whole path" in result.output


@pytest.mark.parametrize("command", ["mta", "worker"])
def test_commands_have_no_options_of_a_login_beside_the_relay(command: str) -> None:
    options = ("--relay", "hop.example", "--relay-login-folder", "/run/login")
    result = CliRunner().invoke(main, [command, "--queue", "memory://a", *options])

    assert "No such option" in result.output


def test_mail_goes_by_routes_where_the_file_of_delivery_has_them(tmp_path: Path) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("routing: {postmasterDomain: x.example}")

    target = target_of(None, file=file)

    assert isinstance(target, RoutingSettings)
    assert target.postmaster_domain == "x.example"


@pytest.mark.parametrize(
    ("relay", "text", "problem"),
    [
        (None, "signing: []", "no next hop"),
        ("hop.example", "routing: {}", "either to the relay hop.example or by the routing"),
        (None, "routing: {rules: [{name: a}]}", "give either mx"),
        (None, "{routing: {}, relay: {host: a}}", "either to the relay or by the routing"),
    ],
)
def test_mail_goes_to_one_target(
    tmp_path: Path, relay: str | None, text: str, problem: str
) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)

    with pytest.raises(InvalidSettings, match=problem):
        target_of(relay, file=file)
