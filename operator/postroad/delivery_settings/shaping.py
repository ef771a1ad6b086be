"""The schema of what servers are given: connections, their rate and times, recipients at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import Field, StrictInt

from postroad.delivery_settings.patterns import DeliverySection, Duration, ServerPattern
from postroad.domain.smtp.next_hops import HopTimeouts
from postroad.domain.values.domain_patterns import DomainPatterns, server_name
from postroad.routing.routes import host_of
from postroad.scheduling.ranking import ConnectionLimits

_A_SECOND, _FIVE_MINUTES = timedelta(seconds=1), timedelta(minutes=5)
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


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of connections by server: the first rule that has it decides."""

    rules: tuple[tuple[DomainPatterns, ConnectionLimits], ...] = ()

    def __call__(self, name: str) -> ConnectionLimits:
        """Return the limits of a destination, by the name that routes give it."""
        host = server_name(host_of(name))
        found = (limits for servers, limits in self.rules if servers.match(host) is not None)
        return next(found, ConnectionLimits())
