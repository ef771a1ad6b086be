"""The address and user of a Cassandra cluster, and the driver's settings for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import timedelta

from cassandra import ConsistencyLevel
from cassandra.auth import AuthProvider, PlainTextAuthenticator, PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    TokenAwarePolicy,
)
from cassandra.query import dict_factory

from postroad.adapters.cassandra.connection.clocks import HostClocks, RightClocksFirst
from postroad.logins import LoginFolder
from postroad.tls import SYSTEM_TLS, ClientTls, Encryption, client_context

PROTOCOL_VERSION = 4
"""CQL protocol: the first with unset values, supported by Cassandra 2.2 to 5. Version 5 would add
checksums that Python computes slowly, beside TCP's."""

HEARTBEAT = timedelta(seconds=4)
"""How often the driver probes an idle connection, and how long the answer may take: it notices a
hanging server within twice this."""

LONGEST_RECONNECT_WAIT = timedelta(seconds=5)
"""The longest wait between two attempts to reach a host that is down."""

SLOW = timedelta(seconds=1)
"""A read that a host leaves without an answer for so long is sent to the next host as well: one
that freezes is marked down only after two heartbeats."""

OTHER_HOSTS = 2
"""How many other hosts a slow read is sent to."""


@dataclass(frozen=True, slots=True)
class Access:
    """A Cassandra cluster and the user of one keyspace. Its repr has no password.

    With `VERIFY_FULL`, each node's certificate has `tls_name`; None: its IP address, by which the
    nodes announce each other, and to which the driver resolves contact points.
    """

    contact_points: tuple[str, ...]
    port: int
    local_datacenter: str
    keyspace: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    encryption: Encryption = Encryption.DISABLED
    tls: ClientTls = SYSTEM_TLS
    tls_name: str | None = None
    login_folder: LoginFolder | None = None
    """Where the user is read again for each connection, instead of `username` and `password`."""


class LoginFromFiles(AuthProvider):  # type: ignore[misc]
    """Gives each connection of the driver the user as of its opening."""

    def __init__(self, folder: LoginFolder) -> None:
        self._folder = folder

    def new_authenticator(self, host: object) -> PlainTextAuthenticator:
        """Raises: CredentialsMissing."""
        login = self._folder.read()
        return PlainTextAuthenticator(login.username, login.password)


def _auth_provider(access: Access) -> AuthProvider | None:
    if access.login_folder is not None:
        return LoginFromFiles(access.login_folder)
    if access.username is None:
        return None
    return PlainTextAuthProvider(access.username, access.password or "")


def cluster_of(
    access: Access,
    request_timeout: timedelta,
    connect_timeout: timedelta,
    clocks: HostClocks | None = None,
) -> Cluster:
    """Return the driver's cluster object. Blocks: the names of the contact points are resolved; the
    hosts are not asked yet. `clocks` give the timestamps of plain writes and the hosts with wrong
    clocks; None: the local clock gives the timestamps."""
    local = DCAwareRoundRobinPolicy(local_dc=access.local_datacenter)
    profile = ExecutionProfile(
        load_balancing_policy=(
            TokenAwarePolicy(local) if clocks is None else RightClocksFirst(local, clocks)
        ),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=request_timeout.total_seconds(),
        row_factory=dict_factory,
        speculative_execution_policy=ConstantSpeculativeExecutionPolicy(
            SLOW.total_seconds(), OTHER_HOSTS
        ),
    )
    return Cluster(
        contact_points=list(access.contact_points),
        port=access.port,
        protocol_version=PROTOCOL_VERSION,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        auth_provider=_auth_provider(access),
        ssl_context=_context(access),
        ssl_options=access.tls_name and {"server_hostname": access.tls_name},
        connect_timeout=connect_timeout.total_seconds(),
        control_connection_timeout=connect_timeout.total_seconds(),
        idle_heartbeat_interval=HEARTBEAT.total_seconds(),
        idle_heartbeat_timeout=HEARTBEAT.total_seconds(),
        reconnection_policy=ExponentialReconnectionPolicy(
            0.5, LONGEST_RECONNECT_WAIT.total_seconds(), None
        ),
        timestamp_generator=None if clocks is None else clocks.timestamps,
        monitor_reporting_enabled=False,
        application_name="postroad",
    )


def _context(access: Access) -> ssl.SSLContext | None:
    """Raises: TlsRefused."""
    if access.encryption is Encryption.DISABLED:
        return None
    context = client_context(access.tls)
    context.check_hostname = access.encryption is not Encryption.VERIFY_CA
    return context
