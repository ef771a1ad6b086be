"""A file of routes: what it may hold, and how it is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from textwrap import indent

import pytest

from postroad.delivery_settings.files import read_delivery
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidSettings
from postroad.routing.routes import AddressFamily, OwnNames, RoutingPlan
from postroad.routing.securing import MxSecurity
from postroad.routing.tables import (
    RoutingTable,
    Rule,
    SenderPatterns,
    SmartHost,
)

WHOLE = """
own:
  hosts: [MX2.Example.org]
  networks: [192.0.2.0/28, "2001:db8::/64"]
skip: [10.0.0.0/8]
families: [IPv6, IPv4]
postmasterDomain: bücher.example
resolver:
  servers: [10.96.0.10, "127.0.0.1:5353", "2001:db8::53", "[::1]:54"]
  timeout: 3s
rules:
  - name: archive
    domains: [archive.example.org, "*.Bücher.example", "[192.0.2.1]"]
    hops: [{host: lmtp.mail.svc.cluster.local, port: 24, protocol: LMTP, tls: {mode: None}}]
  - name: partners
    domains: ["*.partner.example"]
    mx: {tls: {mode: Required}, chunking: false, verp: true}
  - name: acme
    senders: [News@Bücher.example, "@example.net", "@*.example.net", <>]
    tenants: [acme]
    hops:
      - {tier: 3, host: "2001:db8::9"}
      - {host: smtp1.relay.example, port: 587, verp: true}
      - {tier: 2, host: relay.example, lookUp: MX, chunking: false}
      - {tier: 1, host: 192.0.2.9, tls: {mode: Implicit}}
