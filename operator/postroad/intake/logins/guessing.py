"""Slows those who guess passwords, by address and by user. Pure: `now` is passed in, in seconds.

A login waits before its password is checked, so that a client that leaves early learns nothing.
No user is locked out: the wait is bounded, and an address from which the user has logged in waits
for its own failures with this user alone."""

import math
from collections import OrderedDict
from typing import NamedTuple, TypeVar

from postroad.domain.values.networks import client_of
from postroad.intake.logins.results import COME_AGAIN, LoginFailed

_Kept = TypeVar("_Kept")

FREE_FAILURES = 3
"""Failures after which logins wait."""

FIRST_WAIT, MAX_WAIT = 0.5, 8.0
"""Seconds; the wait doubles with each failure."""

MAX_AT_ONCE = 20
"""Logins under way of one address that none waits for: programs open their connections at once."""

MAX_QUEUE = 16.0
"""Seconds that logins of one address may wait for others of it. A session that waits is one that no
other client has."""

HALF_LIFE = 600.0
"""Seconds in which half of the failures are forgotten."""

MAX_KEPT = 20_000
"""Addresses, users, and pairs of both that are kept, those of the latest attempts."""


class TooManyWait(LoginFailed):
    """Logins of this address wait for so long already that no further one may."""

    def __init__(self) -> None:
        super().__init__(COME_AGAIN)


class _Key(NamedTuple):
    """Attempts that are counted together: of an address, for a user, or of both."""

    kind: str
    of: str


class _Counted(NamedTuple):
    failures: float = 0.0
    since: float = 0.0
    next_at: float = 0.0
    """The moment at which the last attempt that waits is checked."""

    under_way: int = 0


class LoginAttempt(NamedTuple):
    """A login that has begun, and the seconds that it waits before it is checked."""

    wait: float
    client: str
    user: str
    keys: tuple[_Key, ...]


class Guesses:
    """The failed logins of late."""

    def __init__(self) -> None:
        self._counted: OrderedDict[_Key, _Counted] = OrderedDict()
        self._known: OrderedDict[_Key, None] = OrderedDict()
        """Users with the clients that they have logged in from."""

    def begins(self, address: str, user: str, now: float) -> LoginAttempt:
        """Begin an attempt, which the caller ends. Attempts of one address wait one behind another,
        however many sessions it has. An empty user is one that is not known yet. Raises:
        TooManyWait."""
        client = client_of(address)
        pair = _Key("pair", f"{user} {client}")
        if pair in self._known:  # others at the same address guess in vain for this user
            return LoginAttempt(self._queued(pair, now), client, user, (pair,))
        key = _Key("address", client)
        wait = self._queued(key, now)
        if not user:
            return LoginAttempt(wait, client, user, (key,))
        of_user = _Key("user", user)
        by_user = _wait(self._begun(of_user, now))  # not queued: that would lock the user out
        return LoginAttempt(max(wait, by_user), client, user, (key, of_user))

    def ended(self, attempt: LoginAttempt, now: float, *, has_failed: bool) -> None:
        for key in attempt.keys:
            failures = self._failures(key, now) + has_failed
            counted = self._counted.get(key, _Counted())
            kept = counted._replace(failures=failures, since=now)
            _keep(self._counted, key, kept._replace(under_way=max(0, kept.under_way - 1)))
        if attempt.user and not has_failed:
            _keep(self._known, _Key("pair", f"{attempt.user} {attempt.client}"), None)

    def _queued(self, key: _Key, now: float) -> float:
        wait = _wait(self._begun(key, now))
        counted = self._counted[key]
        starts = max(now, counted.next_at) if wait else now
        if starts - now > MAX_QUEUE:
            self._counted[key] = counted._replace(under_way=counted.under_way - 1)
            raise TooManyWait
        self._counted[key] = counted._replace(next_at=starts + wait)
        return starts + wait - now

    def _begun(self, key: _Key, now: float) -> float:
        """Count an attempt under way; return the failures that it waits for. Those under way beyond
        MAX_AT_ONCE count as failed, since all of them would else be checked before the first one
        has failed."""
        failures, counted = self._failures(key, now), self._counted.get(key, _Counted())
        more = max(0, counted.under_way - MAX_AT_ONCE + 1)
        kept = counted._replace(failures=failures, since=now, under_way=counted.under_way + 1)
        _keep(self._counted, key, kept)
        return failures + more

    def _failures(self, key: _Key, now: float) -> float:
        counted = self._counted.get(key, _Counted(since=now))
        return counted.failures * math.pow(0.5, max(0.0, now - counted.since) / HALF_LIFE)


def _wait(failures: float) -> float:
    if failures < FREE_FAILURES:
        return 0.0
    return min(MAX_WAIT, math.ldexp(FIRST_WAIT, int(min(failures - FREE_FAILURES, 20.0))))


def _keep(kept: OrderedDict[_Key, _Kept], key: _Key, value: _Kept) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MAX_KEPT:
        kept.popitem(last=False)
