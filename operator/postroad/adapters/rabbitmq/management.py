"""The management API, for what AMQP lacks: the number of unacknowledged messages, the running
nodes, the copies of queues and their policies, and users.

Its numbers are as old as RabbitMQ's collect_statistics_interval (5 s by default).

A vhost of RabbitMQ: the connections of a process, and the delay queues of all mail queues."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
from pydantic import BaseModel, BeforeValidator, FailFast, TypeAdapter, ValidationError

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.connection import Access, Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.publisher import KeptChannels
from postroad.batching import Shared
from postroad.domain.queues.quorum_queues import QuorumQueue, members_to_add
from postroad.errors import BrokerRefused, BrokerUnavailable, CredentialsRefused, ServerError
from postroad.http_responses import ResponseTooLarge, parsed_json, read_body
from postroad.logins import Login
from postroad.ports.servers import SAFE_COPIES, Guard
from postroad.telemetry.logs import logger
from postroad.tls import client_context, refusal

TIMEOUT = aiohttp.ClientTimeout(total=5)

DONE = {"GET": (200,), "POST": (200, 202, 204), "PUT": (201, 204), "DELETE": (204,)}
"""The status of an answer to a request that had its effect, by method."""

MAX_ANSWER = 8 * 1024 * 1024
"""Octets: a list of 14,000 queues with their members. As Python's objects they take up to 25 times
as many, of a server that a tenant of the operator names."""

MISSING = 404
COLUMNS = "columns=name,members,online,effective_policy_definition"

T = TypeVar("T")
Table = Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})]
"""A JSON object; RabbitMQ writes an empty one as an empty list."""


FIRST_ERROR = FailFast()
"""Ends a validation at the first error: pydantic keeps each, of millions some gigabytes."""

Names = Annotated[tuple[str, ...], FIRST_ERROR]


def listed(shape: type[T]) -> type[list[T]]:
    """Return the shape of a list of such values."""
    return Annotated[list[shape], FIRST_ERROR]  # type: ignore[valid-type, return-value]


class _Node(BaseModel):
    name: str
    running: bool = False


class _Queue(BaseModel):
    name: str
    members: Names = ()
    online: Names = ()
    effective_policy_definition: Table = {}
    messages_unacknowledged: int = 0

    @property
    def as_quorum(self) -> QuorumQueue:
        policy = frozenset(self.effective_policy_definition)
        return QuorumQueue(self.name, self.members, self.online, policy)


class _Exchange(BaseModel):
    arguments: Table = {}


class Management:
    """The management API of one vhost. The session is opened at the first use. `guard` is asked
    before each write."""

    def __init__(self, access: Access, guard: Guard | None = None) -> None:
        self._guard = guard
        parts = urlsplit(access.management_url or "")
        host = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._tls = access.tls
        self._vhost = quote(access.vhost, safe="")
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._login: Login | None = None
        """The user of the session."""

    async def unacknowledged(self, queue: str) -> int:
        """Return how many messages of a queue are unacknowledged.
        Raises: BrokerUnavailable, BrokerRefused, CredentialsRefused, TlsRefused."""
        found = await self._get(_Queue, f"queues/{self._vhost}/{quote(queue, safe='')}")
        return found.messages_unacknowledged

    async def nodes(self) -> list[str]:
        """Return the running nodes of the cluster. Errors as `unacknowledged`."""
        return [each.name for each in await self._get(listed(_Node), "nodes") if each.running]

    async def quorum_queues(self) -> list[QuorumQueue]:
        """Return the quorum queues of the vhost. Errors as `unacknowledged`."""
        found = await self._get(listed(_Queue), f"queues/{self._vhost}?{COLUMNS}")
        return [each.as_quorum for each in found if each.members]

    async def quorum_queue(self, queue: str) -> QuorumQueue | None:
        """Return a quorum queue; None where there is no queue, or another kind of one. RabbitMQ
        works as long on a list of all queues as on hundreds of these. Errors as `unacknowledged`.
        """
        path = f"queues/{self._vhost}/{quote(queue, safe='')}?{COLUMNS}"
        found = await self.find(_Queue, path)
        return found.as_quorum if found and found.members else None

    async def exchange_arguments(self, exchange: str) -> dict[str, object]:
        """Return the arguments that an exchange was declared with. Errors as `unacknowledged`."""
        path = f"exchanges/{self._vhost}/{quote(exchange, safe='')}"
        return (await self._get(_Exchange, path)).arguments

    async def add_member(self, queue: str, node: str) -> None:
        """Add a copy of a queue on one more node. Idempotent.
        Raises: as `unacknowledged`; BrokerRefused before RabbitMQ 4, where only
        `rabbitmq-queues grow` can, and for a user without the tag `administrator`."""
        path = f"queues/quorum/{self._vhost}/{quote(queue, safe='')}/replicas/add"
        await self._ask("POST", path, json={"node": node})

    async def find(self, shape: type[T], path: str) -> T | None:
        """Return what is under a path, None where nothing is. Errors as `unacknowledged`."""
        body = await self._ask("GET", path, may_miss=True)
        return None if body is None else _parsed(shape, body)

    async def put(self, path: str, body: Mapping[str, str]) -> None:
        """Make or replace what is under a path. Errors as `unacknowledged`."""
        await self._ask("PUT", path, json=dict(body))

    async def remove(self, path: str) -> None:
        """Delete what is under a path. Idempotent. Errors as `unacknowledged`."""
        await self._ask("DELETE", path, may_miss=True)

    async def _get(self, shape: type[T], path: str) -> T:
        return _parsed(shape, await self._ask("GET", path) or b"")

    async def _ask(
        self, method: str, path: str, *, may_miss: bool = False, **values: object
    ) -> bytes | None:
        """Return the body of an answer; None where it may be missing, and is."""
        url = f"{self._base}/api/{path}"
        if self._session is not None and self._access.login != self._login:
            await self.close()
        if self._guard is not None and method != "GET":
            self._guard()
        try:
            async with self._opened().request(method, url, **values) as answer:  # type: ignore[arg-type]
                if answer.status == 401:
                    raise CredentialsRefused(
                        "RabbitMQ's management API refused the user",
                        hint="give the user the tag `monitoring`, or leave out the management URL",
                    )
                if may_miss and answer.status == MISSING:
                    return None
                if answer.status not in DONE[method]:
                    raise BrokerRefused(f"RabbitMQ's management API answered {answer.status}")
                return await read_body(answer, MAX_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await self.close()  # so that the next session reads the authorities again
            refused = refusal("RabbitMQ's management API", str(error))
            if refused is not None:
                raise refused from error
            why = str(error) if isinstance(error, ResponseTooLarge) else type(error).__name__
            raise BrokerUnavailable(
                f"RabbitMQ's management API cannot be reached: {why}"
            ) from error

    def _opened(self) -> aiohttp.ClientSession:
        """Raises: TlsRefused when the file of authorities cannot be used, CredentialsMissing."""
        if self._session is None:
            self._login = self._access.login
            name, password = self._login.username, self._login.password
            secured = self._base.startswith("https:")
            context = client_context(self._tls) if secured else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context),
                headers={"Authorization": aiohttp.encode_basic_auth(name, password)},
                timeout=TIMEOUT,
            )
        return self._session

    async def close(self) -> None:
        """Close the session. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _parsed(shape: type[T], body: bytes) -> T:
    """Raises: BrokerRefused where the body has another shape: a proxy may answer in its place."""
    try:
        return TypeAdapter(shape).validate_python(parsed_json(body))
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, wrong["loc"])) or "its value"
        problem = f"not as RabbitMQ does: {place}: {wrong['msg']}"
    except ValueError:
        problem = "without JSON"
    raise BrokerRefused(
        f"RabbitMQ's management API answered {problem}",
        hint="the management URL has to lead to RabbitMQ itself",
    )


