"""Reads the Secrets that a QueueCluster names, by name and each time, so that the operator sees
changes without the right to list Secrets.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import scrypt, sha256
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from postroad.controller.api import SECRET
from postroad.controller.cluster_spec import LocalReference, QueueClusterSpec
from postroad.errors import CertificateUnusable, CredentialsMissing
from postroad.ports.kubernetes import Kubernetes
from postroad.tls import server_context

AUTHORITIES = "ca.crt"
LOGIN, KEYS = ("username", "password"), ("accessKey", "secretKey")
CERTIFICATE = ("tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one server. `version` changes with what is read of the Secret, and no
    label, annotation or restored copy changes it. It stands in pod templates, whose readers may not
    read Secrets: each guess at a value costs a key derivation."""

    values: Mapping[str, SecretStr] = field(default_factory=dict)
    authorities: str = ""
    version: str = ""

    def get(self, name: str) -> SecretStr | None:
        return self.values.get(name)


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """The credentials of all three servers."""

    rabbitmq: Credentials
    cassandra: Credentials
    s3: Credentials

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the Secrets, by server."""
        return {
            "rabbitmq": self.rabbitmq.version,
            "cassandra": self.cassandra.version,
            "s3": self.s3.version,
        }

    @property
    def authorities(self) -> str:
        """All certificate authorities, each once, in PEM form."""
        each = (self.rabbitmq.authorities, self.cassandra.authorities, self.s3.authorities)
        return "".join(f"{text.strip()}\n" for text in dict.fromkeys(each) if text.strip())


NO_CREDENTIALS = ClusterCredentials(Credentials(), Credentials(), Credentials())


async def read_credentials(
    api: Kubernetes, namespace: str, spec: QueueClusterSpec
) -> ClusterCredentials:
    """Read the Secrets from a namespace. Raises: CredentialsMissing with what to create."""
    return ClusterCredentials(
        rabbitmq=await _read(api, namespace, spec.rabbitmq.secret_ref, LOGIN),
        cassandra=await _read(api, namespace, spec.cassandra.secret_ref, LOGIN),
        s3=await _read(api, namespace, spec.s3.secret_ref, KEYS),
    )


async def _read(
    api: Kubernetes, namespace: str, reference: LocalReference | None, keys: tuple[str, ...]
) -> Credentials:
    if reference is None:
        return Credentials()
    found = await api.get(SECRET, namespace, reference.name)
    wanted = " and ".join(f"`{key}`" for key in keys)
    if found is None:
        raise CredentialsMissing(
            f"there is no Secret {reference.name} in namespace {namespace}",
            hint=f"create it with the keys {wanted}",
        )
    data: Mapping[str, Any] = found.get("data") or {}
    if missing := [key for key in keys if not data.get(key)]:
        raise CredentialsMissing(
            f"Secret {namespace}/{reference.name} has no key " + " and no key ".join(missing),
            hint=f"it needs the keys {wanted}",
        )
    values = {key: _decoded(data[key]).strip("\r\n") for key in keys}
    authorities = _decoded(data.get(AUTHORITIES, ""))
    content = json.dumps([values, authorities]).encode()
    return Credentials(
        values={key: SecretStr(value) for key, value in values.items()},
        authorities=authorities,
        version=_version(sha256(content).digest(), f"{namespace}/{reference.name}"),
    )


@lru_cache(maxsize=4096)
def _version(content: bytes, secret: str) -> str:
    return scrypt(content, salt=secret.encode(), n=2**13, r=8, p=1, dklen=16).hex()


async def check_certificate(api: Kubernetes, namespace: str, name: str) -> None:
    """Check that TLS can be served with a Secret, as the intake's pods do, which mount it.

    Raises: CredentialsMissing, CertificateUnusable.
    """
    found = await _read(api, namespace, LocalReference(name=name), CERTIFICATE)
    certificate, key = (found.values[each].get_secret_value() for each in CERTIFICATE)
    # OpenSSL reads the key from a file only; a memfd keeps it off the disk.
    with os.fdopen(os.memfd_create("tls"), "w") as file:
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        try:
            server_context(Path(f"/proc/self/fd/{file.fileno()}"))
        except (OSError, ValueError) as error:
            raise CertificateUnusable(
                f"`tls.crt` and `tls.key` of Secret {namespace}/{name} cannot be used: {error}",
                hint="put in a certificate with its chain and its unencrypted key, in PEM form; "
                "running pods keep the certificate they have",
            ) from error


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise CredentialsMissing("a Secret's value is not text") from error
