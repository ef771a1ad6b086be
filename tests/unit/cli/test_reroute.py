"""`postroad reroute`: what it takes, and where what it did is shown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.shared_state import DirectorySharedState
from postroad.domain.delivery.sites import SiteState, SiteView, published_views
from postroad.ports.delivery import Topic
from unit.cli.test_sites import MINUTE, run, store

__all__ = ["store"]

FOR = ("--for", "2h", "--reason", "it is  broken")


def publish(store: Path, worker: str, text: str) -> None:
    shared_state = DirectorySharedState(store / "shared_state", MachineClock())
    asyncio.run(shared_state.publish(Topic.WORKERS, worker, text, MINUTE))


def test_a_site_is_rerouted_shown_and_goes_its_own_way_again(store: Path) -> None:
    view = SiteView("mx.example", SiteState.ACTIVE, 2, 5, 1)
    publish(store, "w1", published_views([view], ["backup"]))

    made = run(store, "reroute", "--site", "mx.example", "--to", "backup", *FOR)
    assert made.exit_code == 0, made.output
    assert made.output.startswith("mail for the site mx.example goes to rule backup until 20")
    assert "no worker shows" not in made.output
    elsewhere = run(store, "reroute", "--site", "elsewhere", "--to", "[2001:db8::1]:2525", *FOR)
    assert "goes to [2001:db8::1]:2525 (tls opportunistic) until" in elsewhere.output
    assert "no worker shows a site of this name" in elsewhere.output
    to = ("--to", "relay.example:587", "--tls", "required")
    run(store, "reroute", "--domain", "BÜCHER.example", *to, *FOR)

    lines = [json.loads(line) for line in run(store, "sites", "--json").output.splitlines()]
    assert [(each["site"], (each["rerouted"] or {}).get("reason")) for each in lines] == [
        ("mx.example", "it is broken"),
        ("elsewhere", "it is broken"),
        (None, "it is broken"),
    ]
    assert lines[0]["rerouted"]["to"] == "rule backup"
    assert (lines[0]["worker"], lines[0]["waiting"]) == ("w1", 5)
    assert lines[2]["domain"] == "xn--bcher-kva.example"
    assert lines[2]["rerouted"]["to"] == "relay.example:587 (tls required)"
    active, _, domain = run(store, "sites").output.splitlines()[1:]
    assert active.startswith("active ")
    assert " mx.example " in active
    assert "rerouted to rule backup until" in active
    assert domain.startswith("rerouted ")
    assert "domain xn--bcher-kva.example " in domain
    assert "rerouted to relay.example:587 (tls required) until" in domain

    ended = run(store, "reroute", "--site", "mx.example", "--end")
    assert ended.output == "mail for the site mx.example goes by its route within 5s\n"
    again = run(store, "reroute", "--site", "mx.example", "--end")
    assert again.exit_code == 1
    assert "the site mx.example is not rerouted" in again.output


def test_route_shows_the_other_target(store: Path) -> None:
    to = ("--to", "[192.0.2.7]:2525")
    run(store, "reroute", "--domain", "one.example", *to, *FOR)
    found = run(store, "route", "a@one.example")

    assert found.exit_code == 0
    assert "  1  192.0.2.7:2525  192.0.2.7  (smtp, tls opportunistic)" in found.output
    assert "domain one.example: rerouted to" in found.output
    assert "by an administrator: it is broken" in found.output


def test_workers_with_a_program_obey_no_reroute_so_it_is_refused(store: Path) -> None:
    publish(store, "w1", published_views([], has_program=True))
    to = ("--to", "[192.0.2.7]:2525")
    refused = run(store, "reroute", "--site", "a", *to, *FOR)
    assert refused.exit_code == 1
    assert "hand all mail to a program, which obeys no reroute" in refused.output
    assert run(store, "sites", "--json").output == ""

    publish(store, "w2", published_views([]))
    assert run(store, "reroute", "--site", "a", *to, *FOR).exit_code == 0, "one obeys"


def test_a_rule_that_no_worker_has_is_refused(store: Path) -> None:
    unknown = run(store, "reroute", "--site", "a", "--to", "backup", *FOR)
    assert "no worker runs that shows whether there is a rule backup" in unknown.output
    publish(store, "w1", published_views([], ["other"]))
    publish(store, "w2", published_views([], []))
    refused = run(store, "reroute", "--site", "a", "--to", "backup", *FOR)
    assert refused.exit_code == 1
    assert "no worker has a rule backup" in refused.output

    older = json.dumps({"sites": [], "more": 0})
    publish(store, "w3", older)
    assert run(store, "reroute", "--site", "a", "--to", "backup", *FOR).exit_code == 0
    publish(store, "w3", published_views([], (f"r{n}" for n in range(200))))
    assert run(store, "reroute", "--site", "a", "--to", "backup", *FOR).exit_code == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--to", "backup", *FOR), "either --site or --domain"),
        (("--site", "a", "--domain", "b.example", "--to", "r", *FOR), "either --site or --domain"),
        (("--site", "a"), "give --to, --for and --reason, or --end"),
        (("--site", "a", "--end", "--to", "r"), "--end stands beside"),
        (("--site", "a\x07", "--to", "r", *FOR), "no name of a site"),
        (("--domain", "a b", "--to", "r", *FOR), "a b is no domain name"),
        (("--site", "a", "--to", "relay:25", *FOR), "mail cannot go to relay:25: write a full"),
        (("--site", "a", "--to", "x y:25", *FOR), "is not a host and port"),
        (("--site", "a", "--to", "rule\n", *FOR), "is not a host and port"),
        (("--site", "a", "--to", "h.example:0", *FOR), "mail cannot go to h.example:0"),
        (("--site", "a", "--to", "h.example:70000", *FOR), "is not a host and port"),
        (("--site", "a", "--to", "r", "--tls", "none", *FOR), "the rule r has TLS of its own"),
        (("--site", "a", "--to", "r", "--for", "0s", "--reason", "x"), "rerouted for 1s to 720h"),
        (("--site", "a", "--to", "r", "--for", "1h", "--reason", " "), "1 to 200 printable"),
    ],
)  # fmt: skip
def test_what_makes_no_reroute_is_refused(
    store: Path, options: tuple[str, ...], problem: str
) -> None:
    result = run(store, "reroute", *options)

    assert result.exit_code != 0
    assert problem in result.output
    assert not run(store, "sites", "--json").output
