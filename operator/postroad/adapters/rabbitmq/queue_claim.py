"""The claim on a mail queue's objects in a vhost: which QueueCluster declares and deletes them.

It is an exchange that carries no message. Of the arguments of an exchange that is declared again,
RabbitMQ compares `alternate-exchange` alone: so that one holds the token, and a second claimant
gets 406, whose text has the token that holds. RabbitMQ cuts the text at 255 octets, and with it the
token where names are long. The whole claimant is an argument that only the management API shows.
Source: ADR 0040.
"""

import json
import re

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.management import Management, Vhost
from postroad.adapters.rabbitmq.topology import DeclaredExchange, Topology
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.server_claims import Claim, Claimant
from postroad.errors import BrokerRefused, ServerError

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
