"""The sites of a run: a sink each, which answers as the addresses ask, and a moment late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kills.ledger import ItemProgress, Transmission
from kills.mails import LATER, LATER_AT_END, REFUSED, REFUSED_AT_END, domain_of_site
from kills.reports import Reports
from postroad.smtp.client.jobs import MAX_SERIES
from support.sink import EXTENSIONS, Delivery, Sink

QUICKEST, SLOWEST = 0.005, 0.03
"""Seconds until a site answers a mail that it has kept: kills find mails in between."""

CHUNKED = 5
"""Each fifth site offers CHUNKING, by which a connection has several mails under way."""


class Site(Sink):
    """One site."""

    def __init__(self, number: int, ledger: ItemProgress, reports: Reports) -> None:
        self.is_chunked = number % CHUNKED == CHUNKED - 1
        extensions = (*EXTENSIONS, "CHUNKING") if self.is_chunked else EXTENSIONS
        super().__init__(self._rule, extensions=extensions)
        self.number, self._ledger, self._reports = number, ledger, reports
        draw = random.Random(number)
        self.answer_after = lambda: draw.uniform(QUICKEST, SLOWEST)
        self._deferred = set[str]()

    def keep(self, delivery: Delivery) -> None:
        """Note a mail in the ledger, and forget it: a run has hundreds of thousands."""
        name, keys = "", tuple((delivery.sender, each) for each in delivery.recipients)
        if not delivery.sender:
            (sender,) = delivery.recipients
            name = self._reports.arrive(sender, delivery.content)
        most_open = MAX_SERIES if self.is_chunked else 1
        self._ledger.arrive(Transmission(self.number, delivery.connection, keys, name, most_open))
        self.commands.clear()

    def _rule(self, verb: str, argument: str) -> str | None:
        address = argument.partition("<")[2].partition(">")[0] if verb == "RCPT" else argument
        if verb == "RCPT" and address.startswith(REFUSED):
            return "550 5.1.1 no such mailbox"
        if verb == "RCPT" and address.startswith(LATER) and self._is_first(address):
            return "450 4.2.1 mailbox busy"
        if verb == "DOT" and address.startswith(REFUSED_AT_END):
            return "554 5.6.0 this content is not taken"
        if verb == "DOT" and address.startswith(LATER_AT_END) and self._is_first(address):
            return "451 4.3.0 no room at the moment"
        return None

    def _is_first(self, address: str) -> bool:
        is_first = address not in self._deferred
        self._deferred.add(address)
        return is_first


@asynccontextmanager
async def running_sites(
    count: int, ledger: ItemProgress, reports: Reports
) -> AsyncIterator[Sequence[Site]]:
    """Run sites, which note in the ledger what they accept."""
    async with AsyncExitStack() as stack:
        sites = [Site(number, ledger, reports) for number in range(count)]
        for site in sites:
            await stack.enter_async_context(site)
        yield sites


async def until_quiet(sites: Sequence[Site]) -> None:
    """Wait until the sites have read all that a killed process had sent."""
    while any(site.sessions for site in sites):
        await asyncio.sleep(0.002)


def write_routes(file: Path, sites: Sequence[Site]) -> None:
    """Write the file of delivery by which mail goes to these sites."""
    rules = "".join(
        f"    - {{name: site{site.number}, domains: [{domain_of_site(site.number)}],"
        f" hops: [{{host: 127.0.0.1, port: {site.port}, tls: {{mode: None}}}}]}}\n"
        for site in sites
    )
    file.write_text(f"routing:\n  rules:\n{rules}")
