"""Rights of users of the console, as Kubernetes has them: a verb on a resource in a namespace."""

from dataclasses import dataclass
from typing import Protocol

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
    by itself, so that a page elsewhere may have asked for it."""

    name: str
    is_by_cookie: bool


class Rights(Protocol):
    """Decides what a user may do. Safe to call concurrently."""

    async def may(self, who: ConsoleUser, verb: str, resource: str, namespace: str) -> bool:
        """Return whether the user may. Raises: ServerError where that cannot be found out."""


class SessionRights:
    """Rights of sessions of the one-time link: who reads the console's terminal may run its
    queues, as by the commands."""

    async def may(self, who: ConsoleUser, verb: str, resource: str, namespace: str) -> bool:
        return True