"""


def section(tmp_path: Path, text: str) -> RoutingSettings:
    """Read a text as the section `routing` of a file of delivery."""
    file = tmp_path / "routes.yaml"
    file.write_text("routing:\n" + indent(text, "  "))
    routing = read_delivery(file).routing
    assert routing is not None
    return routing


def read(tmp_path: Path, text: str) -> RoutingPlan:
    return section(tmp_path, text).plan()


def test_every_field_reaches_the_plan(tmp_path: Path) -> None:
    archive = NextHop("lmtp.mail.svc.cluster.local", 24, TlsMode.NONE, Protocol.LMTP)
    senders = ["news@xn--bcher-kva.example", "@example.net", "@*.example.net", "<>"]

    assert read(tmp_path, WHOLE) == RoutingPlan(
        RoutingTable(
            (
                Rule(
                    "archive",
                    DomainPatterns.of(
                        ["archive.example.org", "*.xn--bcher-kva.example", "[192.0.2.1]"]
                    ),
                    tiers=((SmartHost(archive),),),
                ),
                Rule(
                    "partners",
                    DomainPatterns.of(["*.partner.example"]),
                    security=MxSecurity(TlsMode.REQUIRED, chunking=False, verp=True),
                ),
                Rule(
                    "acme",
                    senders=SenderPatterns.of(senders),
                    tenants=frozenset({"acme"}),
                    tiers=(
                        (
                            SmartHost(NextHop("smtp1.relay.example", 587, verp=True)),
                            SmartHost(NextHop("192.0.2.9", 465, TlsMode.IMPLICIT)),
                        ),
                        (SmartHost(NextHop("relay.example", chunking=False), by_mx=True),),
                        (SmartHost(NextHop("2001:db8::9")),),
                    ),
                ),
            )
        ),
        OwnNames(frozenset({"mx2.example.org"}), Networks.of(["192.0.2.0/28", "2001:db8::/64"])),
        Networks.of(["10.0.0.0/8"]),
        (AddressFamily.IPV6, AddressFamily.IPV4),
        "xn--bcher-kva.example",
    )


def test_name_servers_are_read_with_their_ports(tmp_path: Path) -> None:
    resolver = section(tmp_path, WHOLE).resolver

    assert resolver.timeout == timedelta(seconds=3)
    assert resolver.addresses() == [
        ("10.96.0.10", 53),
        ("127.0.0.1", 5353),
        ("2001:db8::53", 53),
        ("::1", 54),
    ]


@pytest.mark.parametrize("text", ["{}", "rules: []"])
def test_an_empty_section_leaves_all_to_mx_records(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == RoutingPlan(RoutingTable())


def test_a_hop_without_a_port_has_that_of_its_tls(tmp_path: Path) -> None:
    text = "rules: [{name: a, hops: [{host: a.example, tls: {mode: Implicit}}]}]"

    assert read(tmp_path, text).table.rules[0].tiers[0][0].next_hop.port == 465


def test_a_hop_may_be_a_unix_socket(tmp_path: Path) -> None:
    text = "rules: [{name: a, hops: [{socket: /run/lmtp}]}]"
    hop = NextHop.at_socket(Path("/run/lmtp"))

    assert read(tmp_path, text).table.rules[0].tiers == ((SmartHost(hop),),)


A = "hops: [{host: a.example}]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"rules: [{{{A}}}]", "rules[0].name: this field is required"),
        (f"rules: [{{name: a b, {A}}}]", "rules[0].name: "),
        (
            f"rules: [{{name: a, domain: [b], {A}}}]",
            "rules[0].domain: there is no such field: did you mean domains?",
        ),
        ("rule: []", "rule: there is no such field: did you mean rules?"),
        (
            "postmaster_domain: a.b",
            "postmaster_domain: there is no such field: did you mean postmasterDomain?",
        ),
        (
            "rules: [{name: a, hops: [{}]}]",
            "rules[0].hops[0]: give either host or socket",
        ),
        (
            "rules: [{name: a, hops: [{host: b.example, socket: /s}]}]",
            "rules[0].hops[0]: give either host or socket",
        ),
        (
            "rules: [{name: a, hops: [{socket: /s, tls: {mode: None}, lookUp: MX}]}]",
            "a Unix socket has no port, no TLS and no login: leave out lookUp",
        ),
        ("rules: [{name: a, hops: [{socket: s}]}]", "write the whole path"),
        (
            f"rules: [{{name: a, hops: [{{socket: /{'a' * 107}}}]}}]",
            "the path of a Unix socket has 107 octets at most",
        ),
        ("rules: [{name: a}]", "rules[0]: give either mx ({} for the defaults) or hops, a list"),
        (f"rules: [{{name: a, mx: {{}}, {A}}}]", "rules[0]: give either mx"),
        (
            "rules: [{name: a, hops: [{host: a.b, teir: 2}]}]",
            "rules[0].hops[0].teir: there is no such field: did you mean tier?",
        ),
        (
            "rules: [{name: a, hops: [{host: a.b, tier: 4}]}]",
            "rules[0].hops[0].tier: Input should be less than or equal to 3",
        ),
        ("rules: [{name: a, hops: [{host: a.b, tier: true}]}]", "rules[0].hops[0].tier: "),
        ("rules: [{name: a, hops: [{host: a.b, port: true}]}]", "rules[0].hops[0].port: "),
        ("rules: [{name: a, hops: [{host: a.b, port: '25'}]}]", "rules[0].hops[0].port: "),
        ("rules: [{name: a, hops: [{host: a.b, verp: 1}]}]", "rules[0].hops[0].verp: "),
        ("rules: [{name: a, hops: []}]", "rules[0].hops: list one at least"),
        (
            "rules: [{name: a, hops: [{host: relay}]}]",
            "rules[0].hops[0].host: write a full name, such as relay.mail.svc.cluster.local",
        ),
        (
            "rules: [{name: a, hops: [{host: a.b, port: 70000}]}]",
            "rules[0].hops[0].port: Input should be less than or equal to 65535",
        ),
        (
            "rules: [{name: a, hops: [{host: a.b, tls: {mode: Always}}]}]",
            "rules[0].hops[0].tls.mode: Input should be 'None', 'Opportunistic'",
        ),
        (
            "rules: [{name: a, hops: [{host: 192.0.2.1, lookUp: MX}]}]",
            "rules[0].hops[0]: an address has no MX records",
        ),
        (
            "rules: [{name: a, hops: [{host: a.b, lookUp: MX}, {host: c.d}]}]",
            "rules[0]: a smart host with lookUp: MX stands alone",
        ),
        (
            f"rules: [{{name: a, domains: ['a.*.b'], {A}}}]",
            "rules[0].domains[0]: write a domain (example.org), all below it",
        ),
        (
            f"rules: [{{name: a, domains: ['a b'], {A}}}]",
            "rules[0].domains[0]: a b is no domain name",
        ),
        (f"rules: [{{name: a, domains: [], {A}}}]", "rules[0].domains: "),
        (
            f"rules: [{{name: a, senders: [example.org], {A}}}]",
            "rules[0].senders[0]: write a mailbox (a@example.org), a domain (@example.org), or <>",
        ),
        (
            f"rules: [{{name: a, {A}}}, {{name: a, domains: [b.c], mx: {{}}}}]",
            "two rules have the name a",
        ),
        (
            f"rules: [{{name: a, {A}}}, {{name: b, domains: [b.c], mx: {{}}}}]",
            "rule b is never reached, because a before it matches all its mail",
        ),
        (
            "own: {networks: [10.0.0.1/8]}",
            "own.networks[0]: '10.0.0.1/8' has bits beyond its prefix: write 10.0.0.0/8",
        ),
        ("own: {hosts: [mx]}", "own.hosts[0]: write a full name"),
        ("families: []", "families: "),
        ("families: [ipv4]", "families[0]: Input should be 'IPv4' or 'IPv6'"),
        (
            "resolver: {servers: [ns.example.org]}",
            "resolver.servers[0]: write the address of a name server",
        ),
        ("resolver: {servers: ['192.0.2.1:99999']}", "resolver.servers[0]: "),
        ("resolver: {timeout: 0s}", "resolver.timeout: "),
        ("resolver: {timeout: soon}", "resolver.timeout: 'soon' is not a duration"),
        ("postmasterDomain: 'a b'", "postmasterDomain: a b is no domain name"),
        ("- rules", "write fields, as `"),
        ("rules: [{name: a, name: b}]", "name stands twice"),
        ("rules: [", "is not YAML"),
        ("rules: [{name: {{ name }}, mx: {}}]", "put quotes around text that begins with {"),
        ("? [a]\n: b", "the name of a field is a list or a mapping"),
        ("rules: [{name: a, tenants: [2026-13-01], mx: {}}]", "is not YAML: month must be"),
        ("rules: [{name: a, domains: [*.a.b]}]", "put quotes around patterns that begin with"),
    ],
)
def test_what_cannot_be_used_is_named_with_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        read(tmp_path, text)

    assert message in refused.value.explain()
    assert "routes.yaml" in refused.value.explain()


def test_every_problem_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as refused:
        read(tmp_path, "{families: [x], rules: [{name: a, hops: [{host: relay, prot: 5}]}]}")

    assert [each.partition(": ")[0] for each in str(refused.value).split("; ")] == [
        str(tmp_path / "routes.yaml"),
        "routing.rules[0].hops[0].prot",
        "routing.families[0]",
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    for name in ("missing", "binary"):
        with pytest.raises(InvalidSettings, match=f"{name} cannot be read"):
            read_delivery(tmp_path / name)
