"""The nodes of a cluster: the stack's servers, each in a namespace and on a disk of its own.

A node listens on the usual ports of its own address, has its data on a small filesystem, and
follows the faults that its file of controls says.
"""

import os
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stack import ports, probes, processes
from stack.cache import Entry
from stack.cassandra import USER, Cassandra, jars, java
from stack.clusters import volumes
from stack.clusters.faults import Faults, library
from stack.clusters.network import Network
from stack.clusters.volumes import Volume
from stack.cql import CONSISTENCY_ALL, CONSISTENCY_QUORUM, Connection, CqlError
from stack.errors import NotPossible, StackError, StepFailed
from stack.native import NativeServer
from stack.rabbitmq import SCRIPTS, RabbitMQ
from stack.records import Record
from stack.s3 import VersityGW
from stack.server import write

DISK_BYTES = 2 * 2**30
GOSSIP_SECONDS = 60
KEYSPACE = "postroad_stack"
"""Has a copy of its only table on every node, by which all are known to be up."""


@dataclass(frozen=True)
class Place:
    """Where a node is, and what it shares with the others of its kind."""

    network: Network
    number: int
    """Of its address in the subnet."""
    directory: Path
    volume: Path
    peers: Sequence[str]
    """The addresses of its kind's other nodes that were started before; its own if none was."""
    data_center: str
    secrets: Mapping[str, str]


class Node(NativeServer):
    """One node of a cluster."""

    kind: ClassVar[str]
    fixed_ports: ClassVar[Mapping[str, int]]

    def __init__(self, name: str, place: Place) -> None:
        """Take its name (`cassandra-1`) and its place."""
        super().__init__(place.directory)
        self.name = name  # type: ignore[misc]  # one class serves every node of a kind
        self.place = place
        self.host = place.network.address(place.number)
        self.volume = Volume(place.volume, DISK_BYTES)
        self.faults = Faults(place.directory / "faults")
        self._delay = place.directory / "delay"

    @property
    def provider(self) -> str:
        """A cluster of the stack."""
        return "cluster"

    @property
    def home(self) -> Path:
        """Its own filesystem."""
        return self.volume.folder

    def entries(self) -> Sequence[Entry]:
        """What the server needs, and the library of faults."""
        return (*super().entries(), library())

    def _new_record(self) -> Record:
        record = Record("cluster", dict(self.fixed_ports), dict(self.place.secrets))
        record.save(self._record_path)
        return record

    def begin(self) -> None:
        """Start its processes; does not wait until it serves."""
        self.end()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._started_path.unlink(missing_ok=True)
        self.place.network.attach(self.place.number)
        self.volume.mount()
        self.faults.prepare()
        self.launch(self.record if self._record_path.exists() else self._new_record())

    def finish(self) -> None:
        """Wait until it serves.

        Raises:
            StepFailed: it ended, or does not in time.
        """
        self.wait_ready(self.ready_seconds)
        self._started_path.touch()

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a process of this node, in its namespace and under its faults."""
        place = self.place
        super().run(
            [*place.network.inside(place.number), *command],
            {**(environment or {}), **self.faults.environment()},
        )

    def tool(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 300,
    ) -> str:
        """Run one of the node's own tools in its namespace and return what it prints.

        Raises:
            StackError: it failed.
        """
        line = [*self.place.network.inside(self.place.number), *map(str, command)]
        done = subprocess.run(
            line,
            env={**os.environ, **(environment or {})},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode:
            raise StackError(f"{self.name}: {' '.join(line[3:])[:200]}: {done.stdout}{done.stderr}")
        return done.stdout

    def skew(self, seconds: float, rate: float) -> None:
        """Set its clock this far ahead of the machine's, and let it run at this rate."""
        self.faults.skew(seconds, rate)

    def slow_disk(self, seconds: float) -> None:
        """Let each of its syncs take this much longer."""
        self.faults.slow_syncs(seconds)

    def delay_packets(self, seconds: float) -> None:
        """Hold every packet back that it sends; with 0, no more."""
        network, number = self.place.network, self.place.number
        network.queue(number, on=False)
        processes.kill_members(self._delay)
        if seconds:
            program = Path(__file__).with_name("delay.py")
            self._delay.mkdir(exist_ok=True)
            processes.start(  # a member of its own: a killed node comes back as slow as it was
                self._delay,
                [*network.inside(number), sys.executable, program, str(seconds)],
                self._delay / "output.log",
            )
            time.sleep(0.3)
            if not processes.members(self._delay):
                raise StepFailed(f"{self.name}: delaying its packets", self._delay / "output.log")
            network.queue(number, on=True)

    @property
    def founded(self) -> Path:
        """Exists once it has served."""
        return self.directory / "founded"

    def serves_within(self, seconds: float) -> bool:
        """Tell whether a living node serves, or does so soon."""
        return self._answers_within(seconds)

    def agrees(self, count: int) -> bool:
        """Tell whether it serves, and sees this many nodes of its kind serve as well."""
        return self.answers()

    def remove(self) -> None:
        """Kill it and remove all it had."""
        processes.kill_members(self._delay)
        self.end()
        volumes.unmount_below(self.directory)
        super().remove()
        self.place.network.detach(self.place.number)


