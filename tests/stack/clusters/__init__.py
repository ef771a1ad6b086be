"""Clusters on this machine: three Cassandra nodes, three RabbitMQ nodes, two gateways to one store.

Each node has a network namespace, a disk and a clock of its own. So a test can kill, cut off, slow,
fill and skew one node alone. `python -m stack cluster` does the same from a shell.
"""

from stack.clusters import commands
from stack.clusters.cluster import Cluster

__all__ = ["Cluster", "commands"]
