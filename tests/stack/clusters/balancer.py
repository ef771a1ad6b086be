"""One address for several servers of a kind: `python -m stack.clusters.balancer ADDRESS FILE`.

It does for RabbitMQ and S3, whose clients know one address, what a Kubernetes Service or a load
balancer does: each new connection goes to the next server that accepts it. Cassandra's driver knows
the nodes itself. The file has the servers' addresses for each port; the balancer reads it at every
connection.
"""

import asyncio
import json
import sys
from pathlib import Path

from stack.forwarder import Forwarder

CONNECT_SECONDS = 1.0


class Balancer(Forwarder):
    """Copies each connection to the next of several servers that accepts it."""

    def __init__(self, targets: Path, port: int, source: str) -> None:
        """Take the file of servers, the port to forward, and our own address for connections."""
        super().__init__(port)
        self._targets = targets
        self._key = str(port)
        self._source = source
        self._turn = 0

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        hosts = json.loads(self._targets.read_text())[self._key]
        self._turn += 1
        errors: list[OSError] = []
        for step in range(len(hosts)):
            host = hosts[(self._turn + step) % len(hosts)]
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(
                        host, int(self._key), local_addr=(self._source, 0)
                    )
            except OSError as error:  # a TimeoutError is one
                errors.append(error)
        raise OSError(f"no server accepts connections on port {self._key}: {errors}")


async def main(address: str, targets: Path) -> None:
    """Forward every port of the file, for ever."""
    balancers = [Balancer(targets, int(port), address) for port in json.loads(targets.read_text())]
    for balancer in balancers:
        await balancer.start(address, balancer.target_port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
