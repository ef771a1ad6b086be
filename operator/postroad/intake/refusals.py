"""The reasons for which the intake refuses clients, as values of a metric's label.

What is wrong with one mail (its size, its line ends) is not among them: `RECEIVED` counts that.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.domain.replies import Reply
from postroad.intake import clients, dialogue, reply_texts

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


def reason_of(reply: Reply) -> str | None:
    """Return why this reply refuses a client; None: it refuses no client."""
    return _REASONS.get(reply)
