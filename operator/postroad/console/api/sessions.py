"""Sessions of the console: a link that is good once leads to one, and a cookie or a bearer token
names it. They are in memory, and end with the console."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from postroad.console.reviewed_rights import ReviewedRights
from postroad.console.rights import ConsoleUser

if TYPE_CHECKING:
    from postroad.console.openid import OpenIdLogins

MAX_SESSIONS = 100
"""At a time; one more ends the oldest."""

LINK_LIFETIME = timedelta(minutes=15)
IDLE = timedelta(hours=1)
"""Time without a request after which a session ends."""

LIFETIME = timedelta(hours=12)

SHORT_LIFETIME = timedelta(hours=1)
"""Of a session by a token, which ends with its token in any case."""

MAX_TOKEN_SESSIONS = 1000
"""Sessions by tokens at a time; one more ends the oldest of the namespace or user with most."""

MAX_SESSIONS_OF_USER = 20
"""Sessions by tokens of one user at a time: more end the oldest of the same user."""

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A session. `name`: what logs call it. `credential`: the token that it was begun with, and is
    good as long as; `user`: whose that was."""

    name: str
    began: timedelta
    used: timedelta
    credential: str = field(default="", repr=False)
    user: str = ""


class Sessions:
    """The links and sessions of a console. Of their secrets, only digests are kept: comparing them
    tells no time."""

    def __init__(
        self,
        elapsed: Callable[[], timedelta],
        lifetime: timedelta = LIFETIME,
        most: int = MAX_SESSIONS,
    ) -> None:
        self._elapsed = elapsed
        self.lifetime, self._most = lifetime, most
        self._links: dict[bytes, tuple[timedelta, str, str]] = {}
        self._sessions: dict[bytes, ConsoleSession] = {}
        self._count = 0

    def new_link(self, credential: str = "", user: str = "") -> str:
        """Return the token of a link, which takes the place of one of the same credential that was
        not used."""
        token, now = secrets.token_urlsafe(TOKEN_BYTES), self._elapsed()
        others = [each for each in self._links.items() if each[1][1] != credential]
        good = [each for each in others if each[1][0] > now]
        self._links = dict(good[-self._most :])
        self._links[_digest(token)] = now + LINK_LIFETIME, credential, user
        return token

    def redeem(self, token: str) -> str | None:
        """Return the secret of a new session; None for a link that was used, is over, or never
        was."""
        until, credential, user = self._links.pop(_digest(token), (None, "", ""))
        return None if until is None or self._elapsed() > until else self.begin(credential, user)

    def begin(self, credential: str = "", user: str = "") -> str:
        """Begin a session, and return its secret."""
        secret, now = secrets.token_urlsafe(TOKEN_BYTES), self._elapsed()
        self._count += 1
        session = ConsoleSession(f"session-{self._count}", now, now, credential, user)
        own = [key for key, each in self._sessions.items() if user and each.user == user]
        for key in own[: 1 - MAX_SESSIONS_OF_USER]:
            del self._sessions[key]
        self._sessions[_digest(secret)] = session
        while len(self._sessions) > self._most:
            owners = Counter(_owner(each.user) for each in self._sessions.values())
            most = max(owners, key=owners.__getitem__)
            theirs = (key for key, each in self._sessions.items() if _owner(each.user) == most)
            del self._sessions[next(theirs)]
        return secret

    def find(self, secret: str, *, is_used: bool = True) -> ConsoleSession | None:
        """Return the session of a secret, which is used now, or only looked at; None: there is
        none, or it is over."""
        digest, now = _digest(secret), self._elapsed()
        session = self._sessions.get(digest)
        if session is None:
            return None
        if now - session.used > IDLE or now - session.began > self.lifetime:
            del self._sessions[digest]
            return None
        if is_used:
            self._sessions[digest] = replace(session, used=now)
        return session

    def end(self, secret: str) -> None:
        self._sessions.pop(_digest(secret), None)


class Identities:
    """The users behind what requests prove themselves with: a cookie, or a bearer token. Here, who
    has the link is the user."""

    by_token: ReviewedRights | None = None
    """Reviews of tokens by an API server; None: sessions by links are all there are."""

    logins: OpenIdLogins | None = None
    """Logins of browsers at an issuer; None: there is none."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def asks(self, secret: str, *, is_cookie: bool) -> bool:
        """True if an API server has to be asked about it, which it was not lately."""
        return False

    async def find(
        self, secret: str, *, is_cookie: bool, is_used: bool = True
    ) -> ConsoleUser | None:
        """Return the user; None where it proves nothing. Raises: ServerError."""
        session = self.sessions.find(secret, is_used=is_used)
        return None if session is None else ConsoleUser(session.name, is_cookie)


class TokenIdentities(Identities):
    """Users of Kubernetes: a bearer token is reviewed, and with each request by a cookie the token
    that its session was begun with, so that a session ends with its token."""

    def __init__(
        self,
        rights: ReviewedRights,
        elapsed: Callable[[], timedelta],
        logins: OpenIdLogins | None = None,
    ) -> None:
        super().__init__(Sessions(elapsed, SHORT_LIFETIME, MAX_TOKEN_SESSIONS))
        self.by_token = self._rights = rights
        self.logins = logins

    def asks(self, secret: str, *, is_cookie: bool) -> bool:
        return not is_cookie and not self._rights.knows(secret)

    async def find(
        self, secret: str, *, is_cookie: bool, is_used: bool = True
    ) -> ConsoleUser | None:
        token = secret
        if is_cookie:
            session = self.sessions.find(secret, is_used=is_used)
            if session is None:
                return None
            token = session.credential
        user = await self._rights.user_of(token)
        if user is None:
            self.sessions.end(secret)
            return None
        return ConsoleUser(user.name, is_cookie, user)


def _owner(user: str) -> str:
    """Return the namespace of a ServiceAccount, which may make any number of them; else the user.

    >>> _owner("system:serviceaccount:mail:postmaster"), _owner("oidc:alice")
    ('system:serviceaccount:mail', 'oidc:alice')
    """
    is_account = user.startswith("system:serviceaccount:")
    return user.rpartition(":")[0] if is_account else user


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
