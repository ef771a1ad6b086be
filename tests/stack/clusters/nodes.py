"""The kinds of nodes there are."""

from collections.abc import Mapping
from typing import ClassVar

from stack.clusters.cassandra_node import CassandraNode
from stack.clusters.node import Node
from stack.clusters.rabbitmq_node import RabbitMQNode
from stack.errors import NotPossible
from stack.s3 import VersityGW


class S3Node(Node, VersityGW):
    """A gateway to the cluster's one store of objects."""

    kind = "s3"
    fixed_ports: ClassVar[Mapping[str, int]] = {"s3": 9000}

    def skew(self, seconds: float, rate: float) -> None:
        """Refuse: no library can be preloaded into a program that is linked statically."""
        raise NotPossible(f"{self.name}: its clock cannot be changed; skew its clients instead")

    def slow_disk(self, seconds: float) -> None:
        """Refuse: the gateway never syncs."""
        if seconds:
            raise NotPossible(f"{self.name}: it never syncs, so its disk cannot be slowed")


KINDS: Mapping[str, type[Node]] = {
    each.kind: each for each in (CassandraNode, RabbitMQNode, S3Node)
}
DEBIAN = (
    *("gcc", "libc6-dev", "iproute2", "iptables", "nftables", "util-linux", "mount", "e2fsprogs"),
    *(name for kind in KINDS.values() for name in kind.debian),
)

__all__ = ["DEBIAN", "KINDS", "CassandraNode", "Node", "RabbitMQNode", "S3Node"]
