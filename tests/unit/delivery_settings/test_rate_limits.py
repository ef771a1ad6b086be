"""Limits by rate and of connections in a file of delivery."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from postroad.delivery_settings.files import read_delivery
from postroad.domain.delivery.paces import LimitedBy, LimitedMail, LimitRule, limits_of
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.smtp.next_hops import HopTimeouts, NextHop
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.errors import InvalidSettings
from postroad.routing.routes import written_hop
from postroad.scheduling.ranking import ConnectionLimits

PROVIDER = DomainPatterns.of(["*.mx.example"])


def read(tmp_path: Path, text: str) -> tuple[LimitRule, ...]:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)
    return read_delivery(file).limit_rules()


def test_limits_are_read(tmp_path: Path) -> None:
    text = """
limits:
  - {name: all, perMinute: 6000, burst: 100}
  - {name: bücher, perMinute: 60, per: Site, domains: [Bücher.example]}
  - {name: acme, perMinute: 10, per: Tenant, tenants: [acme, b]}
  - {name: provider, perMinute: 5, servers: ["*.MX.example"]}
""".replace("name: bücher", "name: books")

    assert read(tmp_path, text) == (
        LimitRule("all", LimitedBy.RULE, 6000, 100),
        LimitRule("books", LimitedBy.SITE, 60, 1, frozenset({"xn--bcher-kva.example"})),
        LimitRule("acme", LimitedBy.TENANT, 10, 1, None, frozenset({"acme", "b"})),
        LimitRule("provider", LimitedBy.RULE, 5, 1, servers=PROVIDER),
    )


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("{perMinute: 5}", "limits[0].name: this field is required"),
        ("{name: a}", "limits[0].perMinute: this field is required"),
        ("{name: a, perMinute: 0}", "limits[0].perMinute"),
        ("{name: a, perMinute: true}", "limits[0].perMinute"),
        ("{name: a, perMinute: '5'}", "limits[0].perMinute"),
        ("{name: a, perMinute: 5, burst: 0}", "limits[0].burst"),
        ("{name: a, perMinute: 5, burst: true}", "limits[0].burst"),
        ("{name: a, perMinute: 5, per: site}", "limits[0].per"),
        ("{name: a, perMinute: 5, domains: []}", "list one at least"),
        ("{name: a, perMinute: 5, domains: ['*.b']}", "limits[0].domains[0]"),
        ("{name: a, perMinute: 5, servers: []}", "list one at least"),
        ("{name: a, perMinute: 5, servers: ['mx*.b']}", "limits[0].servers[0]"),
        ("{name: a b, perMinute: 5}", "limits[0].name"),
        ("{name: a, perSecond: 5}", "there is no such field"),
        ("{name: a, perMinute: 5}, {name: a, perMinute: 6}", "two limits have the name a"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(tmp_path: Path, limit: str, problem: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        read(tmp_path, f"limits: [{limit}]")

    assert problem in str(caught.value)


def test_the_first_entry_that_has_a_server_limits_its_connections(tmp_path: Path) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("""
connections:
  - {servers: [a.mx.example], maxConnections: 2}
  - {servers: ["*.MX.example", "2001:DB8::1"], maxConnections: 5, maxMails: 100}
""")
    limits_of = read_delivery(file).connection_limits()
    assert limits_of is not None

    found = [limits_of(written_hop(NextHop(host))) for host in ("a.mx.example", "B.mx.example.")]
    assert found == [ConnectionLimits(2), ConnectionLimits(5, 100)]
    assert limits_of(written_hop(NextHop("2001:db8:0::1"))) == ConnectionLimits(5, 100)
    for other in (NextHop("mx.example"), NextHop("2001:db8::2"), NextHop("/run/lmtp")):
        assert limits_of(written_hop(other)) == ConnectionLimits()


def test_an_entry_gives_servers_a_rate_fewer_recipients_and_times(tmp_path: Path) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text("""
connections:
  - {servers: [a.example], perMinute: 6, maxRecipients: 2, timeouts: {greeting: 30s, end: 1m}}
