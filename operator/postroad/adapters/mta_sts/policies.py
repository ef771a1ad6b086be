"""Finds the policy that holds for a domain: from what is kept, else from DNS and by HTTPS.

Source: RFC 8461 3.1, 3.3, 5.1; ADR 0059.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from postroad.adapters.mta_sts.fetching import PolicyNotFetched
from postroad.adapters.mta_sts.keeping import MOST_FILES, PolicyFolder
from postroad.ports.clock import Clock
from postroad.ports.delivery.resolver import Resolver
from postroad.routing.answers import Question, RecordType
from postroad.routing.sts import DomainPolicy, KeptPolicy, StsPolicy, record_id
from postroad.telemetry.metrics import STS_FETCHES

MOST_DOMAINS = MOST_FILES
"""Whose policies, or failures to fetch one, are in memory; those go first that were looked up
longest ago."""

PAUSE = timedelta(minutes=5)
"""After a fetch that failed, for the same record. Source: RFC 8461 3.3."""

Fetch = Callable[[str], Awaitable[StsPolicy]]
"""Fetches the policy of a domain. Raises: PolicyNotFetched."""


class FetchedPolicies:
    """The port `StsPolicies`. `folder`: where policies survive a restart; None: nowhere. Needs a
    running event loop."""

    def __init__(
        self, resolver: Resolver, fetch: Fetch, clock: Clock, folder: PolicyFolder | None = None
    ) -> None:
        self._resolver, self._fetch, self._clock, self._folder = resolver, fetch, clock, folder
        self._kept: OrderedDict[str, KeptPolicy] = OrderedDict()
        self._failed: OrderedDict[str, tuple[str, timedelta, str]] = OrderedDict()
        """Domain → the id of its record when a fetch failed, when the next one may begin by the
        clock's elapsed time, and why."""
        self._looking: dict[str, asyncio.Task[DomainPolicy]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def find(self, domain: str) -> DomainPolicy:
        """Return the policy of a domain (see the port)."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)
        task = self._looking.get(domain)
        if task is None:
            task = self._looking[domain] = asyncio.create_task(self._find(domain))
            task.add_done_callback(lambda _: self._looking.pop(domain, None))
        return await asyncio.shield(task)

    async def _read(self) -> None:
        if self._folder is not None:
            found = await asyncio.to_thread(self._folder.read, self._clock.now())
            self._kept.update(found)

    async def _find(self, domain: str) -> DomainPolicy:
        (answer,) = await self._resolver.look_up(Question(f"_mta-sts.{domain}", RecordType.TXT))
        record = record_id(answer.texts)
        kept = self._valid(domain)
        if record is None and kept is None:
            return DomainPolicy(None, answer.reason or "no record")
        if kept is not None and not kept.is_to_be_fetched(record, self._clock.now()):
            return self._known(kept, "kept")
        assert record is not None
        failure = await self._refresh(domain, record)
        kept = self._valid(domain)
        if kept is None:
            return DomainPolicy(None, f"none: {failure}")
        return self._known(kept, f"kept: {failure}" if failure else "fetched")

    def _valid(self, domain: str) -> KeptPolicy | None:
        kept = self._kept.get(domain)
        if kept is not None and kept.is_over(self._clock.now()):
            del self._kept[domain]
            return None
        if kept is not None:
            self._kept.move_to_end(domain)
        return kept

    async def _refresh(self, domain: str, record: str) -> str:
        """Fetch the policy; return why that failed, empty where it did not."""
        failed = self._failed.get(domain)
        if failed is not None and failed[0] == record and self._clock.elapsed() < failed[1]:
            return failed[2]
        try:
            policy = await self._fetch(domain)
        except PolicyNotFetched as error:
            STS_FETCHES.labels("failed").inc()
            self._failed[domain] = record, self._clock.elapsed() + PAUSE, str(error)
            _shorten(self._failed)
            return str(error)
        STS_FETCHES.labels("fetched").inc()
        self._failed.pop(domain, None)
        kept = self._kept[domain] = KeptPolicy(record, policy, self._clock.now())
        self._kept.move_to_end(domain)
        forgotten = _shorten(self._kept)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.write, domain, kept)
            await asyncio.to_thread(self._folder.delete, forgotten)
        return ""

    @staticmethod
    def _known(kept: KeptPolicy, why: str) -> DomainPolicy:
        hosts = ", ".join(kept.policy.exchangers)
        return DomainPolicy(kept.policy, f"{kept.policy.mode} ({why}): {hosts}")


def _shorten(entries: OrderedDict[str, Any]) -> list[str]:
    """Forget what is beyond the bound; return its domains."""
    return [entries.popitem(last=False)[0] for _ in range(len(entries) - MOST_DOMAINS)]
