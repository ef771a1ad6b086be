"""Users and rights by reviews of Kubernetes' API server, whose answers hold for some seconds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from datetime import timedelta
from hashlib import sha256
from typing import Any, Generic, TypeVar

from postroad.console.rights import ConsoleUser
from postroad.ports.access_reviews import AccessReviews, ReviewedRight, ReviewedUser

ANSWER_LIFETIME = timedelta(seconds=5)
"""Time for which an answer holds: so long, a right that was taken away is still there."""

MAX_ANSWERS = 10_000
"""Answers of each kind that are kept, those that were asked for last."""

MAX_TOKEN = 16 * 1024
"""Octets of a token."""

T = TypeVar("T")


class Answers(Generic[T]):
    """Answers by what was asked. Those who ask at the same time share one request; an error is no
    answer, and kept by none."""

    def __init__(self, elapsed: Callable[[], timedelta]) -> None:
        self._elapsed = elapsed
        self._kept: OrderedDict[Hashable, tuple[timedelta, asyncio.Task[T]]] = OrderedDict()

    def holds(self, key: Hashable) -> bool:
        """True if `get` asks nothing."""
        return key in self._kept and self._elapsed() < self._kept[key][0]

    def last(self, key: Hashable) -> T | None:
        """Return the last answer, though it may hold no longer; None: there is none."""
        _, asking = self._kept.get(key, (None, None))
        if asking is None or not asking.done() or asking.cancelled() or asking.exception():
            return None
        return asking.result()

    async def get(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer, which is asked for where it is not known. Raises: as `ask`."""
        now = self._elapsed()
        until, asking = self._kept.get(key, (now, None))
        if asking is None or until <= now:
            asking = asyncio.create_task(ask())
            self._kept[key] = now + ANSWER_LIFETIME, asking
            if len(self._kept) > MAX_ANSWERS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        try:
            return await asyncio.shield(asking)
        except BaseException:
            if asking.done() and self._kept.get(key, (now, None))[1] is asking:
                del self._kept[key]
            raise


class ReviewedRights:
    """The `Rights` of users of Kubernetes, and the users behind tokens for `audience`."""

    def __init__(
        self, reviews: AccessReviews, elapsed: Callable[[], timedelta], audience: str
    ) -> None:
        self._reviews, self._audience = reviews, audience
        self._users: Answers[ReviewedUser | None] = Answers(elapsed)
        self._rights: Answers[bool] = Answers(elapsed)

    def knows(self, token: str) -> bool:
        """True if the token was that of a user, or no review is made for it now."""
        if not _is_token(token):
            return True
        key = _digest(token)
        return self._users.holds(key) or self._users.last(key) is not None

    async def user_of(self, token: str) -> ReviewedUser | None:
        """Return the bearer of a token; None for one that is not good. Raises: KubernetesError."""
        if not _is_token(token):
            return None
        reviewed = self._reviews.user_of
        return await self._users.get(_digest(token), lambda: reviewed(token, self._audience))

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        if await self._has(who, ReviewedRight(verb, resource, namespace)):
            return True
        return bool(name) and await self._has(who, ReviewedRight(verb, resource, namespace, name))

    async def _has(self, who: ConsoleUser, right: ReviewedRight) -> bool:
        user = who.reviewed
        if user is None:
            return False
        return await self._rights.get((user, right), lambda: self._reviews.allows(user, right))


def _is_token(text: str) -> bool:
    return 0 < len(text) <= MAX_TOKEN and text.isascii() and text.isprintable()


def _digest(token: str) -> bytes:
    """Kept in place of the token, so that no dump of the answers has it."""
    return sha256(token.encode()).digest()
