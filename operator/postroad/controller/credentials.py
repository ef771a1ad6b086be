"""Reads what a QueueCluster names of credentials, authorities and certificates, by name and each
time, so that the operator sees changes without the right to list Secrets.

Connections to the servers of each QueueCluster, shared by its queues, until an address or a
Secret changes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import scrypt, sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import SecretStr

from postroad.controller.kubernetes.api import CONFIG_MAP, SECRET, log_action
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.reads import Reads
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.pipeline import ADDRESS_KEY, Pipeline
from postroad.controller.spec.tls import (
    LoginReference,
    ServerTls,
    StoreTls,
    keys_of,
)
from postroad.delivery_settings.secret_references import (
    AUTHORITIES_KEY,
    CERTIFICATE_KEYS,
    AuthoritiesReference,
    SecretReference,
)
from postroad.errors import CertificateUnusable, CredentialsMissing, KubernetesRefused
from postroad.logins import LOGIN
from postroad.ports.kubernetes import Object
from postroad.ports.servers import Servers
from postroad.settings import Settings
from postroad.settings.pipeline import MIN_KEY
from postroad.settings.queue_cluster import S3, Cassandra, RabbitMQ
from postroad.tls import ClientTls, server_context

UNREADABLE = (CredentialsMissing, CertificateUnusable, KubernetesRefused)
"""Errors about Secrets that last until an administrator acts."""

# scrypt's n: about 20 ms and 8 MiB for each guess at a value.
VERSION_COST = 2**13


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one server, the authorities that vouch for it, and the certificate with
    its key that it is shown. `version` changes with what is read of their objects, and no label,
    annotation or restored copy changes it; `tls_version` changes with authorities and certificate
    alone. It stands in pod templates, whose readers may not read Secrets: each guess at a value
    costs a key derivation."""

    values: Mapping[str, SecretStr] = field(default_factory=dict)
    authorities: str | None = None
    certificate: SecretStr | None = None
    version: str = ""
    tls_version: str = ""
    source: tuple[object, ...] = field(default=(), compare=False)
    """The versions of the objects that it was made of: of the same ones, the same is made."""

    def get(self, name: str) -> SecretStr | None:
        return self.values.get(name)


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    rabbitmq: Credentials
    cassandra: Credentials
    s3: Credentials

    @property
    def versions(self) -> list[str]:
        """The versions of all that is read, by server."""
        return [self.rabbitmq.version, self.cassandra.version, self.s3.version]

    @property
    def tls_versions(self) -> dict[str, str]:
        """The versions of what pods read when they start alone: authorities and certificates."""
        found = {"rabbitmq": self.rabbitmq, "cassandra": self.cassandra, "s3": self.s3}
        return {server: each.tls_version for server, each in found.items() if each.tls_version}


NO_CREDENTIALS = ClusterCredentials(Credentials(), Credentials(), Credentials())


