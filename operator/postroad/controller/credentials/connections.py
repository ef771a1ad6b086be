"""Connections to the servers of each QueueCluster, shared by its queues, until an address or a
Secret changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import SecretStr

from postroad.controller.credentials.credentials import ClusterCredentials, Credentials
from postroad.controller.kubernetes.actions import log_action
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.ports.servers import Servers
from postroad.settings import Settings
from postroad.settings.servers import S3, Cassandra, RabbitMQ
from postroad.tls import ClientTls

SERVERS = {"rabbitmq", "cassandra", "s3"}
NOT_ADDRESSES = {"cassandra": {"replication", "row_lifetime"}, "rabbitmq": {"users"}}
"""Fields of a QueueCluster that name its servers, and those among them that do not."""

GRACE_SECONDS = 60.0
"""Longer than a reconcile uses a server for one condition."""

Connect = Callable[[Settings], Servers]


@dataclass(slots=True)
class _Connected:
    """Open connections, and what asked for them last."""

    fingerprint: str
    servers: Servers
    files: TemporaryDirectory[str]
    asked: tuple[QueueClusterSpec, ClusterCredentials]


class Connections:
    """Opens and closes `Servers`; `connect` builds them from settings without I/O."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open: dict[str, _Connected] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    def to(self, uid: str, spec: QueueClusterSpec, credentials: ClusterCredentials) -> Servers:
        """Return the servers of a QueueCluster. Connections to other addresses or by other
        credentials are closed after a minute, so that reconciles that use them can end."""
        known = self._open.get(uid)
        if known is not None and known.asked[0] is spec and known.asked[1] is credentials:
            return known.servers
        addresses = spec.model_dump(mode="json", include=SERVERS, exclude=NOT_ADDRESSES)
        fingerprint, asked = hash_of([addresses, credentials.versions]), (spec, credentials)
        if known is None or known.fingerprint != fingerprint:
            if known is not None:
                self._begin_closing(known, GRACE_SECONDS)
            log_action("connects to the servers", anew=known is not None)
            files = TemporaryDirectory(prefix="postroad-operator-")
            settings = server_settings(spec, credentials, Path(files.name))
            known = self._open[uid] = _Connected(fingerprint, self._connect(settings), files, asked)
        known.asked = asked
        return known.servers

    def last(self, uid: str) -> Servers | None:
        """Return the servers last opened, for deletions whose Secrets are gone."""
        known = self._open.get(uid)
        return known.servers if known else None

    def fingerprint(self, uid: str) -> str | None:
        """Return a text that changes with the addresses and the Secrets of a QueueCluster."""
        known = self._open.get(uid)
        return known.fingerprint if known else None

    def forget(self, uid: str) -> None:
        """Close the connections of a QueueCluster. Idempotent."""
        known = self._open.pop(uid, None)
        if known is not None:
            self._begin_closing(known, 0)

    def _begin_closing(self, connected: _Connected, grace_seconds: float) -> None:
        async def close() -> None:
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), grace_seconds)
            finally:  # the event loop cancels every task when it ends
                await connected.servers.close()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        # Not in the task: one that is cancelled before its first step does nothing.
        task.add_done_callback(lambda _: connected.files.cleanup())

    async def close(self) -> None:
        """Close all. Idempotent."""
        self._ended.set()
        for uid in list(self._open):
            self.forget(uid)
        await asyncio.gather(*self._closing, return_exceptions=True)


def server_settings(
    spec: QueueClusterSpec, credentials: ClusterCredentials, folder: Path
) -> Settings:
    """Return the settings with which the operator itself connects to the servers. Authorities and
    certificates are written to a folder that only the operator reads."""
    rabbitmq = _written(folder / "rabbitmq", credentials.rabbitmq)
    cassandra = _written(folder / "cassandra", credentials.cassandra)
    return Settings(
        rabbitmq=RabbitMQ(
            uri=SecretStr(spec.rabbitmq.uri),
            management_url=spec.rabbitmq.management_url,
            username=_text(credentials.rabbitmq.get("username")),
            password=credentials.rabbitmq.get("password"),
            ca_file=rabbitmq.ca_file,
            client_certificate=rabbitmq.certificate,
        ),
        cassandra=Cassandra(
            contact_points=tuple(spec.cassandra.contact_points),
            port=spec.cassandra.port,
            local_datacenter=spec.cassandra.local_datacenter,
            keyspace=spec.cassandra.keyspace,
            username=_text(credentials.cassandra.get("username")),
            password=credentials.cassandra.get("password"),
            tls=spec.cassandra.tls.mode,
            tls_name=spec.cassandra.tls.server_name,
            ca_file=cassandra.ca_file,
            client_certificate=cassandra.certificate,
        ),
        s3=S3(
            endpoint=spec.s3.endpoint,
            region=spec.s3.region,
            bucket_prefix=spec.s3.bucket_prefix,
            access_key=credentials.s3.get("accessKey"),
            secret_key=credentials.s3.get("secretKey"),
            ca_file=_written(folder / "s3", credentials.s3).ca_file,
        ),
    )


def _written(start: Path, credentials: Credentials) -> ClientTls:
    """Write the authorities and the certificate of a server; return where."""
    authorities = certificate = None
    if credentials.authorities is not None:
        authorities = start.with_suffix(".authorities")
        authorities.write_text(credentials.authorities)
    if credentials.certificate is not None:
        certificate = start.with_suffix(".certificate")
        certificate.write_text(credentials.certificate.get_secret_value())
    return ClientTls(authorities, certificate)


def _text(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value is not None else None
