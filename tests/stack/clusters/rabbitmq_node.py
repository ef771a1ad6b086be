"""A node of RabbitMQ: how it joins, and agrees with the others."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from stack import probes
from stack.clusters.faults import library
from stack.clusters.node import Node, Place
from stack.rabbitmq import USER, RabbitMQ
from stack.records import Record

MORE_RABBITMQ = """\
cluster_partition_handling = pause_minority
cluster_formation.peer_discovery_backend = classic_config
"""


class RabbitMQNode(Node, RabbitMQ):
    """A node of a RabbitMQ cluster; a minority that is cut off pauses itself."""

    kind = "rabbitmq"
    fixed_ports: ClassVar[Mapping[str, int]] = {
        "amqp": 5672,
        "management": 15672,
        "epmd": 4369,
        "distribution": 25672,
    }
    disk_free_limit = "50MB"
    ready_seconds = 400

    def __init__(self, name: str, place: Place) -> None:
        """Take its name and its place."""
        super().__init__(name, place)
        self.node_name = f"rabbit@{self.host}"

    def more(self) -> str:
        """Return the configuration that names the nodes to join."""
        lines = [
            f"cluster_formation.classic_config.nodes.{number} = rabbit@{address}\n"
            for number, address in enumerate(self.place.peers, 1)
        ]
        return MORE_RABBITMQ + "".join(lines)

    def settings(self, record: Record) -> dict[str, str]:
        """Return the environment of the node and of its tools: nodes are named by address."""
        return {**super().settings(record), "RABBITMQ_USE_LONGNAME": "true"}

    def visible(self) -> Sequence[Path]:
        """Return its own folder, with its disk, and that of the library of faults."""
        return [self.directory, library().path]

    def ctl(self, *words: str) -> str:
        """Run rabbitmqctl against this node; two seconds of CPU each.

        Raises:
            StackError: it failed.
        """
        return self._script("rabbitmqctl", *words)

    def queues(self, *words: str) -> str:
        """Run rabbitmq-queues, which adds and removes members of quorum queues.

        Raises:
            StackError: it failed.
        """
        return self._script("rabbitmq-queues", *words)

    def _script(self, script: str, *words: str) -> str:
        command = self.script(script, "--longnames", "-n", self.node_name, *words)
        return self.tool(command, self.settings(self.record))

    def leave(self, serving: Node) -> None:
        """Take its members out of the quorum queues, then itself out of the cluster."""
        assert isinstance(serving, RabbitMQNode)
        serving.queues("shrink", self.node_name)
        self.kill()
        serving.ctl("forget_cluster_node", self.node_name)

    def clock_seconds(self) -> float:
        """Return the node's clock, by the operating system interface of the Erlang VM."""
        return int(self.ctl("eval", "os:system_time(millisecond).").strip()) / 1000

    def agrees(self, count: int) -> bool:
        """Return whether all nodes run, none sees a partition, and every quorum queue has all its
        members online."""
        if not self.answers():
            return False
        record = self.record
        url = f"http://{self.host}:{record.ports['management']}/api"
        login = probes.basic(USER, record.secrets["password"])
        nodes = probes.http_json(f"{url}/nodes", login)
        queues = probes.http_json(f"{url}/queues?columns=type,members,online,leader", login)
        if not isinstance(nodes, list) or not isinstance(queues, list):
            return False
        return (
            len(nodes) == count
            and all(each.get("running") and not each.get("partitions") for each in nodes)
            and all(
                set(each.get("online") or ()) >= set(each.get("members") or ())
                and each.get("leader") in (each.get("online") or ())
                for each in queues
                if each.get("type") == "quorum"
            )
        )
