"""Access to queues: what a route needs of the request, once the user's right is clear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from postroad.console.api.streams import Streams
from postroad.console.audit import Announce, AuditTrail
from postroad.console.operations import Operations
from postroad.console.outcomes import OutcomeFeeds
from postroad.console.queues import ConsoleQueue, ConsoleQueues
from postroad.console.rates import ObservedRates
from postroad.console.rights import CONTENT, MAILS, OPERATIONS, QUEUES, ConsoleUser, Rights
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.problems import Problem


@dataclass(frozen=True, slots=True)
class Console:
    """Parts that all routes share."""

    queues: ConsoleQueues
    rights: Rights
    clock: Clock
    operations: Operations
    streams: Streams
    outcomes: OutcomeFeeds
    rates: ObservedRates
    audit: AuditTrail

    @classmethod
    def over(
        cls,
        queues: ConsoleQueues,
        rights: Rights,
        clock: Clock,
        announce: Announce | None = None,
    ) -> Console:
        audit = AuditTrail(clock, announce)
        operations = Operations(clock, audit)
        feeds, rates = OutcomeFeeds(clock), ObservedRates(clock)
        return cls(queues, rights, clock, operations, Streams(), feeds, rates, audit)


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """A request of a user about one queue, who has the right to it."""

    console: Console
    who: ConsoleUser
    on: ConsoleQueue
    is_still_allowed: Callable[[], Awaitable[bool]]
    """Returns whether the session and the right of the user are still there, and the queue; not so
    where that cannot be found out."""


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def user_of(request: Request) -> ConsoleUser:
    who: ConsoleUser = request.state.who
    return who


async def refuse_repeated(request: Request) -> None:
    """Raises: Problem for a parameter that is given twice: all but the last would be ignored, as
    of a search by two senders."""
    names = [name for name, _ in request.query_params.multi_items()]
    if len(names) > len(set(names)):
        raise Problem(422, "a parameter is given more than once")


async def still_proven(request: Request) -> bool:
    """Return whether what a request proved its user by is still good. It is no use of a session,
    which would last as long as a page is open. Raises: ServerError."""
    found: bool = await request.state.proves()
    return found


async def require_right(request: Request, verb: str, resource: str, namespace: str) -> None:
    """Raises: Problem where the user has no such right."""
    if not await console_of(request).rights.may(user_of(request), verb, resource, namespace):
        raise Problem(403, f"you may not {verb} {resource} in the namespace {namespace}")


def access(verb: str, resource: str) -> Callable[..., Coroutine[Any, Any, QueueAccess]]:
    """Return the dependency of routes that need a right. The right is checked first, and no store
    is asked before: to a user who may not see a queue, there is none."""

    async def check(request: Request, namespace: str, name: str) -> QueueAccess:
        console, who = console_of(request), user_of(request)
        is_allowed = await console.rights.may(who, verb, resource, namespace, name)
        if not (is_allowed or await console.rights.may(who, "get", QUEUES, namespace, name)):
            raise _no_queue()
        names = console.queues.names()
        found = next(
            (each for each in names if (each.namespace, each.name) == (namespace, name)), None
        )
        if found is None:
            raise _no_queue()
        if not is_allowed:
            raise Problem(403, f"you may not {verb} {resource} in the namespace {namespace}")
        on = await console.queues.open(found)

        async def is_still_allowed() -> bool:
            try:
                return (
                    await still_proven(request)
                    and await console.rights.may(who, verb, resource, namespace, name)
                    and found in console.queues.names()
                    and await console.queues.open(found) is on
                )
            except PostroadError:
                return False

        return QueueAccess(console, who, on, is_still_allowed)

    return check


def _no_queue() -> Problem:
    return Problem(404, "the console has no such queue: GET /api/v1/queues lists them")


ReadQueue = Annotated[QueueAccess, Depends(access("get", QUEUES))]
ListMails = Annotated[QueueAccess, Depends(access("list", MAILS))]
ReadMails = Annotated[QueueAccess, Depends(access("get", MAILS))]
ReadContent = Annotated[QueueAccess, Depends(access("get", CONTENT))]
ReadOperations = Annotated[QueueAccess, Depends(access("get", OPERATIONS))]
ChangeQueue = Annotated[QueueAccess, Depends(access("create", OPERATIONS))]
"""Parameters of routes: a queue to whose part the user has a right."""


def audited(at: QueueAccess, change: str, **more: str) -> None:
    """Record a change beside mail; no address is in `more`."""
    at.console.audit.record(at.on, at.who.name, change, more)
