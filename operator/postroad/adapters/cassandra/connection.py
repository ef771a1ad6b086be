"""The connection to a Cassandra cluster: made once, at the first use, in a thread.

It stands only when the clocks of the hosts agree, because the writes get their timestamps from
them. When a host is back that hung or went away, the driver reconnects by itself.

The address and user of a Cassandra cluster, and the driver's settings for it.

Translates the driver's errors into postroad's. An unexpected one counts as transient."""

import asyncio
import errno
import re
import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from io import BytesIO

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    ReadFailure,
    RequestValidationException,
    UnresolvableContactPoints,
    UnsupportedOperation,
)
from cassandra.auth import AuthProvider, PlainTextAuthenticator, PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    DefaultConnection,
    ExecutionProfile,
    NoHostAvailable,
)
from cassandra.cluster import Session as DriverSession
from cassandra.connection import ConnectionShutdown
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    TokenAwarePolicy,
)
from cassandra.pool import Host
from cassandra.protocol import RequestValidationException as RequestValidationMessage
from cassandra.protocol import SyntaxException
from cassandra.query import dict_factory

from postroad.adapters.cassandra.clocks import HostClocks, RightClocksFirst, Timestamps
from postroad.batching import Shared
from postroad.errors import CREATE, CredentialsRefused, ServerError, ViewRefused, ViewUnavailable
from postroad.logins import LoginFolder
from postroad.telemetry.logs import logger
from postroad.threaded_calls import ThreadedCalls
from postroad.tls import SYSTEM_TLS, ClientTls, Encryption, client_context, refusal

PROTOCOL_VERSION = 4
"""CQL protocol: the first with unset values, supported by Cassandra 2.2 to 5. Version 5 would add
checksums that Python computes slowly, beside TCP's."""

HEARTBEAT = timedelta(seconds=4)
"""Interval at which the driver probes an idle connection, and how long the answer may take: it
notices a hanging server within twice this."""

MAX_RECONNECT_WAIT = timedelta(seconds=5)
"""The longest wait between two attempts to reach a host that is down."""

SLOW = timedelta(seconds=1)
"""A read that a host leaves without an answer for so long is sent to the next host as well: one
that freezes is marked down only after two heartbeats."""

MAX_UNREAD = 64 * 1024 * 1024
"""Octets of answers that a connection gathers; a page of 500 mails with a thousand recipients each
has half of them. A server that a tenant of the operator names could else fill its memory."""

OTHER_HOSTS = 2
"""Number of other hosts a slow read is sent to."""


@dataclass(frozen=True, slots=True)
class Access:
    """A Cassandra cluster and the user of one keyspace. Its repr has no password. With
    `VERIFY_FULL`, each node's certificate has `tls_name`; None: its IP address, by which the nodes
    announce each other, and to which the driver resolves contact points."""

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
    """Source from which the user is read again for each connection, instead of `username` and
    `password`."""


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


class _BoundedConnection(DefaultConnection):  # type: ignore[misc]
    """A connection that ends where a server sends more than is read at once: the driver gathers
    any length, and without an end."""

    @property
    def _iobuf(self) -> BytesIO:
        """The octets that are not read yet; the driver asks for it before it adds some."""
        found: BytesIO = super()._iobuf
        if found.tell() > MAX_UNREAD:
            found.seek(0)
            found.truncate()  # errors keep connections
            error = OSError(errno.EMSGSIZE, f"Cassandra sends more than {MAX_UNREAD} octets")
            self.defunct(error)
            raise error
        return found


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
        connection_class=_BoundedConnection,
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
            0.5, MAX_RECONNECT_WAIT.total_seconds(), None
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


NOT_CREATED = f"apply the QueueCluster, or {CREATE}"

_SERVER_MESSAGE = re.compile(r'message="(.*)"', re.DOTALL)

_PERMANENT = (
    RequestValidationException,
    RequestValidationMessage,
    SyntaxException,
    UnsupportedOperation,
)


_TOO_MANY_TOMBSTONES = "READ_TOO_MANY_TOMBSTONES"
"""A replica's reason, a name of Cassandra's `RequestFailureReason`. In version 4 of the protocol it
is only in the text."""


class TooManyTombstones(ViewUnavailable):
    """Cassandra refuses to read across so many tombstones."""

    hint = "Cassandra drops the tombstones after the table's gc_grace_seconds"


def translated(error: Exception) -> ServerError:
    """Return postroad's error for the driver's. Where one host refused the request or the
    credentials, its error is returned, because every host would refuse the same."""
    if isinstance(error, ServerError):
        return error
    if isinstance(error, NoHostAvailable):
        return _of_all_hosts(error)
    if isinstance(error, UnresolvableContactPoints):
        return ViewUnavailable(
            "no contact point of Cassandra has an address",
            hint="compare their names with DNS, where this process runs",
        )
    if isinstance(error, AuthenticationFailed):
        return CredentialsRefused(f"Cassandra refused the credentials: {_message_of(error)}")
    if isinstance(error, _PERMANENT):
        is_missing = isinstance(error, InvalidRequest) and (
            "unconfigured table" in str(error) or "does not exist" in str(error)
        )
        return ViewRefused(
            f"Cassandra refused the request: {_message_of(error)}",
            hint=NOT_CREATED if is_missing else None,
        )
    if isinstance(error, ReadFailure) and _TOO_MANY_TOMBSTONES in str(error):
        return TooManyTombstones()
    return ViewUnavailable(f"Cassandra did not answer: {type(error).__name__}: {error}")


