"""The next hops that deferred recipients lately, so that the next attempt goes to another one.

Attempts go in turns: one to the next hops that did not defer the recipient yet, in the order of the
tiers, one in the usual order. So a backup gets the mail at the second attempt, and a server that
keeps a grey list sees the sender again at the third, also where there are many others.
In memory alone: what another process knows costs a recipient one more attempt in the usual order.
Source: RFC 5321 5.1; ADR 0078.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.scheduling.events import Site
from postroad.worker.route_finder import DeliveryRoute

MAX_REMEMBERED = 20_000
"""Recipients of mails; those that were deferred longest ago are forgotten first."""


class Deferrals:
    """By mail and recipient, the destinations that deferred it, in their order."""

    def __init__(self) -> None:
        self._by: OrderedDict[tuple[UUID, str], tuple[str, ...]] = OrderedDict()

    def on_outcomes(
        self, mail: UUID, route: DeliveryRoute, destination: str, outcomes: Mapping[str, Outcome]
    ) -> None:
        """Note what became of recipients at a destination of a route."""
        if len(route.hops) == 1:
            return
        for recipient, outcome in outcomes.items():
            before = self._by.pop((mail, recipient), ())
            by = (*before, destination)
            if outcome.kind is OutcomeKind.DEFERRED and not set(route.hops) <= set(by):
                self._by[mail, recipient] = by
        while len(self._by) > MAX_REMEMBERED:
            self._by.popitem(last=False)

    def routes(
        self, mail: UUID, route: DeliveryRoute, recipients: Iterable[str]
    ) -> Iterator[tuple[DeliveryRoute, tuple[str, ...]]]:
        """Yield the route as this attempt takes it, for the recipients that share it."""
        if not self._by or len(route.hops) == 1:
            yield route, tuple(recipients)
            return
        groups: dict[frozenset[str], list[str]] = {}
        for recipient in recipients:
            by = self._by.get((mail, recipient), ())
            last = frozenset(by if len(by) % 2 else ()).intersection(route.hops)
            groups.setdefault(last, []).append(recipient)
        for last, together in groups.items():
            yield replace(route, site=_with_last(route.site, last)), tuple(together)


def _with_last(site: Site, last: frozenset[str]) -> Site:
    """Return a site with these destinations behind all others."""
    tiers = [tuple(each for each in tier if each not in last) for tier in site.tiers]
    tiers += [tuple(each for each in tier if each in last) for tier in site.tiers]
    return Site(tuple(filter(None, tiers)))
