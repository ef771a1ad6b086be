"""A node of Cassandra: how it joins, takes the place of another, and agrees with the others."""

import struct
import time
import uuid
from collections.abc import Mapping
from typing import ClassVar

from stack import ports
from stack.cassandra import USER, Cassandra, jars, java
from stack.clusters.node import Node, Place
from stack.configuration_files import write
from stack.cql import CONSISTENCY_ALL, CONSISTENCY_QUORUM, Connection, CqlError
from stack.records import Record

GOSSIP_SECONDS = 60
KEYSPACE = "postroad_stack"
"""The keyspace whose only table has a copy on every node; a node that answers from it runs."""


class CassandraNode(Node, Cassandra):
    """A node of a Cassandra cluster; each is a rack of its own."""

    kind = "cassandra"
    fixed_ports: ClassVar[Mapping[str, int]] = {"cql": 9042, "storage": 7000, "jmx": 7199}
    snitch = "GossipingPropertyFileSnitch"
    heap = "512m"
    ready_seconds = 400
    replaces: str | None = None
    """The address of the dead node that this node replaces at its first start."""

    def __init__(self, name: str, place: Place) -> None:
        """Take its name and its place."""
        super().__init__(name, place)
        self.data_center = place.data_center

    def seeds(self, record: Record) -> str:
        """Return the nodes that were started before this one."""
        return ",".join(f"{address}:{record.ports['storage']}" for address in self.place.peers)

    def properties(self) -> dict[str, object]:
        """Return Java properties: the node waits a little longer for the others' answers than a
        single node, and replaces a dead one where it has to."""
        more: dict[str, object] = {"cassandra.ring_delay_ms": 5000}
        if self.replaces is not None:
            more["cassandra.replace_address_first_boot"] = self.replaces
        return more

    def launch(self, record: Record) -> None:
        """Write its addresses into the configuration, and start it."""
        rack = f"dc={self.place.data_center}\nrack={self.name}\n"
        write(self.directory / "cassandra-rackdc.properties", rack)
        super().launch(record)

    def answers(self) -> bool:
        """Log in as our superuser; only the cluster's first node creates that."""
        if list(self.place.peers) == [self.host]:
            return super().answers()
        try:
            with self.connection() as connection:
                connection.execute("SELECT release_version FROM system.local")
        except (OSError, CqlError):
            return False
        return True

    def agrees(self, count: int) -> bool:
        """Write to the table that has a copy on every node, at consistency ALL, and compare the
        nodes' schemas."""
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
        """Return the node's clock, by CQL."""
        with self.connection(timeout_seconds=10) as connection:
            statement = "SELECT toUnixTimestamp(now()) FROM system.local"
            ((value,),) = connection.execute(statement)
        return float(struct.unpack(">q", value or b"")[0]) / 1000

    def accepts(self) -> bool:
        """Return whether CQL listens; users may still be unable to log in."""
        return ports.answers(self.fixed_ports["cql"], self.host)

    def replicate(self, nodes: Mapping[str, int]) -> None:
        """Keep users in every data centre, on three nodes, and the table of `agrees` on every node.
        Takes the count of nodes by data centre."""
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

    def leave(self, serving: Node) -> None:
        """Hand its data to the others. Where it is dead, the others copy the data from each
        other."""
        assert isinstance(serving, CassandraNode)
        if self.answers():
            self.nodetool("decommission", "--force")
        else:
            serving.nodetool("removenode", self._host_id(serving))

    def _host_id(self, asked: "CassandraNode") -> str:
        """Return the id by which another node knows it."""
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
                *("-cp", f"{self.directory}:{jars(self.version).path}/*"),
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
