"""The state that all sessions of an intake share, and how refused clients are counted and logged.

A refused client is counted by reason. What is wrong with one mail (its size, its line ends) is not
a reason: the reply to the mail counts that.

Bounds on the time of a client: for a command, for a mail, for its session. Pure.

Times are seconds of the event loop's clock."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Counter

from postroad.domain.smtp.replies import Reply
from postroad.domain.values.networks import NO_ADDRESS, Networks
from postroad.intake import clients, dialogue, reply_texts
from postroad.intake.clients import CertifiedClients, Rights, Rules
from postroad.intake.dialogue import LoginRequest, Offer
from postroad.intake.filters.chain import FilterChain
from postroad.intake.logins.results import WRONG, Ask, LoginClient
from postroad.intake.submission import Permissions, with_login
from postroad.ports.clock import Clock, Randomness
from postroad.ports.events import EventLog
from postroad.ports.mail_queue import IntakeQueue
from postroad.smtp.wire import HandshakeFailed
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import FAILED_HANDSHAKES, RECEIVED, REFUSED_CLIENTS, of_queue
from postroad.telemetry.tracing import MailTracer

if TYPE_CHECKING:  # its libraries are those of the extra `intake`
    from postroad.intake.logins.authenticator import Authenticator
    from postroad.intake.returns.handling import ReturnedMails


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Bounds on the time that a client may take. Source: RFC 5321 4.5.3.2.7 (5 minutes for a
    command), 4.5.3.2.5 (3 minutes for a block of data)."""

    command: timedelta = timedelta(minutes=5)
    """For a whole command: an octet of it does not extend the time."""

    data_block: timedelta = timedelta(minutes=3)
    """Between two chunks of a mail."""

    least_bytes_per_second: int = 500
    """Of a whole mail, after `grace`. Postfix's default, too (smtpd_min_data_rate)."""

    grace: timedelta = timedelta(minutes=5)
    session: timedelta = timedelta(hours=1)
    """No mail begins in an older session."""

    stalled: timedelta = timedelta(seconds=10)
    """Without progress (an accepted command of a mail, a mail that arrives as fast as
    `least_bytes_per_second`) while the intake is full; then the intake ends the session."""

    tls: timedelta = timedelta(minutes=1)
    goodbye: timedelta = timedelta(seconds=5)


class Deadlines:
    """When a session ends at the latest, and the reply that ends it."""

    __slots__ = ("_grace", "_mail_ends", "_progress", "_rate", "_stalled", "session_ends")

    def __init__(self, timeouts: ClientTimeouts, now: float) -> None:
        self._grace = timeouts.grace.total_seconds()
        self._rate = timeouts.least_bytes_per_second
        self._mail_ends = 0.0
        self._stalled = timeouts.stalled.total_seconds()
        self._progress = now
        self.session_ends = now + timeouts.session.total_seconds()

    def begin_mail(self, now: float) -> None:
        self._progress = now
        self._mail_ends = now + self._grace

    def progressed(self, now: float) -> None:
        """Note an accepted command of a mail, or an accepted mail."""
        self._progress = now

    def is_stalled(self, now: float, *, received: int | None) -> bool:
        """True if the client makes no progress; `received` as for `reason`."""
        return now >= self._progress + self._stalled + (received or 0) / self._rate

    def of_mail(self, received: int) -> float:
        """Return the deadline of a mail of which that many octets have arrived."""
        return self._mail_ends + received / self._rate

    def reason(self, now: float, *, received: int | None) -> Reply:
        """Return the reply to a client that was too slow. `received`: octets of the mail that it
        sends; None: it sends none."""
        if received is not None:
            return reply_texts.TOO_SLOW if now >= self.of_mail(received) else reply_texts.IDLE
        return reply_texts.TOO_LONG if now >= self.session_ends else reply_texts.IDLE


_log = logger("intake")

