"""A cluster: its nodes, and every fault that they can have."""

import itertools
from collections.abc import Sequence
from urllib.parse import quote

from stack.clusters.faults import Faults
from stack.clusters.membership import HOST, Membership
from stack.clusters.nodes import KINDS, Node
from stack.errors import StackError
from stack.rabbitmq import USER
from stack.s3 import ACCESS_KEY, REGION
from stack.server import State


class Cluster(Membership):
    """The nodes of one folder, and their faults. The clusters of two folders share nothing.

    A method that takes the name of a node, such as `skew` and `partition`, takes clients by name as
    well: those that `environment` was called for, and `host`, the machine itself.
    """

    def environment(self, client: str | None = None, data_center: str = "dc1") -> dict[str, str]:
        """Return the variables that lead a process of this machine to the cluster.

        With a client's name, also the variables that give the process an address of its own, which
        can be cut off, and a clock of its own, which can be skewed. The variables name each
        Cassandra node; RabbitMQ's and S3's nodes are behind one address, as behind a Service of
        Kubernetes.
        """
        address = self.network.host if client is None else self._client(client)
        nodes = [
            self.network.address(each.number)
            for each in self._layout.of("cassandra")
            if each.data_center == data_center
        ]
        password = self._layout.secrets["password"]
        login = f"{USER}:{quote(password)}@{address}"
        variables = {
            "POSTROAD_RABBITMQ_URI": f"amqp://{login}:5672/%2F",
            "POSTROAD_RABBITMQ_MANAGEMENT_URL": f"http://{login}:15672",
            "POSTROAD_CASSANDRA_CONTACT_POINTS": ",".join(nodes),
            "POSTROAD_CASSANDRA_PORT": "9042",
            "POSTROAD_CASSANDRA_LOCAL_DATACENTER": data_center,
            "POSTROAD_CASSANDRA_KEYSPACE": "postroad",
            "POSTROAD_CASSANDRA_USERNAME": USER,
            "POSTROAD_CASSANDRA_PASSWORD": password,
            "POSTROAD_S3_ENDPOINT": f"http://{address}:9000",
            "POSTROAD_S3_REGION": REGION,
            "POSTROAD_S3_ACCESS_KEY": ACCESS_KEY,
            "POSTROAD_S3_SECRET_KEY": password,
        }
        return (
            variables if client is None else variables | self._faults(client).environment(address)
        )

    def _client(self, name: str) -> str:
        """Return a client's address; makes the client when it is new."""
        with self._held():
            if name not in (each.name for each in self._layout.of("client")):
                if name == HOST or name in self.nodes:
                    raise StackError(f"{name} is no name for a client: something else has it")
                changed, _ = self._layout.added("client", name=name)
                changed.save(self.directory)
            self._faults(name).prepare()
            self._follow()
        return self._address(name)

    def _faults(self, name: str) -> Faults:
        if name in self.nodes:
            return self.node(name).faults
        if name not in (each.name for each in self._layout.of("client")):
            raise StackError(f"no node or client is called {name}")
        return Faults(self.directory / "clients" / name / "faults")

    def _address(self, name: str) -> str:
        if name == HOST:
            return self.network.host
        for member in self._layout.members:
            if member.name == name:
                return self.network.address(member.number)
        raise StackError(f"no node or client is called {name}")

    def state(self, name: str) -> State:
        """Return the status of a node."""
        return self.node(name).state()

    def kill(self, name: str) -> None:
        """End a node without warning (SIGKILL); its data stay on its disk."""
        self.node(name).kill()

    def stop(self, name: str) -> None:
        """Stop a node in the orderly way."""
        self.node(name).stop()

    def restart(self, name: str) -> None:
        """Stop a node in the orderly way and start it again; returns when it serves."""
        self.stop(name)
        self.start(name)

    def pause(self, name: str) -> None:
        """Freeze a node (SIGSTOP): its connections stay open, nothing answers."""
        self.node(name).pause()

    def resume(self, name: str) -> None:
        """Let a frozen node go on."""
        self.node(name).resume()

    def partition(self, *groups: Sequence[str], one_way: bool = False) -> None:
        """Drop all packets between members that no group has together; replaces earlier cuts.

        Groups may overlap, so that three pairs make a ring. A member in no group reaches
        everything. With `one_way` there are two groups, and the packets from the first to the
        second are lost.
        """
        if one_way and len(groups) != 2:
            raise StackError("a one-way partition has two groups: who sends, who does not receive")
        named = sorted({name for group in groups for name in group})
        incoming: dict[str, set[str]] = {name: set() for name in named}
        outgoing: dict[str, set[str]] = {name: set() for name in named}
        for one, other in itertools.permutations(named, 2):
            if any(one in group and other in group for group in groups):
                continue
            if not one_way or (one in groups[0] and other in groups[1]):
                outgoing[one].add(self._address(other))
                incoming[other].add(self._address(one))
        for name in self.nodes:
            number = self.node(name).place.number
            self.network.cut(number, incoming.get(name, set()), outgoing.get(name, set()))

    def heal(self) -> None:
        """Let every packet through again."""
        self.partition()

    def slow(self, name: str, *, network: float = 0.0, disk: float = 0.0) -> None:
        """Delay each packet that a node sends, and each sync of a file, by so many seconds.

        Raises:
            NotPossible: the disk of an S3 gateway, which never syncs.
        """
        node = self.node(name)
        node.slow_disk(disk)
        node.delay_packets(network)

    def skew(self, name: str, seconds: float, rate: float = 1.0) -> None:
        """Set the wall clock of a node or client ahead of the machine's, and its rate from now on.

        A rate of 1.001 gains 3.6 s an hour. Both hold until the next call, also over restarts;
        `skew(name, 0)` sets the clock right. Monotonic clocks stay as they are.

        Raises:
            NotPossible: an S3 gateway, which is linked statically.
        """
        if name in self.nodes:
            self.node(name).skew(seconds, rate)
        else:
            self._faults(name).skew(seconds, rate)

    def fill_disk(self, name: str) -> None:
        """Leave no free block on a node's filesystem; S3's gateways share one."""
        self.node(name).volume.fill()

    def free_disk(self, name: str) -> None:
        """Free the space that `fill_disk` took. A node of Cassandra or RabbitMQ that met a full
        disk runs on, but serves again only after a `restart`."""
        self.node(name).volume.free()

    def restore(self, timeout: float = 600) -> None:
        """Undo every fault, start dead nodes, and wait until all nodes agree.

        Raises:
            StackError: they do not, in time.
        """
        self.heal()
        for name in self.nodes:
            node = self.node(name)
            if node.volume.free() and node.kind != "s3":
                # Cassandra and RabbitMQ serve again only after a restart once they met a full disk.
                node.kill()
            if node.faults.path.exists() and node.kind != "s3":
                self.skew(name, 0)
                node.slow_disk(0)
            node.delay_packets(0)
        for member in self._layout.of("client"):
            self.skew(member.name, 0)
        self.start(*self.nodes)
        self.settled(timeout)


__all__ = ["KINDS", "Cluster", "Node"]
