"""TLS to the servers of a QueueCluster and to the next hop: the parts of both specs, and the files
that pods read to connect.

Each server has authorities of its own. A mode never follows from what a Secret holds, so that a
Secret which loses a key ends connections, and encrypts none of them less."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from postroad.controller.spec.parts import Model
from postroad.delivery_settings.secret_references import (
    AUTHORITIES_KEY,
    CERTIFICATE_KEYS,
    AuthoritiesReference,
    SecretReference,
)
from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN
from postroad.domain.values.text import BY_API_NAME
from postroad.logins import LOGIN, S3_LOGIN
from postroad.tls import Encryption

FOLDER = "/etc/postroad"
"""Above the folders of pods, one for each server; the kubelet renews whole folders only."""

READ_BY_ALL = 0o444
"""Mode of the files, in volumes of one pod: which user and group its processes have is decided by
the cluster, where the spec does not."""


class StoreTls(Model):
    """TLS to the object store."""

    ca_ref: AuthoritiesReference | None = None
    """The authorities that vouch for the server, in the same namespace. Absent: the system's."""


class ServerTls(StoreTls):
    """TLS to a server that may ask for a client certificate."""

    client_cert_ref: SecretReference | None = None
    """Secret with a certificate in `tls.crt` and its unencrypted key in `tls.key`, which the server
    is shown. Absent: none."""


class CassandraTls(ServerTls):
    """TLS to Cassandra."""

    mode: Annotated[Encryption, BY_API_NAME]
    """Disabled: connections are in clear. VerifyFull: they are encrypted, and authority and name
    of each node's certificate are checked. VerifyCA: the authority alone, for nodes whose
    certificates lack their addresses. Required, because contact points have no scheme."""

    server_name: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=HOSTNAME_PATTERN)] | None
    ) = None
    """With VerifyFull: the name that each node's certificate has. Absent: its IP address."""

    @property
    def is_used(self) -> bool:
        """True if connections are encrypted, or nothing is given that only these need."""
        return self.mode is not Encryption.DISABLED or (
            self.ca_ref is None and self.client_cert_ref is None
        )

    @property
    def names_what_it_checks(self) -> bool:
        """True if the name is checked, or none is given."""
        return self.server_name is None or self.mode is Encryption.VERIFY_FULL


SecretKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class LoginKeys(Model):
    """Keys of the Secret of a login."""

    username: SecretKey = LOGIN[0]
    """Key with the user's name."""

    password: SecretKey = LOGIN[1]
    """Key with the password."""


class StoreLoginKeys(Model):
    """Keys of the Secret of a login at the object store."""

    access_key: SecretKey = S3_LOGIN[0]
    """Key with the access key."""

    secret_key: SecretKey = S3_LOGIN[1]
    """Key with the secret of the access key."""


class ServerLoginReference(SecretReference):
    """Names a Secret with a user's name and password."""

    keys: LoginKeys = LoginKeys()
    """Keys of the Secret, where another program has other names for them."""


class StoreLoginReference(SecretReference):
    """Names a Secret with an access key and its secret."""

    keys: StoreLoginKeys = StoreLoginKeys()
    """Keys of the Secret, where another program has other names for them: those of a bucket claim
    are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""


LoginReference = ServerLoginReference | StoreLoginReference


def keys_of(login: LoginReference | None) -> Mapping[str, str]:
    """Return the keys of a Secret by the names that pods have for them; none without a login."""
    return {} if login is None else login.keys.model_dump(by_alias=True)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The folder of a pod with the login at one server, the authorities that vouch for it, and the
    client certificate that it is shown. `section`: of the settings, as `RABBITMQ`; `login_keys`:
    those of the Secret, by file."""

    section: str
    tls: StoreTls
    login: SecretReference | None = None
    login_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self._sources

    @property
    def _name(self) -> str:
        return self.section.lower().replace("_", "-")

    @property
    def _sources(self) -> list[dict[str, Any]]:
        authorities = self.tls.ca_ref
        certificate = self.tls.client_cert_ref if isinstance(self.tls, ServerTls) else None
        sources = []
        if self.login is not None:
            sources.append({"secret": _items(self.login.name, self.login_keys)})
        if authorities is not None:
            source = "secret" if authorities.kind == "Secret" else "configMap"
            sources.append({source: _items(authorities.name, {AUTHORITIES_KEY: AUTHORITIES_KEY})})
        if certificate is not None:
            sources.append(
                {
                    "secret": _items(
                        certificate.name, dict(zip(CERTIFICATE_KEYS, CERTIFICATE_KEYS, strict=True))
                    )
                }
            )
        return sources

    def volume(self) -> dict[str, Any]:
        """Return the volume of a pod."""
        projected = {"defaultMode": READ_BY_ALL, "sources": self._sources}
        return {"name": self._name, "projected": projected}

    def mount(self) -> dict[str, Any]:
        """Return the mount of a container."""
        return {"name": self._name, "mountPath": self._folder, "readOnly": True}

    def environment(self) -> dict[str, str]:
        """Return the settings that name the files, without their prefix."""
        values = {}
        if self.login is not None:
            values[f"{self.section}_LOGIN_FOLDER"] = self._folder
        if self.tls.ca_ref is not None:
            values[f"{self.section}_CA_FILE"] = f"{self._folder}/{AUTHORITIES_KEY}"
        if isinstance(self.tls, ServerTls) and self.tls.client_cert_ref is not None:
            certificate, key = CERTIFICATE_KEYS
            values[f"{self.section}_CLIENT_CERTIFICATE"] = f"{self._folder}/{certificate}"
            values[f"{self.section}_CLIENT_KEY"] = f"{self._folder}/{key}"
        return values

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{self._name}"


def _items(name: str, keys: Mapping[str, str]) -> Mapping[str, Any]:
    return {"name": name, "items": [{"key": key, "path": path} for path, key in keys.items()]}
