"""The address, user and vhost at RabbitMQ, and the driver's settings for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import unquote, urlsplit

import pika

from postroad.errors import InvalidSettings
from postroad.logins import Login, LoginFolder
from postroad.tls import SYSTEM_TLS, ClientTls, client_context

HEARTBEAT = timedelta(seconds=8)
"""The driver notices a hanging server within this and five seconds more; RabbitMQ drops a client
after twice this."""

CONNECT_TIMEOUT = timedelta(seconds=5)
"""For TCP, TLS and the AMQP handshake together."""

BLOCKED_TIMEOUT = timedelta(seconds=60)
"""After this the driver closes a connection that the server blocks (its memory or disk is full), so
that the next one may reach another node of the cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    """A vhost and its user. Its repr has no password."""

    host: str
    port: int
    vhost: str
    username: str
    password: str = field(repr=False)
    encrypted: bool = False
    tls: ClientTls = SYSTEM_TLS
    management_url: str | None = field(default=None, repr=False)
    login_folder: LoginFolder | None = None
    """Where the user is read again for each connection, instead of `username` and `password`."""

    @property
    def login(self) -> Login:
        """The user as of now. Raises: CredentialsMissing."""
        if self.login_folder is not None:
            return self.login_folder.read()
        return Login(self.username, self.password)

    @classmethod
    def from_uri(
        cls,
        uri: str,
        *,
        username: str | None = None,
        password: str | None = None,
        login_folder: LoginFolder | None = None,
        tls: ClientTls = SYSTEM_TLS,
        management_url: str | None = None,
    ) -> Access:
        """Read `amqp[s]://user:password@host:port/vhost`; `username` and `password` override.

        Raises: InvalidSettings, which does not quote the URI.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise InvalidSettings("the AMQP URI is malformed") from error
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise InvalidSettings("write the AMQP URI as amqp://HOST:PORT/VHOST, or amqps://…")
        encrypted = parts.scheme == "amqps"
        return cls(
            host=parts.hostname,
            port=port or (5671 if encrypted else 5672),
            vhost=unquote(parts.path[1:]) or "/",
            username=username or unquote(parts.username or "guest"),
            password=password if password is not None else unquote(parts.password or "guest"),
            encrypted=encrypted,
            tls=tls,
            management_url=management_url,
            login_folder=login_folder,
        )


def parameters_of(access: Access, purpose: str) -> pika.ConnectionParameters:
    """Return the driver's parameters; `purpose` names the connection in RabbitMQ's lists.
    Raises: CredentialsMissing, TlsRefused."""
    login = access.login
    return pika.ConnectionParameters(
        host=access.host,
        port=access.port,
        virtual_host=access.vhost,
        credentials=pika.PlainCredentials(login.username, login.password),
        ssl_options=_tls(access) if access.encrypted else None,
        heartbeat=round(HEARTBEAT.total_seconds()),
        blocked_connection_timeout=BLOCKED_TIMEOUT.total_seconds(),
        socket_timeout=CONNECT_TIMEOUT.total_seconds(),
        stack_timeout=CONNECT_TIMEOUT.total_seconds(),
        connection_attempts=1,
        client_properties={"connection_name": f"postroad {purpose}"},
    )


def _tls(access: Access) -> pika.SSLOptions:
    return pika.SSLOptions(client_context(access.tls), access.host)
