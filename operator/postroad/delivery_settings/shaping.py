"""The schema of what destinations get: connections with their rate and times, how many recipients
at a time, when their mail is tried again, and which replies suspend them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated

from pydantic import Field, StrictInt, model_validator

from postroad.delivery_settings.patterns import (
    DeliverySection,
    DomainPattern,
    Duration,
    ServerPattern,
)
from postroad.domain.delivery.retries import RetryPlan, RetryRule
from postroad.domain.delivery.sites import MAX_SUSPENSION, ReplyRule
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.smtp.next_hops import HopTimeouts
from postroad.domain.values.domain_patterns import DomainPatterns, server_name
from postroad.domain.values.instants import format_duration
from postroad.domain.values.text import BY_API_NAME
from postroad.routing.routes import host_of
from postroad.scheduling.ranking import ConnectionLimits

_A_SECOND, _FIVE_MINUTES = timedelta(seconds=1), timedelta(minutes=5)
_Delay = Annotated[Duration, Field(ge=_A_SECOND)]
_Servers = Annotated[tuple[ServerPattern, ...], Field(min_length=1, max_length=1000)]


class TimeoutSettings(DeliverySection):
    """Time that a server may take. None is longer than usual, since leases of mail count on it."""

    connect: Annotated[Duration, Field(ge=_A_SECOND, le=timedelta(seconds=30))] | None = None
    """To accept a connection, at each of its addresses. Absent: 30s."""

    greeting: Annotated[Duration, Field(ge=_A_SECOND, le=_FIVE_MINUTES)] | None = None
    """To greet. Absent: 5m."""

    command: Annotated[Duration, Field(ge=_A_SECOND, le=_FIVE_MINUTES)] | None = None
    """To reply to a command, and for the handshake of TLS. Absent: 5m."""

    end: Annotated[Duration, Field(ge=timedelta(seconds=30), le=timedelta(minutes=10))] | None = (
        None
    )
    """To reply to the end of a mail. What replies later may have taken it, so that a short time
    makes second copies. Absent: 10m."""

    def value(self) -> HopTimeouts:
        """Return the value that connections use."""
        return HopTimeouts(self.connect, self.greeting, self.command, self.end)


class ConnectionSettings(DeliverySection):
    """Limits of the connections of each worker to a server."""

    servers: _Servers
    """Servers, each of which has the limits for itself: `mx.example.org`, `*.example.org` for all
    below it, or an address."""

    max_connections: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    """Connections to it at a time. Absent: 20, or with a relay as many as a worker has."""

    max_mails: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    """Mails that go over one connection, which then ends. Absent: 1000."""

    per_minute: Annotated[StrictInt, Field(ge=1, le=60_000)] | None = None
    """Connections that are opened to it in a minute, evenly. Absent: any number."""

    max_recipients: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    """Recipients of one transaction. Absent: 100, which every server accepts (RFC 5321)."""

    timeouts: TimeoutSettings | None = None
    """Time that it may take. Absent: as RFC 5321 has it."""

    def limits(self) -> ConnectionLimits:
        """Return the value that workers use."""
        return ConnectionLimits(
            self.max_connections,
            self.max_mails,
            self.per_minute,
            self.max_recipients,
            None if self.timeouts is None else self.timeouts.value(),
        )


class RetrySettings(DeliverySection):
    """When mail for some recipients is tried again."""

    domains: Annotated[tuple[DomainPattern, ...], Field(min_length=1, max_length=1000)] | None = (
        None
    )
    """Recipients in these domains: `example.org`, `*.example.org` for all below it. Absent: in
    all."""

    servers: _Servers | None = None
    """Recipients whose first next hop is one of these servers. Absent: any."""

    lanes: Annotated[tuple[_Delay, ...], Field(min_length=1, max_length=16)] | None = None
    """Delays before the second, third, … attempt; the last one repeats. Absent: as the queue has
    it."""

    max_age: _Delay | None = None
    """Age since acceptance at which they are given up, no longer than that of the queue. Absent: as
    the queue has it."""

    @model_validator(mode="after")
    def _fits_together(self) -> RetrySettings:
        if self.lanes is None and self.max_age is None:
            raise ValueError("give lanes, maxAge or both")
        if self.lanes is not None and len(set(self.lanes)) < len(self.lanes):
            raise ValueError("lanes must differ: the last one repeats by itself")
        return self

    def rule(self, of_queue: RetryPlan) -> RetryRule:
        """Return the value that workers use. Raises: ValueError, where the queue's schedule and
        this one do not fit together."""
        plan = replace(
            of_queue,
            lanes=self.lanes or of_queue.lanes,
            max_age=self.max_age or of_queue.max_age,
        )
        if plan.max_age > of_queue.max_age:
            limit = format_duration(of_queue.max_age)
            raise ValueError(f"maxAge is longer than that of the queue: write {limit} or less")
        if self.lanes is not None and max(self.lanes) > plan.max_age:
            raise ValueError("a lane cannot be longer than maxAge: name shorter lanes")
        domains, servers = self.domains, self.servers
        return RetryRule(
            plan,
            None if domains is None else DomainPatterns.of(domains),
            None if servers is None else DomainPatterns.of(servers),
        )


class SuspensionSettings(DeliverySection):
    """Replies that suspend a site."""

    servers: _Servers | None = None
    """Those of these servers. Absent: of any."""

    code: Annotated[StrictInt, Field(ge=400, le=599)] | None = None
    """Those with this basic code. Absent: with any."""

    reason: Annotated[BounceClass, BY_API_NAME]
    """Those of this class, as `postroad bounce classify` and `bounceRules` have it."""

    replies: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    """So many in succession, with no delivery between them."""

    duration: Annotated[Duration, Field(le=MAX_SUSPENSION)]
    """Time that the site gets no mail; 0s: they never suspend it."""

    def rule(self) -> ReplyRule:
        """Return the value that workers use."""
        servers = None if self.servers is None else DomainPatterns.of(self.servers)
        return ReplyRule(self.code or 0, self.reason, self.replies, self.duration, servers)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of connections by server: the first rule that has it decides."""

    rules: tuple[tuple[DomainPatterns, ConnectionLimits], ...] = ()

    def __call__(self, name: str) -> ConnectionLimits:
        """Return the limits of a destination, by the name that routes give it."""
        host = server_name(host_of(name))
        found = (limits for servers, limits in self.rules if servers.match(host) is not None)
        return next(found, ConnectionLimits())