""")
    limits_of = read_delivery(file).connection_limits()
    assert limits_of is not None
    times = HopTimeouts(greeting=timedelta(seconds=30), data_end=timedelta(minutes=1))

    assert limits_of("a.example:25/smtp") == ConnectionLimits(None, None, 6, 2, times)
    file.write_text("limits: []")
    assert read_delivery(file).connection_limits() is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{maxConnections: 5}", "connections[0].servers: this field is required"),
        ("{servers: [], maxMails: 5}", "list one at least"),
        ("{servers: [a.example], maxConnections: 0}", "connections[0].maxConnections"),
        ("{servers: [a.example], maxMails: true}", "connections[0].maxMails"),
        ("{servers: ['a*.example']}", "connections[0].servers[0]"),
        ("{servers: [a.example], perMinute: 0}", "connections[0].perMinute"),
        ("{servers: [a.example], maxRecipients: 1001}", "connections[0].maxRecipients"),
        ("{servers: [a.example], timeouts: {connect: 31s}}", "connections[0].timeouts.connect"),
        ("{servers: [a.example], timeouts: {end: 1s}}", "connections[0].timeouts.end"),
        ("{servers: [a.example], timeouts: {data: 1m}}", "connections[0].timeouts.data"),
        ("{servers: ['[192.0.2.1]']}", "write an address without brackets"),
    ],
)
def test_limits_of_connections_that_make_no_sense_are_refused(
    tmp_path: Path, entry: str, problem: str
) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text(f"connections: [{entry}]")
    with pytest.raises(InvalidSettings) as caught:
        read_delivery(file)

    assert problem in str(caught.value)


def test_a_mail_is_under_each_limit_that_matches_it() -> None:
    rules = (
        LimitRule("all", LimitedBy.RULE, 1, 1),
        LimitRule("site", LimitedBy.SITE, 1, 1, frozenset({"d.example"})),
        LimitRule("tenant", LimitedBy.TENANT, 1, 1),
        LimitRule("acme", LimitedBy.RULE, 1, 1, None, frozenset({"acme"})),
        LimitRule("source", LimitedBy.SOURCE, 1, 1),
        LimitRule("provider", LimitedBy.RULE, 1, 1, servers=PROVIDER),
    )
    mail = LimitedMail("mx", frozenset({"d.example", "e.example"}), "acme", "192.0.2.1")
    other = LimitedMail(
        "mx", frozenset({"e.example"}), None, "", ("b.else.example", "a.mx.example")
    )

    assert [name for name, _ in limits_of(mail, rules)] == [
        "all", "site mx", "tenant acme", "acme", "source 192.0.2.1",
    ]  # fmt: skip
    assert [name for name, _ in limits_of(other, rules)] == [
        "all", "tenant", "source", "provider",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("retries: [{servers: [a.example]}]", "give lanes, maxAge or both"),
        ("retries: [{lanes: [5m, 5m]}]", "lanes must differ"),
        ("retries: [{lanes: [0s]}]", "retries[0].lanes[0]"),
        ("retries: [{maxAge: 121h}]", "retries[0]: maxAge is longer than that of the queue"),
        ("retries: [{lanes: [2h], maxAge: 1h}]", "a lane cannot be longer than maxAge"),
        ("suspensions: [{reason: Rate, duration: 721h}]", "suspensions[0].duration"),
        ("suspensions: [{reason: Rate, duration: 1h, code: 250}]", "suspensions[0].code"),
        (
            "{suspensions: [{reason: Rate, duration: 1h}], relay: {host: a.example}}",
            "replies of a relay suspend nothing",
        ),
        (
            "routing: {mx: {source: {addresses: [192.0.2.1], weight: 2}}}",
            "a weight is one beside others",
        ),
        (
            "routing: {mx: {source: {addresses: [192.0.2.1], others: [{addresses: [192.0.2.1]}]}}}",
            "192.0.2.1 stands twice",
        ),
    ],
)
def test_what_destinations_cannot_have_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)
    with pytest.raises(InvalidSettings) as caught:
        read_delivery(file).retry_rules(RetryPlan())

    assert problem in str(caught.value)
