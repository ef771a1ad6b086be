"""Access to queues: what a route needs of the request, once the user's right is clear."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from postroad.console.api.streams import Streams
from postroad.console.operations import Operations
from postroad.console.queues import ConsoleQueue, ConsoleQueues
from postroad.console.rights import CONTENT, MAILS, OPERATIONS, QUEUES, ConsoleUser, Rights
from postroad.ports.clock import Clock
from postroad.problems import Problem
from postroad.telemetry.logs import logger

_log = logger("console")


@dataclass(frozen=True, slots=True)
class Console:
    """Parts that all routes share."""

    queues: ConsoleQueues
    rights: Rights
    clock: Clock
    operations: Operations
    streams: Streams
    keeps_hashes: bool
    """True if suppression lists have hashes in place of addresses."""

    @classmethod
    def over(
        cls, queues: ConsoleQueues, rights: Rights, clock: Clock, *, keeps_hashes: bool = False
    ) -> Console:
        return cls(queues, rights, clock, Operations(clock), Streams(), keeps_hashes)


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """A request of a user about one queue, who has the right to it."""

    console: Console
    who: ConsoleUser
    on: ConsoleQueue


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def user_of(request: Request) -> ConsoleUser:
    who: ConsoleUser = request.state.who
    return who


async def require_right(request: Request, verb: str, resource: str, namespace: str) -> None:
    """Raises: Problem where the user has no such right."""
    if not await console_of(request).rights.may(user_of(request), verb, resource, namespace):
        raise Problem(403, f"you may not {verb} {resource} in the namespace {namespace}")


def access(verb: str, resource: str) -> Callable[..., Coroutine[Any, Any, QueueAccess]]:
    """Return the dependency of routes that need a right. The right is checked first, so
    that its lack shows nothing of whether there is the queue."""

    async def check(request: Request, namespace: str, name: str) -> QueueAccess:
        await require_right(request, verb, resource, namespace)
        console, who = console_of(request), user_of(request)
        found = console.queues.find(namespace, name)
        if found is None:
            raise Problem(404, "the console has no such queue: GET /api/v1/queues lists them")
        return QueueAccess(console, who, found)

    return check


ReadQueue = Annotated[QueueAccess, Depends(access("get", QUEUES))]
ListMails = Annotated[QueueAccess, Depends(access("list", MAILS))]
ReadMails = Annotated[QueueAccess, Depends(access("get", MAILS))]
ReadContent = Annotated[QueueAccess, Depends(access("get", CONTENT))]
ReadOperations = Annotated[QueueAccess, Depends(access("get", OPERATIONS))]
ChangeQueue = Annotated[QueueAccess, Depends(access("create", OPERATIONS))]
"""Parameters of routes: a queue to whose part the user has a right."""


def audited(at: QueueAccess, change: str, **more: object) -> None:
    """Log a change beside mail; no address is in `more`."""
    _log.info("a change", who=at.who.name, queue=str(at.on.name), change=change, **more)
