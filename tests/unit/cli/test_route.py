"""`postroad route`: what it prints, and how it exits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.cli import main
from support.dns_server import DnsServer, running

SCRIPT = """
    example.org      MX 10 mx1.example.org
    example.org      MX 20 mx2.example.org
    mx1.example.org  A 192.0.2.1
    mx2.example.org  A 192.0.2.2
    mx2.example.org  AAAA 2001:db8::2
    null.example     MX 0 .
    down.example     !SERVFAIL
"""


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of routes that names a scripted name server, which serves in another thread."""
    server, loop = DnsServer(SCRIPT), asyncio.new_event_loop()
    ready, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with running(server):
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    file = tmp_path_factory.mktemp("routes") / "routes.yaml"
    file.write_text(
        "routing:\n"
        f"  resolver: {{servers: ['{server.address}']}}\n"
        "  rules:\n"
        "  - {name: acme, tenants: [acme], hops: [{host: 192.0.2.9, port: 587}]}\n"
        "  - {name: bounces, senders: [<>], domains: [b.example], hops: [{host: 192.0.2.8}]}\n"
    )
    yield file
    loop.call_soon_threadsafe(end.set)
    thread.join(30)
    loop.close()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["route", *map(str, arguments)])


def test_the_next_hops_come_in_order_with_the_reasons(routes: Path) -> None:
    result = run("a@Example.org", "--delivery", routes)

    assert result.exit_code == 0, result.output
    first, one, two, because, *explanations = result.output.splitlines()
    assert first.startswith("a@Example.org: site mx1.example.org:25+1.")
    assert first.endswith(", for 2m")
    assert one == "  1  mx1.example.org:25  192.0.2.1  (smtp, tls opportunistic)"
    assert two == "  2  mx2.example.org:25  192.0.2.2, 2001:db8::2  (smtp, tls opportunistic)"
    assert because == "  because"
    assert sorted(explanations) == [
        "    example.org MX: mx1.example.org (10), mx2.example.org (20); for 5m",
        "    mx1.example.org: 192.0.2.1",
        "    mx2.example.org: 192.0.2.2, 2001:db8::2",
        "    table: no rule matches: the domain decides",
    ]


def test_json_has_the_same(routes: Path) -> None:
    result = run("example.org", "--delivery", routes, "--tenant", "acme", "--json")

    assert json.loads(result.output) == {
        "address": "example.org",
        "outcome": "route",
        "site": "192.0.2.9:587.b57ee2b4",
        "next_hops": [
            {
                "tier": 1,
                "host": "192.0.2.9",
                "port": 587,
                "socket": None,
                "protocol": "smtp",
                "tls": "opportunistic",
                "by_tlsa": False,
                "addresses": ["192.0.2.9"],
            }
        ],
        "ttl_seconds": None,
        "explanations": [
            {"subject": "table", "text": "rule acme matches: tenant acme"},
            {"subject": "192.0.2.9", "text": "is an address"},
        ],
    }


@pytest.mark.parametrize(
    ("addresses", "exit_code", "outcomes"),
    [
        (["a@example.org"], 0, ["route"]),
        (["a@null.example"], 1, ["failed"]),
        (["a@down.example"], 75, ["deferred"]),
        (["a@down.example", "a@example.org", "a@null.example"], 1, ["deferred", "route", "failed"]),
        (["postmaster"], 75, ["deferred"]),
        (["[127.0.0.1]"], 1, ["failed"]),
    ],
)
def test_the_exit_code_is_that_of_the_worst_address(
    routes: Path, addresses: list[str], exit_code: int, outcomes: list[str]
) -> None:
    result = run(*addresses, "--delivery", routes, "--json")

    lines = [json.loads(line) for line in result.output.splitlines()]
    assert result.exit_code == exit_code
    assert [line["outcome"] for line in lines] == outcomes


@pytest.mark.parametrize("sender", [(), ("--sender", "<>"), ("--sender", "")])
def test_the_null_sender_is_the_default(routes: Path, sender: tuple[str, ...]) -> None:
    assert "sender <>" in run("a@b.example", "--delivery", routes, *sender).output
    assert "sender <>" not in run("a@b.example", "--delivery", routes, "--sender", "a@b").output


def test_a_reply_is_printed_with_the_reason(routes: Path) -> None:
    result = run("a@null.example", "--delivery", routes)

    assert result.output.startswith(
        "a@null.example: failed: 556 5.1.10 the domain null.example accepts no mail (null MX)\n"
    )


@pytest.mark.parametrize("address", ["a b", "@example.org", "a@", "a\x1b@b"])
def test_what_is_no_address_is_a_usage_error(routes: Path, address: str) -> None:
    assert run(address, "--delivery", routes).exit_code == 2


def test_a_file_that_cannot_be_used_is_refused_before_any_question(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("routing: {rules: [{name: a}]}")

    result = run("a@example.org", "--delivery", file)

    assert result.exit_code == 1
    assert "routing.rules[0]: give either mx" in result.output


@pytest.mark.parametrize("text", ["signing: []", "relay: {host: relay.example}"])
def test_a_file_without_routes_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "delivery.yaml"
    file.write_text(text)

    result = run("a@x.example", "--delivery", file)

    assert result.exit_code != 0
    assert "no section routing" in result.output
