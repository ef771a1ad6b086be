"""Sessions of the console: a link that is good once leads to one, and a cookie or a bearer token
names it. They are in memory: a console that is started again prints another link."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256

MAX_SESSIONS = 100
"""At a time; one more ends the oldest."""

LINK_LIFETIME = timedelta(minutes=15)
IDLE = timedelta(hours=1)
"""Time without a request after which a session ends."""

LIFETIME = timedelta(hours=12)

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A session. `name`: what logs call it."""

    name: str
    began: timedelta
    used: timedelta


class Sessions:
    """The links and sessions of a console. Of tokens, only digests are kept: comparing them tells
    no time."""

    def __init__(self, elapsed: Callable[[], timedelta]) -> None:
        self._elapsed = elapsed
        self._links: dict[bytes, timedelta] = {}
        self._sessions: dict[bytes, ConsoleSession] = {}
        self._count = 0

    def new_link(self) -> str:
        """Return the token of a link, which takes the place of one that was not used."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._links = {_digest(token): self._elapsed() + LINK_LIFETIME}
        return token

    def redeem(self, token: str) -> str | None:
        """Return the secret of a new session; None for a link that was used, is over, or never
        was."""
        until = self._links.pop(_digest(token), None)
        now = self._elapsed()
        if until is None or now > until:
            return None
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        self._count += 1
        self._sessions[_digest(secret)] = ConsoleSession(f"session-{self._count}", now, now)
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return secret

    def find(self, secret: str) -> ConsoleSession | None:
        """Return the session of a secret, which is used now; None: there is none, or it is over."""
        digest, now = _digest(secret), self._elapsed()
        session = self._sessions.get(digest)
        if session is None:
            return None
        if now - session.used > IDLE or now - session.began > LIFETIME:
            del self._sessions[digest]
            return None
        self._sessions[digest] = replace(session, used=now)
        return session

    def end(self, secret: str) -> None:
        self._sessions.pop(_digest(secret), None)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