class CassandraNode(Node, Cassandra):
    """A node of a Cassandra cluster; each is a rack of its own."""

    kind = "cassandra"
    fixed_ports: ClassVar[Mapping[str, int]] = {"cql": 9042, "storage": 7000, "jmx": 7199}
    snitch = "GossipingPropertyFileSnitch"
    heap = "512m"
    ready_seconds = 400
    replaces: str | None = None
    """The address of the dead node whose place it takes at its first start."""

    def __init__(self, name: str, place: Place) -> None:
        """Take its name and its place."""
        super().__init__(name, place)
        self.data_center = place.data_center

    def seeds(self, record: Record) -> str:
        """Return the nodes that were there before."""
        return ",".join(f"{address}:{record.ports['storage']}" for address in self.place.peers)

    def properties(self) -> dict[str, object]:
        """Wait for the others' answers a little longer than a node alone; perhaps replace one."""
        more: dict[str, object] = {"cassandra.ring_delay_ms": 5000}
        if self.replaces is not None:
            more["cassandra.replace_address_first_boot"] = self.replaces
        return more

    def launch(self, record: Record) -> None:
        """Say where it is, and start it."""
        rack = f"dc={self.place.data_center}\nrack={self.name}\n"
        write(self.directory / "cassandra-rackdc.properties", rack)
        super().launch(record)

    def answers(self) -> bool:
        """Log in as our superuser; only the cluster's first node makes it."""
        if list(self.place.peers) == [self.host]:
            return super().answers()
        try:
            with self.connection() as connection:
                connection.execute("SELECT release_version FROM system.local")
        except (OSError, CqlError):
            return False
        return True

    def agrees(self, count: int) -> bool:
        """Write what every node has a copy of to all of them, and compare their schemas."""
        try:
            with self.connection(timeout_seconds=10) as connection:
                connection.execute(
                    f"INSERT INTO {KEYSPACE}.nodes (name) VALUES ('{self.name}')", CONSISTENCY_ALL
                )
                mine = connection.execute("SELECT schema_version FROM system.local")
                others = connection.execute("SELECT schema_version FROM system.peers")
        except (OSError, CqlError):
            return False
        return len(others) == count - 1 and {*mine, *others} == {*mine}

    def clock_seconds(self) -> float:
        """Return its clock, as CQL tells it."""
        with self.connection(timeout_seconds=10) as connection:
            statement = "SELECT toUnixTimestamp(now()) FROM system.local"
            ((value,),) = connection.execute(statement)
        return float(struct.unpack(">q", value or b"")[0]) / 1000

    def accepts(self) -> bool:
        """Tell whether CQL listens, though perhaps no user can log in yet."""
        return ports.answers(self.fixed_ports["cql"], self.host)

    def replicate(self, nodes: Mapping[str, int]) -> None:
        """Keep users in every data centre, on three nodes, and a mark on every node.

        Takes the count of nodes by data centre.
        """
        logins = _replication({name: min(count, 3) for name, count in nodes.items()})
        with self.connection(timeout_seconds=60) as connection:
            statement = f"SELECT salted_hash FROM system_auth.roles WHERE role = '{USER}'"
            ((secret,),) = connection.execute(statement)
            for change in (
                f"ALTER KEYSPACE system_auth WITH replication = {logins}",
                # written again for the nodes that have a copy only now
                _role(secret or b""),
                f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {logins}",
                f"ALTER KEYSPACE {KEYSPACE} WITH replication = {_replication(nodes)}",
                f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.nodes (name text PRIMARY KEY)",
            ):
                self._change(connection, change)

    def _change(self, connection: Connection, change: str) -> None:
        """Execute a statement once the others know that a new node has come."""
        deadline = time.monotonic() + GOSSIP_SECONDS
        while True:
            try:
                connection.execute(change, CONSISTENCY_QUORUM)
                return
            except CqlError as error:
                if "not in normal state" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def host_id(self, asked: "CassandraNode") -> str:
        """Return the name that another node knows it by."""
        with asked.connection() as connection:
            statement = f"SELECT host_id FROM system.peers WHERE peer = '{self.host}'"
            ((value,),) = connection.execute(statement)
        return str(uuid.UUID(bytes=value))

    def nodetool(self, *words: str) -> str:
        """Run Cassandra's own tool against this node; a second of CPU each.

        Raises:
            StackError: it failed.
        """
        options = [
            line
            for line in (self.directory / "jvm.options").read_text().split("\n")
            if line.startswith(("--add", "-Djdk", "-XX:TieredStop", "-XX:+UseSerial"))
        ]
        logging = write(self.directory / "nodetool-logback.xml", "<configuration/>")
        settings = self.directory / "cassandra.yaml"
        return self.tool(
            [
                java(),
                *(part for line in options for part in line.split(" ")),
                "-Xmx96m",
                *(f"-Duser.home={self.directory}", f"-Dcassandra.logdir={self.directory / 'log'}"),
                *(f"-Dcassandra.storagedir={self.home}", f"-Dcassandra.config={settings.as_uri()}"),
                *(f"-Dlogback.configurationFile={logging}", "-Dcom.sun.jndi.rmiURLParsing=legacy"),
                *("-cp", f"{self.directory}:{jars().path}/*"),
                *("org.apache.cassandra.tools.NodeTool", "-h", "127.0.0.1", "-p", "7199", *words),
            ]
        )


