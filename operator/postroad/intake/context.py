"""The state that all sessions of an intake share, and how refused clients are counted and logged.

A refused client is counted by reason. What is wrong with one mail (its size, its line ends) is not
a reason: the reply to the mail counts that.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from prometheus_client import Counter

from postroad.domain.smtp.replies import Reply
from postroad.intake import clients, dialogue, reply_texts
from postroad.intake.dialogue import Offer
from postroad.intake.rights import Rules
from postroad.intake.timeouts import ClientTimeouts
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import MailQueue
from postroad.smtp.wire import HandshakeFailed
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import FAILED_HANDSHAKES, RECEIVED, REFUSED_CLIENTS

_log = logger("intake")

_REASONS: Mapping[Reply, str] = {
    clients.TOO_MANY_SESSIONS: "sessions",
    clients.TOO_MANY_CONNECTIONS: "connections",
    clients.TOO_MANY_MAILS: "mails",
    reply_texts.NO_RELAYING: "relay",
    reply_texts.TOO_SLOW: "slow",
    dialogue.TALKS_EARLY: "early",
    dialogue.NOT_SMTP: "http",
    dialogue.TOO_MANY_ERRORS: "errors",
    dialogue.TOO_IDLE: "idle",
}


@dataclass(frozen=True, slots=True)
class IntakeContext:
    """The queue, the settings and the counters that all sessions of an intake share."""

    queue: MailQueue
    offer: Offer
    clock: Clock
    randomness: Randomness
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the TLS context of a session that begins; None: STARTTLS is not offered."""

    timeouts: ClientTimeouts = field(default_factory=ClientTimeouts)
    rules: Rules = field(default_factory=Rules)
    takes_long_lines: bool = False
    """Whether a mail with a line of more than 998 octets is accepted."""

    _counters: dict[str, Counter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offer", replace(self.offer, tls=self.tls is not None))

    def count(self, kind: str) -> None:
        """Count a mail by the kind of its reply: accepted, transient or permanent."""
        if (counter := self._counters.get(kind)) is None:
            counter = self._counters[kind] = RECEIVED.labels(self.queue.name, kind)
        counter.inc()

    def client_refused(self, reply: Reply, address: str | None, known: set[str]) -> None:
        """Count and log a client that this reply refuses, unless the reason is in `known`, the
        reasons of its connection so far."""
        reason = reason_of(reply)
        if reason is None or reason in known:
            return
        known.add(reason)
        REFUSED_CLIENTS.labels(self.queue.name, reason).inc()
        _log.info("client refused", queue=self.queue.name, client=address, reply=str(reply))

    def handshake_failed(self, error: HandshakeFailed) -> None:
        """Count and log a failed TLS handshake."""
        FAILED_HANDSHAKES.labels(self.queue.name, error.reason).inc()
        _log.info("TLS handshake failed", queue=self.queue.name, error=str(error))


def reason_of(reply: Reply) -> str | None:
    """Return why this reply refuses a client; None: it refuses no client."""
    return _REASONS.get(reply)