def _of_all_hosts(error: NoHostAvailable) -> ServerError:
    causes = error.errors
    each = list(causes.values()) if isinstance(causes, dict) else list(causes or ())
    for cause in each:
        if isinstance(cause, (AuthenticationFailed, *_PERMANENT)):
            return translated(cause)
    reasons = sorted({_message_of(cause) for cause in each})
    if (refused := refusal("Cassandra", "; ".join(reasons))) is not None:
        return refused
    is_cut = any(isinstance(cause, ConnectionResetError | ConnectionShutdown) for cause in each)
    return ViewUnavailable(
        "no Cassandra host can be used: " + ("; ".join(reasons) or "all are down"),
        hint="where clients are encrypted, set POSTROAD_CASSANDRA_TLS=verify-full"
        if is_cut
        else None,
    )


def _message_of(error: object) -> str:
    """Return the server's message where the driver wraps it, else the first line."""
    text = str(error)
    quoted = _SERVER_MESSAGE.search(text)
    return quoted[1] if quoted else (text.splitlines() or [type(error).__name__])[0]


MAX_CONNECTING = 100
"""Clusters of which one process makes connections at a time."""

_CONNECTING = ThreadedCalls(MAX_CONNECTING)

_LOG = logger("cassandra")


class CassandraConnection:
    """A connection, shared by the requests of one session. Bound to one event loop at first use."""

    def __init__(
        self, access: Access, request_timeout: timedelta, connect_timeout: timedelta
    ) -> None:
        self._access = access
        self._request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._connecting: Shared[DriverSession] = Shared()
        self._closed = False
        self.clocks = HostClocks(Timestamps(), access.local_datacenter)
        self.driver: DriverSession | None = None
        """The driver's session, while the connection stands."""

    async def connected(self) -> DriverSession:
        """Connect, unless the connection stands; calls at the same time share one attempt.
        Raises: ViewUnavailable, ViewRefused, CredentialsRefused."""
        if self._closed:
            raise _closed()
        if self.driver is not None:
            return self.driver
        return await self._connecting.get(self._connect)

    async def local_hosts(self) -> list[Host]:
        """Return the hosts of the local data center. Errors as `connected`."""
        hosts = (await self.connected()).cluster.metadata.all_hosts()
        return [host for host in hosts if host.datacenter == self._access.local_datacenter]

    async def close(self) -> None:
        """Close the connection for good. Idempotent."""
        self._closed = True
        await self._connecting.end()
        driver, self.driver = self.driver, None
        if driver is not None:
            await asyncio.to_thread(driver.cluster.shutdown)

    async def _connect(self) -> DriverSession:
        """Connect in a thread: already to resolve the contact points' names may take a minute. The
        driver asks one contact point after the other: the wait is at most their number times the
        connect timeout."""
        if _CONNECTING.is_full:
            raise ViewUnavailable(
                f"{MAX_CONNECTING} connections to Cassandra are being made, and none more",
                hint="look for clusters whose names are not resolved, or that do not answer",
            )
        try:
            driver = await _CONNECTING.run(self._connect_in_thread)
        except Exception as error:
            raise translated(error) from error
        if self._closed:  # `close` may have been broken off while it waited for this
            await asyncio.to_thread(driver.cluster.shutdown)
            raise _closed()
        _LOG.debug("connected to Cassandra", hosts=len(driver.cluster.metadata.all_hosts()))
        self.driver = driver
        return driver

    def _connect_in_thread(self) -> DriverSession:
        cluster = cluster_of(
            self._access, self._request_timeout, self._connect_timeout, self.clocks
        )
        try:
            return self._connect_to(cluster)
        except Exception as error:
            refusal = self._unknown_datacenter(cluster)
            cluster.shutdown()
            if refusal is None or isinstance(error, ServerError):
                raise
            raise refusal from error

    def _connect_to(self, cluster: Cluster) -> DriverSession:
        # All pools: with one host alone, a wrong clock would be the agreed time.
        driver = cluster.connect(wait_for_all_pools=True)
        self.clocks.read(driver)
        if not self.clocks.timestamps.is_known:
            raise ViewUnavailable(
                "the clocks of the Cassandra hosts disagree, so that no write can be stamped",
                hint="synchronise the clocks of the Cassandra hosts (NTP)",
            )
        return driver

    def _unknown_datacenter(self, cluster: Cluster) -> ViewRefused | None:
        """Return the refusal of a misspelt data center: no host is local then, and the driver
        reports only that all are away."""
        known = {str(host.datacenter) for host in cluster.metadata.all_hosts() if host.datacenter}
        if not known or self._access.local_datacenter in known:
            return None
        return ViewRefused(
            f"Cassandra has no data center {self._access.local_datacenter!r}",
            hint=f"it has {', '.join(sorted(known))}",
        )


def _closed() -> ViewUnavailable:
    return ViewUnavailable("the session with Cassandra is closed")
