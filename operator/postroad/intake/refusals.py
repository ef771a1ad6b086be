"""Why clients are refused, as the few words that a metric can have.

What is wrong with one mail (its size, its line ends) is no reason here: the reply counts that.
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
    """Return why the client is refused that gets this reply, None when it is not."""
    return _REASONS.get(reply)
