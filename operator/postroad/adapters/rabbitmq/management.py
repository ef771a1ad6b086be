"""The management API, for what AMQP lacks: the number of unacknowledged messages, the running
nodes, the copies of queues and their policies, and users.

Its numbers are as old as RabbitMQ's collect_statistics_interval (5 s by default).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp

from postroad.adapters.rabbitmq.access import Access
from postroad.domain.servers.replicas import QuorumQueue
from postroad.errors import BrokerRefused, BrokerUnavailable, CredentialsRefused
from postroad.http_answers import AnswerTooLarge, parsed_json, read_body
from postroad.logins import Login
from postroad.ports.servers import Guard
from postroad.tls import client_context, refusal

TIMEOUT = aiohttp.ClientTimeout(total=5)

DONE = {"GET": (200,), "POST": (200, 202, 204), "PUT": (201, 204), "DELETE": (204,)}
"""The status of an answer to a request that had its effect, by method."""

MAX_ANSWER = 64 * 1024 * 1024
"""Octets: a list of 100,000 queues with their members."""

MISSING = 404
COLUMNS = "columns=name,members,online,effective_policy_definition"


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
        found = await self._get(f"queues/{self._vhost}/{quote(queue, safe='')}")
        return int(found.get("messages_unacknowledged", 0))

    async def nodes(self) -> list[str]:
        """Return the running nodes of the cluster. Errors as `unacknowledged`."""
        return [each["name"] for each in await self._get("nodes") if each.get("running")]

    async def quorum_queues(self) -> list[QuorumQueue]:
        """Return the quorum queues of the vhost. Errors as `unacknowledged`."""
        found = await self._get(f"queues/{self._vhost}?{COLUMNS}")
        return [_quorum_queue(each) for each in found if each.get("members")]

    async def quorum_queue(self, queue: str) -> QuorumQueue | None:
        """Return a quorum queue; None where there is no queue, or another kind of one. RabbitMQ
        works as long on a list of all queues as on hundreds of these. Errors as `unacknowledged`.
        """
        path = f"queues/{self._vhost}/{quote(queue, safe='')}?{COLUMNS}"
        found = await self._ask("GET", path, may_miss=True)
        return _quorum_queue(found) if found and found.get("members") else None

    async def exchange_arguments(self, exchange: str) -> dict[str, object]:
        """Return the arguments that an exchange was declared with. Errors as `unacknowledged`."""
        found = await self._get(f"exchanges/{self._vhost}/{quote(exchange, safe='')}")
        return dict(found.get("arguments") or {})

    async def add_member(self, queue: str, node: str) -> None:
        """Add a copy of a queue on one more node. Idempotent.
        Raises: as `unacknowledged`; BrokerRefused before RabbitMQ 4, where only
        `rabbitmq-queues grow` can, and for a user without the tag `administrator`."""
        path = f"queues/quorum/{self._vhost}/{quote(queue, safe='')}/replicas/add"
        await self._ask("POST", path, json={"node": node})

    async def find(self, path: str) -> Any:
        """Return what is under a path, None where nothing is. Errors as `unacknowledged`."""
        return await self._ask("GET", path, may_miss=True)

    async def put(self, path: str, body: Mapping[str, str]) -> None:
        """Make or replace what is under a path. Errors as `unacknowledged`."""
        await self._ask("PUT", path, json=dict(body))

    async def remove(self, path: str) -> None:
        """Delete what is under a path. Idempotent. Errors as `unacknowledged`."""
        await self._ask("DELETE", path, may_miss=True)

    async def _get(self, path: str) -> Any:
        return await self._ask("GET", path)

    async def _ask(
        self, method: str, path: str, *, may_miss: bool = False, **values: object
    ) -> Any:
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
                body = await read_body(answer, MAX_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await self.close()  # so that the next session reads the authorities again
            refused = refusal("RabbitMQ's management API", str(error))
            if refused is not None:
                raise refused from error
            why = str(error) if isinstance(error, AnswerTooLarge) else type(error).__name__
            raise BrokerUnavailable(
                f"RabbitMQ's management API cannot be reached: {why}"
            ) from error
        return _json_in(body) if method == "GET" else None

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session. Raises: TlsRefused when the file of authorities cannot be used,
        CredentialsMissing."""
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


def _json_in(body: bytes) -> Any:
    try:
        return parsed_json(body)
    except ValueError as error:
        raise BrokerRefused("RabbitMQ's management API answered without JSON") from error


def _quorum_queue(found: Mapping[str, Any]) -> QuorumQueue:
    return QuorumQueue(
        found["name"],
        tuple(found["members"]),
        tuple(found.get("online") or ()),
        frozenset(found.get("effective_policy_definition") or ()),
    )