@dataclass(frozen=True, slots=True)
class _ReadObject:
    namespace: str
    reference: SecretReference | AuthoritiesReference
    content: Object = field(repr=False)

    def __str__(self) -> str:
        return f"{_kind_of(self.reference)} {self.namespace}/{self.reference.name}"

    @property
    def version(self) -> tuple[str, str]:
        """Changes with the object, and when another one has its name."""
        metadata = self.content["metadata"]
        return metadata["uid"], metadata["resourceVersion"]

    def texts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return what it has under these keys. Raises: CredentialsMissing."""
        data: Mapping[str, Any] = self.content.get("data") or {}
        if missing := [key for key in keys if not data.get(key)]:
            raise CredentialsMissing(
                f"{self} has no key " + " and no key ".join(missing),
                hint=f"it needs the keys {_listed(keys)}",
            )
        is_secret = _kind_of(self.reference) == SECRET.name
        texts = {
            key: self._decoded(key, data[key]) if is_secret else str(data[key]) for key in keys
        }
        return {key: text.strip("\r\n") for key, text in texts.items()}

    def _decoded(self, key: str, value: str) -> str:
        try:
            return base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise CredentialsMissing(
                f"`{key}` of {self} is not text", hint="put it in as UTF-8"
            ) from error


async def read_credentials(
    api: Reads,
    namespace: str,
    spec: QueueClusterSpec,
    *,
    with_broker_login: bool = True,
    before: ClusterCredentials = NO_CREDENTIALS,
) -> ClusterCredentials:
    """Read the objects from a namespace. `with_broker_login`: also that of RabbitMQ's user, which
    pods with a user of their queue's own do not need. `before`: what was read of this namespace
    last, of which those of a server are returned whose objects have not changed. Raises:
    CredentialsMissing with what to create, CertificateUnusable."""
    rabbitmq, cassandra, s3 = spec.rabbitmq, spec.cassandra, spec.s3
    broker_login = rabbitmq.secret_ref if with_broker_login else None
    read = partial(_read_server, api, namespace)
    return ClusterCredentials(
        rabbitmq=await read(broker_login, rabbitmq.tls, before.rabbitmq),
        cassandra=await read(cassandra.secret_ref, cassandra.tls, before.cassandra),
        s3=await read(s3.secret_ref, s3.tls, before.s3),
    )


async def _read_server(
    api: Reads,
    namespace: str,
    login: LoginReference | None,
    tls: StoreTls | None,
    before: Credentials,
) -> Credentials:
    trusted = tls.ca_ref if tls else None
    shown = tls.client_cert_ref if isinstance(tls, ServerTls) else None
    keys = keys_of(login)
    wanted = ((login, [*keys.values()]), (trusted, (AUTHORITIES_KEY,)), (shown, CERTIFICATE_KEYS))
    read = [
        None if reference is None else await _read(api, namespace, reference, needed)
        for reference, needed in wanted
    ]
    if not any(read):
        return Credentials()
    source = (tls is None, *keys.values(), *(each and each.version for each in read))
    if source == before.source:
        return before
    of_login, of_trusted, of_shown = read
    found = {} if of_login is None else of_login.texts([*keys.values()])
    values = {name: found[key] for name, key in keys.items()}
    authorities = None if of_trusted is None else _authorities_in(of_trusted)
    certificate = None if of_shown is None else _certificate_in(of_shown)
    tls_content = json.dumps([authorities, certificate]).encode()
    content = json.dumps([values, authorities, certificate]).encode()
    objects = f"{namespace}/{'/'.join(each.reference.name for each in read if each)}"
    return Credentials(
        values={key: SecretStr(value) for key, value in values.items()},
        authorities=authorities,
        certificate=None if certificate is None else SecretStr(certificate),
        version=_version(sha256(content).digest(), objects),
        tls_version="" if tls is None else _version(sha256(tls_content).digest(), objects),
        source=source,
    )


async def read_authorities(api: Reads, namespace: str, reference: AuthoritiesReference) -> str:
    """Return authorities in PEM form. Raises: CredentialsMissing, CertificateUnusable."""
    return _authorities_in(await _read(api, namespace, reference, (AUTHORITIES_KEY,)))


def _authorities_in(read: _ReadObject) -> str:
    text = read.texts((AUTHORITIES_KEY,))[AUTHORITIES_KEY]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnusable(
            f"`{AUTHORITIES_KEY}` of {read} holds no certificate authorities: {error}",
            hint="put in the certificates of the authorities, in PEM form",
        ) from error
    return text


async def check_certificate(api: Reads, namespace: str, name: str) -> None:
    """Check that TLS can be served with a Secret, as the intake's pods do, which mount it. Raises:
    CredentialsMissing, CertificateUnusable."""
    _certificate_in(await _read(api, namespace, SecretReference(name=name), CERTIFICATE_KEYS))


async def check_pipeline_secrets(api: Reads, namespace: str, pipeline: Pipeline) -> None:
    """Check that Secrets have a key for hashed addresses, and a login at the catalog, where these
    are named. Raises: CredentialsMissing."""
    if (login := pipeline.catalog_secret) is not None:
        (await _read(api, namespace, login, LOGIN)).texts(LOGIN)
    if (reference := pipeline.addresses.key_ref) is None:
        return
    read = await _read(api, namespace, reference, (ADDRESS_KEY,))
    if len(read.texts((ADDRESS_KEY,))[ADDRESS_KEY]) < MIN_KEY:
        raise CredentialsMissing(
            f"`{ADDRESS_KEY}` of Secret {namespace}/{reference.name} has fewer than {MIN_KEY} "
            "characters (spec.pipeline.addresses.keyRef)"
        )


def _certificate_in(read: _ReadObject) -> str:
    """Return a certificate with its key, in PEM form."""
    found = read.texts(CERTIFICATE_KEYS)
    pem = "".join(f"{found[each]}\n" for each in CERTIFICATE_KEYS)
    # OpenSSL reads the key from a file only; a memfd keeps it off the disk.
    with os.fdopen(os.memfd_create("tls"), "w") as file:
        file.write(pem)
        file.flush()
        try:
            server_context(Path(f"/proc/self/fd/{file.fileno()}"))
        except (OSError, ValueError) as error:
            raise CertificateUnusable(
                f"`tls.crt` and `tls.key` of {read} cannot be used: {error}",
                hint="put in a certificate with its chain and its unencrypted key, in PEM form; "
                "running pods keep the certificate they have",
            ) from error
    return pem


async def read_values(api: Reads, namespace: str, name: str, keys: Sequence[str]) -> dict[str, str]:
    """Return what a Secret has under these keys. Raises: CredentialsMissing."""
    return (await _read(api, namespace, SecretReference(name=name), keys)).texts(keys)


async def _read(
    api: Reads,
    namespace: str,
    reference: SecretReference | AuthoritiesReference,
    keys: Sequence[str],
) -> _ReadObject:
    kind = _kind_of(reference)
    found = await api.get(
        CONFIG_MAP if kind == CONFIG_MAP.name else SECRET, namespace, reference.name
    )
    if found is None:
        raise CredentialsMissing(
            f"there is no {kind} {reference.name} in namespace {namespace}",
            hint=f"create it with the keys {_listed(keys)}",
        )
    return _ReadObject(namespace, reference, found)


def _kind_of(reference: SecretReference | AuthoritiesReference) -> str:
    return getattr(reference, "kind", SECRET.name)


def _listed(keys: Sequence[str]) -> str:
    return " and ".join(f"`{key}`" for key in keys)


@lru_cache(maxsize=4096)
def _version(content: bytes, objects: str) -> str:
    return scrypt(content, salt=objects.encode(), n=VERSION_COST, r=8, p=1, dklen=16).hex()


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
            uri=SecretStr(spec.rabbitmq.url),
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
            endpoint=spec.s3.url,
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
