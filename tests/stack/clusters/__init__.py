"""Clusters on this machine: three Cassandra nodes, three RabbitMQ nodes, two gateways to one store.

Each node has a network namespace, a disk and a clock of its own, so that it can be killed, cut off,
slowed, filled and skewed alone. `python -m stack cluster` is the same by hand.
"""

from stack.clusters import commands
from stack.clusters.cluster import Cluster

__all__ = ["Cluster", "commands"]
