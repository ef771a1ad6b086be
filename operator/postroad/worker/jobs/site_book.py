"""The sites that a worker has had mail for: their last replies, and what they do now."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.domain.delivery.sites import SiteState, SiteView
from postroad.domain.mail.mail import Outcome, OutcomeKind, domain_of
from postroad.domain.smtp.bounces import bounce_of
from postroad.domain.values.instants import rfc3339
from postroad.scheduling.destination_records import DestinationView
from postroad.worker.jobs.job_table import OpenJob
from postroad.worker.route_finder import DeliveryRoute

MAX_SITES = 10_000

MAX_DOMAINS = 20_000
"""Of all sites together; the ones that had mail last are known."""


@dataclass(slots=True)
class _Known:
    """One site."""

    route: DeliveryRoute
    reply: str | None = None
    replied_at: datetime | None = None


class SiteBook:
    """The sites, those that had mail last at the end."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._domains: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Sites with domains."""

    def seen(self, route: DeliveryRoute, recipients: Iterable[str]) -> None:
        """Record that there is mail for a site."""
        for domain in set(map(domain_of, recipients)):
            key = (route.name, domain)
            self._domains[key] = None
            self._domains.move_to_end(key)
        while len(self._domains) > MAX_DOMAINS:
            self._domains.popitem(last=False)
        known = self._known.get(route.name)
        if known is None:
            self._known[route.name] = _Known(route)
        else:
            known.route = route
            self._known.move_to_end(route.name)
        while len(self._known) > MAX_SITES:
            self._known.popitem(last=False)

    def domains(self, site: str) -> list[str]:
        """Return the domains whose mail went to a site, those that had some last at the end."""
        return [domain for name, domain in self._domains if name == site]

    def destinations(self, site: str) -> Iterable[str]:
        """Return the scheduler's names of a site's destinations."""
        known = self._known.get(site)
        return () if known is None else known.route.destinations

    def replied(self, site: str, outcomes: Iterable[Outcome], now: datetime) -> None:
        """Record what a site replied: of several outcomes, one that was no delivery."""
        if (known := self._known.get(site)) is None:
            return
        chosen = None
        for each in outcomes:
            if chosen is None or each.kind is not OutcomeKind.DELIVERED:
                chosen = each
        if chosen is not None:
            known.reply, known.replied_at = chosen.text, now

    def views(
        self,
        jobs: Iterable[OpenJob],
        look_at: Callable[[str], DestinationView],
        reason: Callable[[Iterable[str]], str | None],
        now: tuple[datetime, timedelta],
    ) -> Iterator[SiteView]:
        """Yield what each site does. `reason`: why the last connection to one of several
        destinations ended; `now` by both clocks."""
        waiting, at_work = dict[str, int](), dict[str, int]()
        for job in jobs:
            counts = waiting if job.connection is None else at_work
            counts[job.route.name] = counts.get(job.route.name, 0) + 1
        for site, known in self._known.items():
            found = [look_at(each) for each in known.route.destinations]
            connections = sum(each.connections for each in found)
            backoffs = [each.backoff_until for each in found]
            until = None
            if backoffs and not connections and all(each is not None for each in backoffs):
                wall, elapsed = now
                first = min(each for each in backoffs if each is not None)
                until = wall + timedelta(seconds=first) - elapsed
            lost = reason(known.route.destinations)
            reply = known.reply if lost is None else lost
            yield SiteView(
                site,
                _state_of(until, at_work.get(site, 0), waiting.get(site, 0)),
                connections,
                waiting.get(site, 0),
                at_work.get(site, 0),
                rfc3339(until),
                None if reply is None else shown_reply(reply),
                rfc3339(known.replied_at) if lost is None else None,
            )


def _state_of(until: datetime | None, at_work: int, waiting: int) -> SiteState:
    if until is not None:
        return SiteState.BACKING_OFF
    if at_work:
        return SiteState.ACTIVE
    return SiteState.WAITING if waiting else SiteState.IDLE


def shown_reply(text: str) -> str:
    """Return the codes of a reply and its words without addresses, hosts and numbers."""
    bounce = bounce_of(text)
    codes = text[: len(text) - len(text.lstrip("0123456789. "))].strip()
    return f"{codes} {bounce.words}".strip()
