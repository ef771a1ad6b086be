"""An API server that reviews tokens and rights, in memory; and consoles whose users it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from postroad import open_queue
from postroad.console.api.access import Console
from postroad.console.api.app import console_app, guarded
from postroad.console.api.guard import Hosts, RequestRate
from postroad.console.api.sessions import TokenIdentities
from postroad.console.audit import Announce
from postroad.console.openid import OpenIdClient, OpenIdLogins
from postroad.console.queues import ConsoleQueue
from postroad.console.reviewed_rights import ReviewedRights
from postroad.domain.queues.names import QueueName
from postroad.errors import KubernetesUnavailable
from postroad.ports.access_reviews import AccessReviews, ReviewedRight, ReviewedUser
from support.consoles import HOST, NO_LIMIT, a_client
from support.memory.clock import ManualClock

AUDIENCE = "postroad.dev/consoles/mail/main"

VIEWER = (
    ("get", "mailqueues"), ("list", "mailqueues"),
    ("get", "mailqueues/mails"), ("list", "mailqueues/mails"),
)  # fmt: skip


@dataclass
class MemoryAccessReviews:
    """The port in memory. `tokens`: the user of each token, and its audience; `rights`: what each
    user may, as verb, resource, namespace, and perhaps name."""

    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    rights: set[tuple[str, ReviewedRight]] = field(default_factory=set)
    is_away: bool = False
    asked: list[object] = field(default_factory=list)

    def give(self, user: str, namespace: str, *rights: tuple[str, str]) -> str:
        """Give a user rights in a namespace, and return a token of the user."""
        self.rights |= {(user, ReviewedRight(*each, namespace)) for each in rights}
        self.tokens[f"token-of-{user}"] = user, AUDIENCE
        return f"token-of-{user}"

    async def user_of(self, token: str, audience: str) -> ReviewedUser | None:
        self._ask("user")
        user, of = self.tokens.get(token, ("", ""))
        return ReviewedUser(user) if user and of in (audience, "") else None

    async def allows(self, user: ReviewedUser, right: ReviewedRight) -> bool:
        self._ask(right)
        every = ReviewedRight(right.verb, right.resource, right.namespace)
        return not self.rights.isdisjoint({(user.name, right), (user.name, every)})

    def _ask(self, what: object) -> None:
        self.asked.append(what)
        if self.is_away:
            raise KubernetesUnavailable("the Kubernetes API server does not answer")


@dataclass
class MemoryQueues:
    """Queues in memory, each opened when it is asked for. `opened`: which ones were."""

    of: Mapping[QueueName, str]
    opened: dict[QueueName, ConsoleQueue] = field(default_factory=dict)

    def names(self) -> list[QueueName]:
        return list(self.of)

    def conditions(self, name: QueueName) -> list[dict[str, str]]:
        return [{"type": "Ready", "status": "True", "reason": "AsDeclared"}]

    async def open(self, name: QueueName) -> ConsoleQueue:
        if name not in self.opened:
            queue = await open_queue(self.of[name], create=True)
            self.opened[name] = ConsoleQueue(name, queue, uid=f"uid-of-{name}")
        return self.opened[name]


@dataclass
class ReviewedConsole:
    """A console of a cluster with the queues `a/outgoing` and `b/outgoing`."""

    queues: MemoryQueues
    identities: TokenIdentities
    client: httpx.AsyncClient
    console: Console

    async def get(self, token: str, path: str) -> httpx.Response:
        return await self.client.get(path, headers={"Authorization": f"Bearer {token}"})


@asynccontextmanager
async def a_reviewed_console(
    reviews: AccessReviews,
    *,
    clock: ManualClock | None = None,
    rate: RequestRate = NO_LIMIT,
    announce: Announce | None = None,
    namespaces: tuple[str, ...] = ("a", "b"),
    issuer: OpenIdClient | None = None,
) -> AsyncIterator[ReviewedConsole]:
    clock = clock or ManualClock()
    queues = MemoryQueues({QueueName(each, "outgoing"): f"memory://{each}" for each in namespaces})
    rights = ReviewedRights(reviews, clock.elapsed, AUDIENCE)
    console = Console.over(queues, rights, clock, announce)
    logins = None if issuer is None else OpenIdLogins(issuer, clock.elapsed)
    identities = TokenIdentities(rights, clock.elapsed, logins)
    hosts = Hosts({"main-console.mail.svc"}, {"console.example.org"}, is_forwarded=True)
    app = guarded(console_app(console, None), identities, hosts, console, rate)
    async with a_client(app) as client:
        assert client.base_url.host in HOST
        try:
            yield ReviewedConsole(queues, identities, client, console)
        finally:
            await console.operations.close()
            for each in queues.opened.values():
                await each.queue.close()
