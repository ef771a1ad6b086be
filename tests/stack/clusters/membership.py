"""The nodes of a cluster: which exist, how they come and go."""

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

from stack import folders, golang, locks, packages, processes, s3
from stack.cassandra import VERSION, jars
from stack.clusters import balancing, layout, network, volumes
from stack.clusters.faults import library
from stack.clusters.layout import Layout, Member
from stack.clusters.network import Network
from stack.clusters.node import DISK_BYTES, Place
from stack.clusters.nodes import DEBIAN, KINDS, CassandraNode, Node, RabbitMQNode
from stack.clusters.volumes import Volume
from stack.errors import MissingRequirement, StackError
from stack.progress import Progress
from stack.server import State

HOST = "host"
"""The machine itself; clients without a name run there."""
BALANCED = {"5672": "rabbitmq", "15672": "rabbitmq", "9000": "s3"}
POLL_SECONDS = 0.5
HANGING_SECONDS = 20.0
"""How long a living node may be silent before `start` restarts it."""


class Membership:
    """The nodes of one folder. The clusters of two folders share nothing."""

    def __init__(self, directory: Path, progress: Progress | None = None) -> None:
        """Take the cluster's folder; read and start nothing yet."""
        self.directory = directory.resolve()
        self.progress = progress or Progress(quiet=True)

    @classmethod
    def up(
        cls,
        directory: Path,
        *,
        cassandra: int = 3,
        rabbitmq: int = 3,
        s3: int = 2,  # the module's name, but also the servers'
        data_centres: int = 1,
        cassandra_version: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Have a cluster running, nodes started one after the other; returns once all agree.

        A cluster that is there keeps its nodes: those that do not run are started. `cassandra` is
        the number of nodes in each data centre; they are named dc1, dc2 and so on. Nodes that
        `add` brings later have the stack's own version of Cassandra.

        Raises:
            MissingRequirement: not root, or a package is missing that cannot be installed.
            StepFailed: a node did not start; its log is named.
            StackError: the nodes do not agree in time.
        """
        cluster = cls(directory, progress)
        cluster._prepare(cassandra_version)
        with cluster._held():
            wanted = {"cassandra": cassandra, "rabbitmq": rabbitmq, "s3": s3}
            cluster._make(layout.planned(wanted, data_centres, cassandra_version))
        return cluster

    def _prepare(self, cassandra_version: str | None) -> None:
        if os.geteuid() != 0:
            raise MissingRequirement("a cluster needs root, for namespaces and filesystems")
        packages.ensure(DEBIAN, self.progress)
        wanted = jars(cassandra_version or VERSION)
        for entry in (wanted, *golang.toolchain(), s3.program(), library()):
            entry.ensure(self.progress)

    def _make(self, plan: Layout) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if layout.load(self.directory) is None:
            subnet = network.make(self.mark).subnet
            replace(plan, subnet=str(subnet)).save(self.directory)
        self.network.up()
        Volume(self.directory / "store", DISK_BYTES).mount()
        members = self._layout.of(*KINDS)
        self.start(*(member.name for member in members if self._is_founded(member)))
        for member in members:
            if not self._is_founded(member):
                self._found(member.name)
        self._follow()
        self.settled(timeout=300)

    def _found(self, name: str) -> None:
        """Start a node for the first time."""
        node = self.node(name)
        with self.progress.step(f"{name}: start"):
            node.remove()  # left by a start that was cut short
            node.begin()
            if isinstance(node, CassandraNode):
                node.wait_until(node.accepts, node.ready_seconds)
                self._replicate(node)
            node.finish()
            node.founded.touch()

    def _replicate(self, new: CassandraNode) -> None:
        """Copy users and the table of `agrees` onto a node that has just joined."""
        members = self._layout.of("cassandra")
        started = [each for each in members if self._is_founded(each) or each.name == new.name]
        founder = self.cassandra(started[0].name)
        if founder.name == new.name:
            founder.wait_ready(60)
        founder.replicate(Counter(each.data_center for each in started))

    @property
    def mark(self) -> str:
        """The prefix of all names of the cluster outside of its folder."""
        return f"pr{folders.fingerprint(self.directory)}"

    @property
    def network(self) -> Network:
        """The namespaces and links."""
        return Network(self.mark, self._layout.subnet)

    @property
    def _layout(self) -> Layout:
        found = layout.load(self.directory)
        if found is None:
            raise StackError(f"there is no cluster in {self.directory}; `up` makes one")
        return found

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes, Cassandra's, RabbitMQ's and S3's."""
        return tuple(each.name for each in self._layout.of(*KINDS))

    def node(self, name: str) -> Node:
        """Return a node by name.

        Raises:
            StackError: there is no such node.
        """
        for member in self._layout.of(*KINDS):
            if member.name == name:
                return self._node(member)
        raise StackError(f"no node is called {name}; there are {', '.join(self.nodes)}")

    def cassandra(self, name: str) -> CassandraNode:
        """Return a node of Cassandra."""
        return cast("CassandraNode", self.node(name))

    def rabbitmq(self, name: str) -> RabbitMQNode:
        """Return a node of RabbitMQ."""
        return cast("RabbitMQNode", self.node(name))

    def _nodes(self) -> list[Node]:
        return [self._node(member) for member in self._layout.of(*KINDS)]

    def _node(self, member: Member) -> Node:
        found, net = self._layout, self.network
        folder = self._folder(member)
        started = [each for each in found.of(member.kind) if self._is_founded(each)]
        others = [net.address(each.number) for each in started if each.name != member.name]
        place = Place(
            network=net,
            number=member.number,
            directory=folder,
            volume=self.directory / "store" if member.kind == "s3" else folder / "volume",
            peers=others or [net.address(member.number)],
            data_center=member.data_center,
            secrets=found.secrets,
        )
        node = KINDS[member.kind](member.name, place)
        if isinstance(node, CassandraNode):
            node.replaces = member.replaces
            node.version = member.version or VERSION
        return node

    def _folder(self, member: Member) -> Path:
        return self.directory / "nodes" / member.name

    def _is_founded(self, member: Member) -> bool:
        return (self._folder(member) / "founded").exists()

    def start(self, *names: str) -> None:
        """Start nodes that are dead or hang, all at once; returns when they serve.

        A paused node goes on. After several nodes were killed, each may need the others to serve,
        so they start at once.

        Raises:
            StepFailed: a node ended, or does not serve in time.
        """
        waiting = []
        for node in [self.node(name) for name in names]:
            if node.state() is State.PAUSED:
                node.resume()
            if not node.is_alive() or not node.serves_within(HANGING_SECONDS):
                node.begin()
                waiting.append(node)
        for node in waiting:
            with self.progress.step(f"{node.name}: start"):
                node.finish()

    def add(self, kind: str, data_center: str = "dc1") -> str:
        """Add a node and return its name once it serves. The caller grows RabbitMQ's queues onto it
        (`grow`), as an administrator does."""
        with self._held():
            changed, member = self._layout.added(kind, data_center)
            changed.save(self.directory)
            self._found(member.name)
            self._follow()
        return member.name

    def remove(self, name: str) -> None:
        """Remove a node from its cluster: in the orderly way when it serves, else as lost for good.

        Cassandra moves the node's data to the others. RabbitMQ's quorum queues lose their members
        on the node, so `grow` them onto another node before.
        """
        with self._held():
            node = self.node(name)
            self._take_out(node)
            node.remove()
            self._layout.without(name).save(self.directory)
            self._follow()
            if isinstance(node, CassandraNode):
                self._replicate(self.cassandra(self._layout.of("cassandra")[0].name))

    def replace(self, name: str) -> None:
        """Put a new, empty node in the place of one that is lost with its data.

        It has the lost one's name, as in a StatefulSet, and another address.
        """
        with self._held():
            node = self.node(name)
            node.kill()
            address = None
            if isinstance(node, CassandraNode):
                address = node.host  # the new node takes the lost one's tokens itself
            else:
                self._take_out(node)
            node.remove()
            lost = self._layout.without(name)
            changed, _ = lost.added(node.kind, node.place.data_center, address, name)
            changed.save(self.directory)
            self._found(name)
            self._follow()

    def _take_out(self, node: Node) -> None:
        others = [self._node(each) for each in self._layout.of(node.kind) if each.name != node.name]
        serving = next((other for other in others if other.answers()), None)
        if serving is not None:
            node.leave(serving)

    def upgrade(self, name: str, version: str = VERSION) -> None:
        """Start a node of Cassandra anew with another version, by the documented steps: drain,
        stop, start. Returns when it serves; `settled` tells when the others agree."""
        jars(version).ensure(self.progress)
        with self._held():
            node = self.cassandra(name)
            node.nodetool("drain")
            node.stop()
            self._layout.at(version, name).save(self.directory)
            self.start(name)

    def settled(self, timeout: float = 120) -> None:
        """Wait until all nodes serve, each sees all others of its kind, and queues are whole.

        Raises:
            StackError: they do not, in time; names one that does not agree.
        """
        deadline = time.monotonic() + timeout
        for node in self._nodes():
            count = len(self._layout.of(node.kind))
            while not node.agrees(count):
                if time.monotonic() > deadline:
                    raise StackError(f"{node.name} does not agree with all its peers")
                time.sleep(POLL_SECONDS)

    def down(self) -> None:
        """End all and remove all: processes, namespaces, links, filesystems, data.

        Also right after a run that crashed at any point, and when nothing is there.
        """
        with self._held() as lock:
            processes.kill_members(self.directory, below=True)
            volumes.unmount_below(self.directory)
            network.remove(self.mark)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.directory)
            lock.unlink()

    @contextlib.contextmanager
    def _held(self) -> Iterator[Path]:
        lock = folders.cache_directory() / "locks" / self.mark
        waiting = "the cluster: another process is at it, waiting"
        with locks.held(lock, lambda: self.progress.say(waiting)):
            yield lock

    def _follow(self) -> None:
        """Let the balancers know the nodes there are now, and run one for each client."""
        net, clients = self.network, self._layout.of("client")
        for client in clients:
            net.add_client(client.number)
        balancing.follow(
            self.directory,
            {
                port: [net.address(each.number) for each in self._layout.of(kind)]
                for port, kind in BALANCED.items()
            },
            {HOST: net.host, **{each.name: net.address(each.number) for each in clients}},
        )