def _role(secret: bytes) -> str:
    columns = "role, can_login, is_superuser, salted_hash"
    values = f"'{USER}', true, true, '{secret.decode()}'"
    return f"INSERT INTO system_auth.roles ({columns}) VALUES ({values})"


def _replication(copies: Mapping[str, int]) -> str:
    counts = "".join(f", '{name}': {count}" for name, count in copies.items())
    return f"{{'class': 'NetworkTopologyStrategy'{counts}}}"


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
        """Name the nodes to join."""
        lines = [
            f"cluster_formation.classic_config.nodes.{number} = rabbit@{address}\n"
            for number, address in enumerate(self.place.peers, 1)
        ]
        return MORE_RABBITMQ + "".join(lines)

    def settings(self, record: Record) -> dict[str, str]:
        """Return the environment of the node and of its tools: nodes are named by address."""
        return {**super().settings(record), "RABBITMQ_USE_LONGNAME": "true"}

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
        command = [str(SCRIPTS / script), "--longnames", "-n", self.node_name, *words]
        return self.tool(command, self.settings(self.record))

    def clock_seconds(self) -> float:
        """Return its clock, as the Erlang VM's operating system interface tells it."""
        return int(self.ctl("eval", "os:system_time(millisecond).").strip()) / 1000

    def agrees(self, count: int) -> bool:
        """Ask whether all nodes run, none sees a partition, and every quorum queue is whole."""
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


class S3Node(Node, VersityGW):
    """A gateway to the cluster's one store of objects."""

    kind = "s3"
    fixed_ports: ClassVar[Mapping[str, int]] = {"s3": 9000}

    def skew(self, seconds: float, rate: float) -> None:
        """Refuse: the program is linked statically, no library can be preloaded into it."""
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

__all__ = ["DEBIAN", "KINDS", "CassandraNode", "Node", "Place", "RabbitMQNode", "S3Node"]
