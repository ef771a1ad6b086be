"""`QueueUsers` over the management API: users, permissions, and topic permissions; the claim on a
mail queue's objects in a vhost: which QueueCluster declares and deletes them.

The login of this process needs the tag `administrator` for the users.

The claim is an exchange that carries no message. Of the arguments of an exchange that is declared
again, RabbitMQ compares `alternate-exchange` alone: so that one holds the token, and a second
claimant gets 406, whose text has the token that holds. RabbitMQ cuts the text at 255 octets, and
with it the token where names are long. The whole claimant is an argument that only the management
API shows. Source: ADR 0040."""

import json
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Annotated
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.management import Management, Vhost, listed
from postroad.adapters.rabbitmq.topology import DELAYS, DeclaredExchange, Topology
from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.errors import BrokerRefused, CredentialsRefused, ServerError

TAG = "management"
"""Fields that depths and the audit of messages ask of the management API."""

NOTHING = "^$"


class BrokerUser(BaseModel):
    """A user. RabbitMQ before 3.9 joins the tags by commas."""

    name: str
    tags: Annotated[set[str], BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)]


class Permission(BaseModel):
    """A permission, or one about topics; a later RabbitMQ may show more fields."""

    vhost: str
    exchange: str = DELAYS
    configure: str = NOTHING
    write: str
    read: str


def permissions_of(queue: QueueName) -> dict[str, str]:
    """Return the patterns of the names that programs of a queue may use in the vhost."""
    name = str(queue).replace(".", r"\.")
    delays = DELAYS.removeprefix("postroad.")
    events = r"events\.[-a-z0-9]+"
    return {
        "configure": NOTHING,  # who declares a queue names where its messages go after it
        "write": rf"^postroad\.({delays}|events(-[-a-z0-9]+)?|{name}(\.{events})?)$",
        "read": rf"^postroad\.{name}(\.(work|dead|{events}))?$",
    }


def topic_permission_of(queue: QueueName) -> dict[str, str]:
    """Return the patterns of the routing keys that they may use at the exchange of delays."""
    name = str(queue).replace(".", r"\.")
    return {"exchange": DELAYS, "write": rf"^[0-9]+\.{name}$", "read": NOTHING}


class RabbitMQQueueUsers:
    """Queue users in one vhost of RabbitMQ."""

    def __init__(self, vhost: Vhost) -> None:
        self._management = vhost.management
        self._vhost = vhost.name

    async def made_for(self, token: str) -> Collection[QueueUser]:
        async with self._as_administrator() as api:
            found = await api.find(listed(BrokerUser), "users") or []
        users = (QueueUser.parse(each.name) for each in found)
        return [each for each in users if each is not None and each.token == token]

    async def has_rights(self, user: QueueUser) -> bool | None:
        name = quote(str(user), safe="")
        async with self._as_administrator() as api:
            found = await api.find(BrokerUser, f"users/{name}")
            if found is None:
                return None
            given = await self._given(api, name, "permissions")
            topics = await self._given(api, name, "topic-permissions")
        wanted = Permission(vhost=self._vhost, **permissions_of(user.queue))
        wanted_topic = Permission(vhost=self._vhost, **topic_permission_of(user.queue))
        return found.tags == {TAG} and (given, topics) == ([wanted], [wanted_topic])

    async def give(self, user: QueueUser, password: str) -> None:
        name = quote(str(user), safe="")
        place = f"{quote(self._vhost, safe='')}/{name}"
        async with self._as_administrator() as api:
            await api.put(f"users/{name}", {"password": password, "tags": TAG})
            for which in ("permissions", "topic-permissions"):
                for each in await self._given(api, name, which):
                    if not self._is_replaced(each):
                        await api.remove(f"{which}/{quote(each.vhost, safe='')}/{name}")
            await api.put(f"permissions/{place}", permissions_of(user.queue))
            await api.put(f"topic-permissions/{place}", topic_permission_of(user.queue))

    async def delete(self, user: QueueUser) -> None:
        async with self._as_administrator() as api:
            await api.remove(f"users/{quote(str(user), safe='')}")

    def _is_replaced(self, permission: Permission) -> bool:
        """True if `give` puts another in the place of a permission, without an instant at which
        programs that run have none."""
        return (permission.vhost, permission.exchange) == (self._vhost, DELAYS)

    async def _given(self, api: Management, name: str, which: str) -> list[Permission]:
        """Return what a user is permitted in all vhosts."""
        return await api.find(listed(Permission), f"users/{name}/{which}") or []

    @asynccontextmanager
    async def _as_administrator(self) -> AsyncIterator[Management]:
        if self._management is None:
            raise BrokerRefused("RabbitMQ's users are made by its management API, which has no URL")
        try:
            yield self._management
        except CredentialsRefused as error:
            raise CredentialsRefused(
                "RabbitMQ's management API lets this user make no others",
                hint="give it the tag `administrator`, or correct its password",
            ) from error


_TOKEN = re.compile(r" has alternate-exchange postroad\.([0-9a-f]{12}),")


class QueueClaim:
    """`ClaimRecord` of one mail queue."""

    def __init__(self, vhost: Vhost, queue: QueueName) -> None:
        self._vhost = vhost
        self._exchange = queue.claim_exchange

    async def claim(self, claimant: Claimant) -> Claim:
        try:
            await self._vhost.administer(topology.declare, self._topology(claimant))
        except BrokerRefused as error:
            if "alternate-exchange" not in str(error):
                raise
            return await self._claim_in(str(error))
        return Claim.of(claimant)

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        """See the port. Not one step: a claimant that comes between the two has the claim."""
        holding = await self.claim(claimant)
        if holding != found:
            return holding
        await self._delete(claimant)
        return await self.claim(claimant)

    async def release(self, claimant: Claimant) -> None:
        if (await self.claim(claimant)).is_of(claimant):
            await self._delete(claimant)

    async def _delete(self, claimant: Claimant) -> None:
        await self._vhost.administer(topology.delete, self._topology(claimant))

    def _topology(self, claimant: Claimant) -> Topology:
        arguments = {
            "alternate-exchange": f"postroad.{claimant.token}",
            "claimant": json.dumps(claimant.encode()),
        }
        return Topology((DeclaredExchange(self._exchange, "direct", arguments),), ())

    async def _claim_in(self, refusal: str) -> Claim:
        claimant = await _shown(self._vhost.management, self._exchange)
        if claimant is not None:
            return Claim.of(claimant)
        found = _TOKEN.search(refusal)
        return Claim(found[1] if found else "", None)


async def _shown(management: Management | None, exchange: str) -> Claimant | None:
    """Return the claimant that the management API shows; None where it does not."""
    try:
        arguments = await management.exchange_arguments(exchange) if management else {}
        return Claimant.decode(json.loads(str(arguments.get("claimant"))))
    except (ServerError, ValueError):
        return None