DECLARED = timedelta(minutes=1)
"""Time for which the shared delay queues are not declared again: it takes 51 requests, and a
process may declare a thousand mail queues."""

SURVEYED = timedelta(minutes=2)
"""Time that a survey stands for questions about single queues. The checks of a QueueCluster make
one each minute, and an operator that starts declares all its queues."""

_LOG = logger("rabbitmq")


@dataclass(frozen=True, slots=True)
class Survey:
    """The running nodes, and the quorum queues of the vhost by name, at a moment of the loop."""

    at: float
    running: Sequence[str]
    queues: Mapping[str, QuorumQueue]


class Vhost:
    """The connections that all queues of a process share: one to publish and administer, one to
    consume, because a server that blocks publishers must still read acks. `guard` is asked before
    anything is sent."""

    def __init__(self, access: Access, guard: Guard | None = None) -> None:
        self.name = access.vhost
        self.publishing = RabbitMQConnection(access, "publisher", guard)
        self.consuming = RabbitMQConnection(access, "consumer", guard)
        self._channels = KeptChannels(self.publishing)
        self.management = Management(access, guard) if access.management_url else None
        self._declared_at: float | None = None
        self._declaring: Shared[None] = Shared()
        self._last_survey: Survey | None = None

    async def check(self) -> str:
        """Return the server's version. Raises: ServerError."""
        return await self.publishing.version()

    async def declare_delays(self) -> None:
        """Create what is missing of the shared delay queues, unless this process did so within
        `DECLARED`. Concurrent callers share one attempt. Raises: ServerError."""
        now = asyncio.get_running_loop().time()
        if self._declared_at is None or now - self._declared_at > DECLARED.total_seconds():
            await self._declaring.get(self._declare_delays)

    def forget_delays(self) -> None:
        """Declare the shared delay queues again the next time."""
        self._declared_at = None

    async def _declare_delays(self) -> None:
        await self.administer(topology.declare, topology.SHARED)
        await self.replicate(topology.SHARED)
        self._declared_at = asyncio.get_running_loop().time()

    async def administer(
        self,
        action: Callable[[Channel, topology.Topology], Awaitable[T]],
        wanted: topology.Topology,
    ) -> T:
        """Run an action on a channel that no other one uses meanwhile (see `KeptChannels`)."""
        return await self._channels.lend(lambda channel: action(channel, wanted))

    async def survey(self, management: Management) -> Survey:
        """Ask for the nodes and all quorum queues, and keep the answer. Raises: ServerError."""
        running, queues = await management.nodes(), await management.quorum_queues()
        now = asyncio.get_running_loop().time()
        self._last_survey = Survey(now, running, {each.name: each for each in queues})
        return self._last_survey

    async def replicate(self, wanted: topology.Topology) -> None:
        """Add copies of queues on nodes that joined after they were declared. Best effort: the
        API of RabbitMQ 3 cannot, and a condition of the QueueCluster shows missing copies."""
        management = self.management
        if management is None:
            return
        known = self._fresh_survey()
        surveyed = {} if known is None else known.queues
        try:
            names = [each.name for each in wanted.queues]
            found = [surveyed.get(name) or await management.quorum_queue(name) for name in names]
            lacking = [each for each in found if each and len(each.members) < SAFE_COPIES]
            if not lacking:
                return
            running = await management.nodes() if known is None else known.running
            for queue in lacking:
                for node in members_to_add(queue, running, SAFE_COPIES):
                    self._last_survey = None
                    await management.add_member(queue.name, node)
                    _LOG.info("a copy of a queue was added", queue=queue.name, node=node)
        except ServerError as error:
            _LOG.debug("copies of queues could not be added", error=str(error))

    def _fresh_survey(self) -> Survey | None:
        """Return the last survey, unless it is old, or what it shows was changed."""
        known, now = self._last_survey, asyncio.get_running_loop().time()
        if known is None or now - known.at > SURVEYED.total_seconds():
            return None
        return known

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await asyncio.gather(self.publishing.close(), self.consuming.close())
        if self.management is not None:
            await self.management.close()