_REASONS: Mapping[Reply, str] = {
    clients.TOO_MANY_SESSIONS: "sessions",
    clients.TOO_MANY_CONNECTIONS: "connections",
    clients.TOO_MANY_MAILS: "mails",
    reply_texts.NO_RELAYING: "relay",
    WRONG: "login",
    reply_texts.TOO_SLOW: "slow",
    dialogue.TALKS_EARLY: "early",
    dialogue.NOT_SMTP: "http",
    dialogue.TOO_MANY_ERRORS: "errors",
    dialogue.TOO_IDLE: "idle",
}


@dataclass(frozen=True, slots=True)
class IntakeContext:
    """The queue, the settings and the counters that all sessions of an intake share."""

    queue: IntakeQueue
    offer: Offer
    clock: Clock
    randomness: Randomness
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the TLS context of a session that begins; None: STARTTLS is not offered."""

    timeouts: ClientTimeouts = field(default_factory=ClientTimeouts)
    rules: Rules = field(default_factory=Rules)
    takes_long_lines: bool = False
    """True if a mail with a line of more than 998 octets is accepted."""

    authenticator: Authenticator | None = None
    permissions: Permissions | None = None
    """Both are of a listener whose clients log in."""

    proxies: Networks = NO_ADDRESS
    """Proxies whose connections begin with the client's address."""

    xclient_from: Networks = NO_ADDRESS
    """Proxies that may describe their clients by XCLIENT."""

    certified: CertifiedClients | None = None
    """Clients that may relay because of their certificate; None: there are none."""

    filters: FilterChain | None = None
    """Filters that look at each mail; None: none does."""

    events: EventLog | None = None
    """Events for programs outside; None: there are none."""

    returned: ReturnedMails | None = None
    """Takes what comes back to signed reverse-paths; None: nothing does."""

    tracer: MailTracer | None = None
    """Begins the spans of mails; None: there are none."""

    _counters: dict[str, Counter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mechanisms = () if self.authenticator is None else self.authenticator.mechanisms
        now = self.clock.now if mechanisms else None
        offer = replace(self.offer, tls=self.tls is not None, mechanisms=mechanisms, now=now)
        object.__setattr__(self, "offer", offer)

    async def log_in(
        self, request: LoginRequest, ask: Ask, client: LoginClient, rights: Rights
    ) -> Rights:
        """Carry a login out; return the rights of its user. Raises: LoginFailed, and what `ask`
        raises."""
        assert self.authenticator is not None
        assert self.permissions is not None
        permit = partial(self.permissions.of, client=client)
        submission = await self.authenticator.log_in(
            request.mechanism, request.initial, ask, client, permit
        )
        return with_login(rights, submission)

    def rights_of_user(self, name: str, client: LoginClient, rights: Rights) -> Rights:
        """Return the rights of a user that has logged in at a proxy. Raises: LoginFailed."""
        assert self.authenticator is not None
        assert self.permissions is not None
        user = self.authenticator.user_called(name)
        return with_login(rights, self.permissions.of(user, client))

    def count(self, kind: str) -> None:
        """Count a mail by the kind of its reply: accepted, transient or permanent."""
        if (counter := self._counters.get(kind)) is None:
            counter = self._counters[kind] = RECEIVED.labels(*of_queue(self.queue.name), kind)
        counter.inc()

    def client_refused(self, reply: Reply, address: str | None, known: set[str]) -> None:
        """Count and log a client that this reply refuses, unless the reason is in `known`, the
        reasons of its connection so far."""
        reason = reason_of(reply)
        if reason is None or reason in known:
            return
        known.add(reason)
        REFUSED_CLIENTS.labels(*of_queue(self.queue.name), reason).inc()
        _log.info("client refused", queue=self.queue.name, client=address, reply=str(reply))

    def handshake_failed(self, error: HandshakeFailed) -> None:
        """Count and log a failed TLS handshake."""
        FAILED_HANDSHAKES.labels(*of_queue(self.queue.name), error.reason).inc()
        _log.info("TLS handshake failed", queue=self.queue.name, error=str(error))


def reason_of(reply: Reply) -> str | None:
    """Return why this reply refuses a client; None: it refuses no client."""
    return _REASONS.get(reply)
