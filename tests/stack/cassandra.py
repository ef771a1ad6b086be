"""One Cassandra node from its jars (Maven Central) on JDK 17, with passwords on.

The jars have no configuration. Ours is below, small enough for a laptop: 1 GiB of heap at most, one
compactor. The node syncs writes before it acknowledges them (`commitlog_sync: batch`), because a
node with the default forgets up to ten seconds of writes when it is killed, and this node has no
replicas that remember them. STACK_CASSANDRA_SYNC=periodic measures under the default.

STACK_CASSANDRA_COMPILERS=both adds the second compiler, with which nodes need less CPU when they
run for an hour under load; without it they start sooner.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from stack import cache, folders, maven, patience
from stack.cache import Entry
from stack.configuration_files import fill, write
from stack.cql import Connection, CqlError
from stack.errors import MissingRequirement
from stack.native import NativeServer
from stack.records import Record

USER = "postroad"
VERSION = "5.0.9"
"""The version that runs unless a caller names another."""
POM = folders.SOURCES / "cassandra-pom.xml"
OPTIONS = folders.SOURCES / "cassandra-jvm.options"
OTHER_PLATFORMS = ("*-osx-*.jar", "*-windows-*.jar", "*-linux-aarch_64.jar", "*-linux-riscv64.jar")

# The node reads logins from one replica. So the client's consistency, and not the login's, decides
# what a node answers that is cut off from the others.
CONFIGURATION = """\
cluster_name: postroad
num_tokens: 16
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
roles_validity: 500ms
permissions_validity: 500ms
auth_read_consistency_level: LOCAL_ONE
endpoint_snitch: {{snitch}}
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{seeds: "{{seeds}}"}]
listen_address: {{host}}
rpc_address: {{host}}
native_transport_port: {{cql}}
storage_port: {{storage}}
start_native_transport: true
data_file_directories: [{{home}}/data]
commitlog_directory: {{home}}/commitlog
saved_caches_directory: {{home}}/saved_caches
hints_directory: {{home}}/hints
cdc_raw_directory: {{home}}/cdc_raw
commitlog_sync: {{sync}}
commitlog_segment_size: 8MiB
commitlog_total_space: 128MiB
commitlog_disk_access_mode: legacy
disk_access_mode: standard
memtable_allocation_type: heap_buffers
memtable_heap_space: 128MiB
memtable_offheap_space: 64MiB
file_cache_size: 32MiB
networking_cache_size: 16MiB
key_cache_size: 8MiB
counter_cache_size: 2MiB
prepared_statements_cache_size: 8MiB
concurrent_reads: 8
concurrent_writes: 8
concurrent_counter_writes: 4
native_transport_max_threads: 16
concurrent_compactors: 1
compaction_throughput: 0MiB/s
auto_snapshot: false
incremental_backups: false
snapshot_before_compaction: false
hinted_handoff_enabled: true
tombstone_warn_threshold: 1000
tombstone_failure_threshold: 100000
read_request_timeout: 20000ms
range_request_timeout: 60000ms
write_request_timeout: 10000ms
truncate_request_timeout: 60000ms
request_timeout: 60000ms
"""

LOGGING = """\
<configuration scan="false">
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{{log}}/system.log</file>
    <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1"

SYNC = {"batch": "batch", "periodic": "periodic\ncommitlog_sync_period: 10s"}


