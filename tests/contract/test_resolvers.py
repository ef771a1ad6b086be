"""The `Resolver` contract in memory, and over dnspython to a scripted name server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from contract.resolver_contract import FAILING, VALIDATED, ZONE, ResolverContract, ask
from postroad.adapters.dns import CachingResolver, DnsResolver, NameServer
from postroad.domain.values.networks import NO_ADDRESS
from postroad.ports.delivery import Resolver
from postroad.routing.answers import MxRecord, RecordType, TlsaRecord
from support.dns_server import DnsServer, running
from support.memory.clock import ManualClock
from support.memory.connections import MemoryResolver

SCRIPT = "\n".join(" ".join(record) for record in ZONE) + f"\n{FAILING} !SERVFAIL"
SCRIPT += "".join(f"\n{name} AD" for name in VALIDATED)


class TestMemoryResolver(ResolverContract):
    @pytest.fixture
    def resolver(self) -> Resolver:
        made = MemoryResolver()
        for name, kind, value in ZONE:
            if kind == "CNAME":
                made.add(name, cname=value)
            elif kind == "MX":
                preference, host = value.split()
                made.add(name, (int(preference), host.rstrip(".")))
            elif kind == "TXT":
                strings = value.replace("\\059", ";")[1:-1].split('" "')
                made.add_text(name, "".join(strings))
            elif kind == "TLSA":
                usage, selector, matching, data = value.split()
                record = TlsaRecord(int(usage), int(selector), int(matching), bytes.fromhex(data))
                made.add_certificate(name, record)
            else:
                made.add(name, value)
        made.fail(FAILING)
        made.validate(*VALIDATED)
        return made


class TestDnsResolver(ResolverContract):
    @pytest.fixture
    async def resolver(self) -> AsyncIterator[Resolver]:
        async with running(DnsServer(SCRIPT)) as server:
            yield DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=10))


class TestCachingResolver(TestDnsResolver):
    @pytest.fixture
    async def resolver(self) -> AsyncIterator[Resolver]:
        async with running(DnsServer(SCRIPT)) as server:
            asked = DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=10))
            yield CachingResolver(asked, ManualClock())


async def test_of_very_many_records_the_preferred_ones_are_kept() -> None:
    """A cache holds a hundred thousand answers, for domains that senders choose."""
    many = [f"many.example MX {n % 3} mx{n:03}.example" for n in range(400)]
    many += [f"many.example A 192.0.2.{n}" for n in range(200)]
    async with running(DnsServer("\n".join(many))) as server:
        resolver = DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=10))

        mx = await ask(resolver, "many.example", RecordType.MX)
        addresses = await ask(resolver, "many.example", RecordType.A)

    assert mx.exchanges == tuple(MxRecord(0, f"mx{n:03}.example") for n in range(0, 300, 3))
    assert len(addresses.addresses) == 100


async def test_the_flag_of_a_server_elsewhere_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(DnsServer(SCRIPT)) as server:
        resolver = DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=10))
        trusted = await ask(resolver, "mx1.example.org", RecordType.A)
        monkeypatch.setattr("postroad.adapters.dns.LOOPBACK", NO_ADDRESS)
        elsewhere = await ask(resolver, "mx1.example.org", RecordType.A)

        assert all(each.wants_ad for each in server.received)
    assert (trusted.is_validated, elsewhere.is_validated) == (True, False)
    assert elsewhere.addresses == trusted.addresses
