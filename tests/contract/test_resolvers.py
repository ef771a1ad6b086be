"""The `Resolver` contract in memory, and over dnspython to a scripted name server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from contract.resolver_contract import FAILING, ZONE, ResolverContract
from postroad.adapters.dns.caching import CachingResolver
from postroad.adapters.dns.resolver import DnsResolver, NameServer
from postroad.adapters.memory.clock import ManualClock
from postroad.adapters.memory.resolver import MemoryResolver
from postroad.ports.resolver import Resolver
from support.dns_server import DnsServer, running

SCRIPT = "\n".join(" ".join(record) for record in ZONE) + f"\n{FAILING} !SERVFAIL"


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
            else:
                made.add(name, value)
        made.fail(FAILING)
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