class Cassandra(NativeServer):
    """One Cassandra node on loopback, its data centre named `datacenter1`."""

    name = "cassandra"
    port_names = ("cql", "storage", "jmx")
    debian = ("openjdk-17-jre-headless", "maven")
    ready_seconds = 180
    data_center = "datacenter1"
    snitch = "SimpleSnitch"
    heap = "1g"
    version = VERSION
    configuration = CONFIGURATION

    @property
    def logs(self) -> list[Path]:
        """The node's output, and its own log."""
        return [self.main_log, self.directory / "log" / "system.log"]

    @property
    def endpoint(self) -> str:
        """The address of CQL."""
        return f"{self.host}:{self.record.ports['cql']}"

    def service_ports(self) -> dict[int, int]:
        """Return its ports for pods."""
        return {9042: self.record.ports["cql"]}

    def environment(self) -> dict[str, str]:
        """Return contact point, data centre, and the superuser's name and password."""
        record = self.record
        return {
            "POSTROAD_CASSANDRA_CONTACT_POINTS": self.host,
            "POSTROAD_CASSANDRA_PORT": str(record.ports["cql"]),
            "POSTROAD_CASSANDRA_LOCAL_DATACENTER": self.data_center,
            "POSTROAD_CASSANDRA_KEYSPACE": "postroad",
            "POSTROAD_CASSANDRA_USERNAME": USER,
            "POSTROAD_CASSANDRA_PASSWORD": record.secrets["password"],
        }

    def entries(self) -> Sequence[Entry]:
        """Its jars."""
        return (jars(self.version),)

    def seeds(self, record: Record) -> str:
        """Return the addresses by which a node finds the others."""
        return f"{self.host}:{record.ports['storage']}"

    def properties(self) -> dict[str, object]:
        """Return more Java properties."""
        return {"cassandra.ring_delay_ms": 1000}

    def more(self) -> str:
        """Return more lines of configuration."""
        return ""

    def options(self) -> list[str]:
        """Return the options of Java."""
        lines = OPTIONS.read_text().splitlines()
        options = [line for line in lines if line and not line.startswith("#")]
        if os.environ.get("STACK_CASSANDRA_COMPILERS") == "both":
            options.remove(FIRST_COMPILER_ONLY)
        return options

    def launch(self, record: Record) -> None:
        """Start the node."""
        log = self.directory / "log"
        values = {
            "home": self.home,
            "host": self.host,
            "log": log,
            "seeds": self.seeds(record),
            "snitch": self.snitch,
            "sync": SYNC[os.environ.get("STACK_CASSANDRA_SYNC", "batch")],
            **record.ports,
        }
        settings = write(
            self.directory / "cassandra.yaml", fill(self.configuration + self.more(), values)
        )
        logging = write(self.directory / "logback.xml", fill(LOGGING, values))
        for folder in (log, self.directory / "tmp"):
            folder.mkdir(exist_ok=True)
        arguments = write(self.directory / "jvm.options", "\n".join(self.options()) + "\n")
        properties = {
            "java.io.tmpdir": self.directory / "tmp",
            "cassandra.config": settings.as_uri(),
            "cassandra.logdir": log,
            "cassandra.storagedir": self.home,
            "cassandra.jmx.local.port": record.ports["jmx"],
            "logback.configurationFile": logging,
            "cassandra-foreground": "yes",
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.superuser_setup_delay_ms": 0,
            **self.properties(),
        }
        self.run(
            [
                java(),
                f"@{arguments}",
                "-Xms128m",
                f"-Xmx{self.heap}",
                "-XX:MaxDirectMemorySize=256m",
                *(f"-D{name}={value}" for name, value in properties.items()),
                "-cp",
                f"{self.directory}:{jars(self.version).path}/*",
                "org.apache.cassandra.service.CassandraDaemon",
            ],
            environment={"MALLOC_ARENA_MAX": "2"},
        )

    def answers(self) -> bool:
        """Log in as our superuser. On a new node, create the superuser first."""
        try:
            try:
                with self.connection() as connection:
                    connection.execute("SELECT release_version FROM system.local")
            except CqlError:
                self.make_superuser()
                return False
        except (OSError, CqlError):
            return False
        return True

    def connection(self, timeout_seconds: float = 3) -> Connection:
        """Return a connection as our superuser."""
        return self.login(USER, self.record.secrets["password"], timeout_seconds)

    def login(self, user: str, password: str, timeout_seconds: float = 3) -> Connection:
        """Return a connection of a user."""
        seconds = patience.stretched(timeout_seconds)
        return Connection(self.host, self.record.ports["cql"], user, password, seconds)

    def make_superuser(self) -> None:
        """Create our superuser, as the user that a new node has."""
        record = self.record
        with self.login("cassandra", "cassandra") as connection:
            connection.execute(
                f"CREATE ROLE IF NOT EXISTS {USER} WITH SUPERUSER = true AND LOGIN = true"
                f" AND PASSWORD = '{record.secrets['password']}'"
            )
        with self.connection() as connection:
            connection.execute("ALTER ROLE cassandra WITH LOGIN = false")


def java() -> Path:
    """Return the Java 17 that runs Cassandra, because a newer one in PATH cannot.

    Raises:
        MissingRequirement: it is not installed.
    """
    found = sorted(Path("/usr/lib/jvm").glob("java-17-openjdk-*/bin/java"))
    if not found:
        raise MissingRequirement("Cassandra needs Java 17 (package openjdk-17-jre-headless)")
    return found[0]


def jars(version: str) -> Entry:
    """Return the cache entry of the jars of a version."""

    def make(folder: Path, log: Path) -> None:
        maven.copy_jars(POM, folder, log, wanted=version)
        for pattern in OTHER_PLATFORMS:
            for jar in folder.glob(pattern):
                jar.unlink()

    key = cache.key_of(POM, version)
    return Entry("cassandra", key, f"cassandra {version}: download (about 20 s)", make)
