"""Rights of users of the console, as Kubernetes has them: a verb on a resource in a namespace."""

from dataclasses import dataclass
from typing import Protocol

from postroad.ports.access_reviews import ReviewedUser

QUEUES, MAILS, CONTENT, OPERATIONS = (
    "mailqueues",
    "mailqueues/mails",
    "mailqueues/content",
    "mailqueues/operations",
)
"""Resources that rights are about."""


@dataclass(frozen=True, slots=True)
class ConsoleUser:
    """Who sent a request. `name` is what logs show. `is_by_cookie`: a browser sent the credential
    by itself, so that a page elsewhere may have asked for it. `reviewed`: as an API server of
    Kubernetes knows the user."""

    name: str
    is_by_cookie: bool
    reviewed: ReviewedUser | None = None


class Rights(Protocol):
    """Decides what a user may do. Safe to call concurrently."""

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        """Return whether the user may, of all queues of a namespace or, with a name, of this one.
        Raises: ServerError where that cannot be found out."""


class SessionRights:
    """Rights of sessions of the one-time link: who reads the console's terminal may run its
    queues, as by the commands."""

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        return True
