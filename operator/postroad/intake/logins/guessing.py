"""Slows those who guess passwords, by address and by user. Pure: `now` is passed in, in seconds.

A login waits before its password is checked, so that a client that leaves early learns nothing.
No user is locked out: the wait is bounded, and an address from which the user has logged in waits
for its own failures alone."""

import math
from collections import OrderedDict
from typing import TypeVar

from postroad.domain.values.networks import client_of

_Kept = TypeVar("_Kept")

FREE_FAILURES = 3
"""Failures after which logins wait."""

FIRST_WAIT, MAX_WAIT = 0.5, 8.0
"""Seconds; the wait doubles with each failure."""

HALF_LIFE = 600.0
"""Seconds in which half of the failures are forgotten."""

MAX_KEPT = 100_000
"""Addresses, users, and pairs of both that are kept, those of the latest attempts."""


class Guesses:
    """The failed logins of late."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """Kind and key → failures, and when they were counted."""

        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Users and the clients that they have logged in from."""

    def begins(self, address: str, user: str, now: float) -> float:
        """Count an attempt as failed until `succeeded`, so that attempts at once count, too. Return
        the seconds that it waits. An empty user is one that is not known yet."""
        client = client_of(address)
        wait = _wait(self._count("address", client, now))
        if not user:
            return wait
        by_user = _wait(self._count("user", user, now))
        return wait if (user, client) in self._known else max(wait, by_user)

    def succeeded(self, address: str, user: str, now: float) -> None:
        """Forget the attempt, and the failures of its address."""
        client = client_of(address)
        self._failures.pop(("address", client), None)
        if user:
            self._count("user", user, now, more=-1.0)
            _keep(self._known, (user, client), None)

    def _count(self, kind: str, key: str, now: float, more: float = 1.0) -> float:
        """Return the failures before this one."""
        failures, since = self._failures.get((kind, key), (0.0, now))
        failures *= math.pow(0.5, max(0.0, now - since) / HALF_LIFE)
        _keep(self._failures, (kind, key), (max(0.0, failures + more), now))
        return failures


def _wait(failures: float) -> float:
    if failures < FREE_FAILURES:
        return 0.0
    return min(MAX_WAIT, math.ldexp(FIRST_WAIT, int(min(failures - FREE_FAILURES, 20.0))))


def _keep(kept: OrderedDict[tuple[str, str], _Kept], key: tuple[str, str], value: _Kept) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MAX_KEPT:
        kept.popitem(last=False)
