"""Reads what a QueueCluster names of credentials, authorities and certificates, by name and each
time, so that the operator sees changes without the right to list Secrets.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import scrypt, sha256
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from postroad.controller.api import CONFIG_MAP, SECRET
from postroad.controller.cluster_spec import QueueClusterSpec
from postroad.controller.pipeline_spec import ADDRESS_KEY
from postroad.controller.remembered_reads import Reads
from postroad.controller.server_tls import (
    AUTHORITIES_KEY,
    CERTIFICATE_KEYS,
    AuthoritiesReference,
    ServerTls,
    StoreTls,
)
from postroad.delivery_settings.secret_references import SecretReference
from postroad.errors import CertificateUnusable, CredentialsMissing, KubernetesRefused
from postroad.logins import LOGIN, S3_LOGIN
from postroad.settings.pipeline import LEAST_KEY
from postroad.tls import server_context

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

    def get(self, name: str) -> SecretStr | None:
        return self.values.get(name)


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """The credentials of all three servers."""

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


async def read_credentials(
    api: Reads, namespace: str, spec: QueueClusterSpec, *, with_broker_login: bool = True
) -> ClusterCredentials:
    """Read the objects from a namespace. `with_broker_login`: also that of RabbitMQ's user, which
    pods with a user of their queue's own do not need.

    Raises: CredentialsMissing with what to create, CertificateUnusable.
    """
    rabbitmq, cassandra, s3 = spec.rabbitmq, spec.cassandra, spec.s3
    broker_login = rabbitmq.secret_ref if with_broker_login else None
    return ClusterCredentials(
        rabbitmq=await _read_server(api, namespace, broker_login, LOGIN, rabbitmq.tls),
        cassandra=await _read_server(api, namespace, cassandra.secret_ref, LOGIN, cassandra.tls),
        s3=await _read_server(api, namespace, s3.secret_ref, S3_LOGIN, s3.tls),
    )


async def _read_server(
    api: Reads,
    namespace: str,
    login: SecretReference | None,
    keys: tuple[str, ...],
    tls: StoreTls | None,
) -> Credentials:
    shown = tls.client_cert_ref if isinstance(tls, ServerTls) else None
    values = {} if login is None else await _read(api, namespace, login, keys)
    trusted = tls.ca_ref if tls else None
    authorities = None if trusted is None else await read_authorities(api, namespace, trusted)
    certificate = None if shown is None else await _read_certificate(api, namespace, shown.name)
    named = [each.name for each in (login, trusted, shown) if each is not None]
    if not named:
        return Credentials()
    tls_content = json.dumps([authorities, certificate]).encode()
    content = json.dumps([values, authorities, certificate]).encode()
    objects = f"{namespace}/{'/'.join(named)}"
    return Credentials(
        values={key: SecretStr(value) for key, value in values.items()},
        authorities=authorities,
        certificate=None if certificate is None else SecretStr(certificate),
        version=_version(sha256(content).digest(), objects),
        tls_version="" if tls is None else _version(sha256(tls_content).digest(), objects),
    )


async def read_authorities(api: Reads, namespace: str, reference: AuthoritiesReference) -> str:
    """Return certificate authorities in PEM form.

    Raises: CredentialsMissing, CertificateUnusable.
    """
    text = (await _read(api, namespace, reference, (AUTHORITIES_KEY,)))[AUTHORITIES_KEY]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnusable(
            f"`{AUTHORITIES_KEY}` of {reference.kind} {namespace}/{reference.name} holds no "
            f"certificate authorities: {error}",
            hint="put in the certificates of the authorities, in PEM form",
        ) from error
    return text


async def check_certificate(api: Reads, namespace: str, name: str) -> None:
    """Check that TLS can be served with a Secret, as the intake's pods do, which mount it.

    Raises: CredentialsMissing, CertificateUnusable.
    """
    await _read_certificate(api, namespace, name)


async def check_address_key(api: Reads, namespace: str, reference: SecretReference) -> None:
    """Check that a Secret has a key for hashed addresses. Raises: CredentialsMissing."""
    found = await _read(api, namespace, reference, (ADDRESS_KEY,))
    if len(found[ADDRESS_KEY]) < LEAST_KEY:
        raise CredentialsMissing(
            f"`{ADDRESS_KEY}` of Secret {namespace}/{reference.name} has fewer than {LEAST_KEY} "
            "characters (spec.pipeline.addresses.keyRef)"
        )


async def _read_certificate(api: Reads, namespace: str, name: str) -> str:
    """Return a certificate with its key, in PEM form."""
    found = await read_values(api, namespace, name, CERTIFICATE_KEYS)
    pem = "".join(f"{found[each]}\n" for each in CERTIFICATE_KEYS)
    # OpenSSL reads the key from a file only; a memfd keeps it off the disk.
    with os.fdopen(os.memfd_create("tls"), "w") as file:
        file.write(pem)
        file.flush()
        try:
            server_context(Path(f"/proc/self/fd/{file.fileno()}"))
        except (OSError, ValueError) as error:
            raise CertificateUnusable(
                f"`tls.crt` and `tls.key` of Secret {namespace}/{name} cannot be used: {error}",
                hint="put in a certificate with its chain and its unencrypted key, in PEM form; "
                "running pods keep the certificate they have",
            ) from error
    return pem


async def read_values(api: Reads, namespace: str, name: str, keys: Sequence[str]) -> dict[str, str]:
    """Return what a Secret has under these keys. Raises: CredentialsMissing."""
    return await _read(api, namespace, SecretReference(name=name), keys)


async def _read(
    api: Reads,
    namespace: str,
    reference: SecretReference | AuthoritiesReference,
    keys: Sequence[str],
) -> dict[str, str]:
    kind = getattr(reference, "kind", SECRET.name)
    found = await api.get(
        CONFIG_MAP if kind == CONFIG_MAP.name else SECRET, namespace, reference.name
    )
    wanted = " and ".join(f"`{key}`" for key in keys)
    if found is None:
        raise CredentialsMissing(
            f"there is no {kind} {reference.name} in namespace {namespace}",
            hint=f"create it with the keys {wanted}",
        )
    data: Mapping[str, Any] = found.get("data") or {}
    if missing := [key for key in keys if not data.get(key)]:
        raise CredentialsMissing(
            f"{kind} {namespace}/{reference.name} has no key " + " and no key ".join(missing),
            hint=f"it needs the keys {wanted}",
        )
    texts = {key: _decoded(data[key]) if kind == SECRET.name else str(data[key]) for key in keys}
    return {key: text.strip("\r\n") for key, text in texts.items()}


@lru_cache(maxsize=4096)
def _version(content: bytes, objects: str) -> str:
    return scrypt(content, salt=objects.encode(), n=VERSION_COST, r=8, p=1, dklen=16).hex()


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise CredentialsMissing("a Secret's value is not text") from error
