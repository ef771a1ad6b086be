"""Routes follow other settings, and keep what is still true of DNS and of MTA-STS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroad.cli.processes.delivering import RoutesBySettings
from postroad.delivery_settings.routing import RoutingSettings
from postroad.errors import InvalidSettings
from postroad.routing.tables import RouteRequest
from postroad.worker.route_finder import DeliveryRoute
from support.dns_server import DnsServer, running

ONE = RouteRequest("one.example")
RECORDS = "one.example MX 10 mx.one.example; mx.one.example A 192.0.2.1"
SMART = {"name": "a", "hops": [{"host": "192.0.2.9"}]}


def settings(dns: DnsServer, **more: Any) -> RoutingSettings:
    return RoutingSettings.model_validate({"resolver": {"servers": [dns.address]}} | more)


async def site_of(routes: RoutesBySettings) -> str:
    found = await routes.find(ONE)
    assert isinstance(found, DeliveryRoute)
    assert routes.known(ONE) is found
    return found.name


async def test_other_rules_hold_at_once_and_answers_of_dns_stay() -> None:
    async with running(DnsServer(RECORDS)) as dns:
        routes = RoutesBySettings(settings(dns), None)
        by_mx = await site_of(routes)
        asked = len(dns.received)

        assert not routes.replace(settings(dns))
        assert routes.known(ONE) is not None
        assert routes.replace(settings(dns, rules=[SMART]))

        assert routes.known(ONE) is None
        assert (await site_of(routes)).startswith("192.0.2.9")
        assert routes.replace(settings(dns))
        assert await site_of(routes) == by_mx
        assert len(dns.received) == asked


async def test_other_name_servers_are_asked_from_then_on() -> None:
    async with running(DnsServer(RECORDS)) as dns, running(DnsServer()) as other:
        routes = RoutesBySettings(settings(dns), None)
        await site_of(routes)

        assert routes.replace(settings(other))
        await routes.find(ONE)

        assert [each.name for each in other.received] == ["one.example"]


async def test_policies_stay_over_changes_of_rules_and_of_name_servers(tmp_path: Path) -> None:
    """Without a folder they are in memory alone, and forgetting one would lower its security."""
    published = {"mx": {"tls": {"honours": ["STS"]}}}
    async with running(DnsServer(RECORDS)) as dns, running(DnsServer(RECORDS)) as other:
        routes = RoutesBySettings(settings(dns, **published), None)
        before = routes._sts
        assert before

        assert routes.replace(settings(other, rules=[SMART]))
        assert routes.replace(
            settings(other, rules=[SMART | {"domains": ["b.example"]}], **published)
        )

        assert routes._sts is before
        await site_of(routes)
        assert ("_mta-sts.one.example", "TXT") in {each[:2] for each in other.received}
        kept = {"sts": {"folder": str(tmp_path / "policies")}}
        assert routes.replace(settings(other, **published, **kept))
        assert routes._sts is not before


async def test_settings_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bad = {"mx": {"tls": {"honours": ["STS"]}}, "sts": {"folder": str(tmp_path / "file" / "x")}}
    async with running(DnsServer(RECORDS)) as dns:
        routes = RoutesBySettings(settings(dns), None)
        by_mx = await site_of(routes)

        with pytest.raises(InvalidSettings, match="the folder of MTA-STS policies"):
            routes.replace(settings(dns, rules=[SMART], **bad))

        assert await site_of(routes) == by_mx
        assert routes.replace(settings(dns, rules=[SMART]))
