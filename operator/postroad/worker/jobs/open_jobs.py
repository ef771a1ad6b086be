"""The jobs of a worker: recipients of one item that have one site, under one number for the
scheduler and for the connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import cast

from postroad.domain.delivery.paces import LimitedMail
from postroad.domain.mail.mail import Envelope, Outcome, domain_of
from postroad.domain.mail.shapes import Shape
from postroad.errors import PostroadError, ServerError
from postroad.ports.delivery import Transmission
from postroad.scheduling.jobs import DeliveryJob
from postroad.worker.jobs.deliveries import UNFORESEEN
from postroad.worker.jobs.ledger import Ledger
from postroad.worker.routing import DeliveryRoute


class LeaseOver(Exception):
    """The content of an item is not read: its lease is over."""


class OpenJob:
    """One job, from when it is submitted to the scheduler until it has an end."""

    __slots__ = (
        "_has_begun",
        "assigned_at",
        "connection",
        "is_late",
        "ledger",
        "number",
        "place",
        "recipients",
        "rest_since",
        "route",
        "scheduled",
    )

    def __init__(
        self,
        number: int,
        mail: str,
        ledger: Ledger,
        route: DeliveryRoute,
        recipients: tuple[str, ...],
    ) -> None:
        self.number = number
        """The scheduler's and the connection's."""
        self.scheduled = DeliveryJob(number, mail, route.site, ledger.item.mail.priority)
        self.ledger = ledger
        self.route = route
        self.recipients = recipients
        self.connection: int | None = None
        """The one that has it; None while it waits."""
        self.place = 0
        """Jobs of a connection are transmitted in this order."""
        self.is_late = False
        """Whether a connection that comes to it is to leave it out."""
        self.assigned_at = timedelta(0)
        self.rest_since: timedelta | None = None
        """When its site was found resting first."""
        self._has_begun = False

    def seconds_until(self, now: timedelta) -> float:
        """Return how long a connection has had it."""
        return (now - self.assigned_at).total_seconds()

    def limited(self) -> LimitedMail:
        """Return what decides about its limits by rate."""
        hop = next(iter(self.route.hops.values())).next_hop
        source = "" if hop.source is None else " ".join(hop.source.addresses)
        domains = frozenset(map(domain_of, self.recipients))
        return LimitedMail(self.route.name, domains, self.ledger.item.mail.tenant, source)

    def transmission(self) -> Transmission:
        """Return what a connection gets of it."""
        item = self.ledger.item
        envelope: Envelope = item.mail
        if self.recipients != envelope.recipients:
            envelope = replace(envelope, recipients=self.recipients)
        return Transmission(
            self.number,
            item.mail_id,
            envelope,
            item.size_bytes,
            self._content,
            item.shape,
            self._at_hand,
        )

    def at_site(self, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
        """Return outcomes of its recipients with the site that gave them: recipients that share
        one share the new one, too."""
        name = self.route.name
        placed = {id(each): each.at(name) for each in outcomes.values()}
        return {each: placed[id(outcomes[each])] for each in self.recipients if each in outcomes}

    def is_attempt(self, error: Exception) -> bool:
        """Whether a content that failed makes an attempt: one that always breaks off is to be tried
        less and less often, a store that is away costs its mails none."""
        return self._has_begun or not isinstance(error, ServerError)

    def _at_hand(self) -> tuple[bytes, Shape | None] | None:
        return None if self.is_late else self.ledger.item.at_hand()

    async def _content(self) -> AsyncGenerator[bytes, None]:
        self._has_begun = False
        if self.is_late:
            raise LeaseOver
        stream = cast("AsyncGenerator[bytes, None]", self.ledger.item.stream())
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                self._has_begun = True
                yield chunk


def deferred_by(error: Exception) -> str:
    """Return the text of an outcome for a content that could not be read."""
    if isinstance(error, PostroadError):
        return f"451 4.3.0 {type(error).__name__}"
    return UNFORESEEN


def chunks_of(recipients: tuple[str, ...], most: int) -> Iterable[tuple[str, ...]]:
    """Return recipients, so many at a time at most."""
    if len(recipients) <= most:
        return (recipients,)
    return [recipients[at : at + most] for at in range(0, len(recipients), most)]
