"""The little that only the management API knows: how many messages are handed out, by how many
nodes.

Its numbers are as old as RabbitMQ's collect_statistics_interval (5 s by default).
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp

from postroad.adapters.rabbitmq.access import Access
from postroad.errors import BrokerRefused, BrokerUnavailable, CredentialsRefused

TIMEOUT = aiohttp.ClientTimeout(total=5)


class Management:
    """The management API of one vhost. The session is opened at the first use."""

    def __init__(self, access: Access) -> None:
        parts = urlsplit(access.management_url or "")
        host = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._ca_file = access.ca_file
        self._vhost = quote(access.vhost, safe="")
        self._headers = {
            "Authorization": aiohttp.encode_basic_auth(access.username, access.password)
        }
        self._session: aiohttp.ClientSession | None = None

    async def unacknowledged(self, queue: str) -> int:
        """Return how many messages of a queue consumers hold.
        Raises: BrokerUnavailable, BrokerRefused, CredentialsRefused."""
        found = await self._get(f"queues/{self._vhost}/{quote(queue, safe='')}")
        return int(found.get("messages_unacknowledged", 0))

    async def nodes(self) -> int:
        """Return how many nodes of the cluster run. Errors as `unacknowledged`."""
        return sum(bool(each.get("running")) for each in await self._get("nodes"))

    async def _get(self, path: str) -> Any:
        try:
            async with self._opened().get(f"{self._base}/api/{path}") as answer:
                if answer.status == 401:
                    raise CredentialsRefused(
                        "RabbitMQ's management API refused the user",
                        hint="give the user the tag `monitoring`, or leave out the management URL",
                    )
                if answer.status != 200:
                    raise BrokerRefused(f"RabbitMQ's management API answered {answer.status}")
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await self.close()  # authorities are read again with the next session
            raise BrokerUnavailable(
                f"RabbitMQ's management API cannot be reached: {type(error).__name__}"
            ) from error

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session. Raises: OSError when the file of authorities cannot be used."""
        if self._session is None:
            secured = self._base.startswith("https:")
            context = ssl.create_default_context(cafile=self._ca_file) if secured else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context), headers=self._headers, timeout=TIMEOUT
            )
        return self._session

    async def close(self) -> None:
        """Close the session. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
