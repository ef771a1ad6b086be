"""The settings of the servers of a distributed queue."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from postroad.settings.documents import Section, split
from postroad.tls import Encryption


class _WithClientTls(Section):
    ca_file: Path | None = None
    """Certificate authorities of this server, instead of those for every server."""

    client_certificate: Path | None = None
    """PEM file of a certificate that the server is shown."""

    client_key: Path | None = None
    """PEM file of its key; None: it is in the certificate's file."""

    @model_validator(mode="after")
    def _has_certificate_of_key(self) -> Self:
        if self.client_key and not self.client_certificate:
            raise ValueError("a client key needs the client certificate that it is of")
        return self


class RabbitMQ(_WithClientTls):
    """The RabbitMQ server, which holds references."""

    uri: SecretStr = SecretStr("amqp://guest:guest@localhost:5672/%2F")
    """AMQP URI, with user and password (percent-encoded) and vhost."""

    management_url: str | None = None
    """Base URL of the management API; None: not used. The user is the URI's."""

    username: str | None = None
    """Overrides the URI's user."""

    password: SecretStr | None = None
    """Overrides the URI's password."""

    login_folder: Path | None = None
    """Folder with the files `username` and `password`, read again for each connection, instead of
    both."""


class Cassandra(_WithClientTls):
    """The Cassandra servers, which hold the view."""

    contact_points: Annotated[tuple[str, ...], BeforeValidator(split)] = ("localhost",)
    """Host names or addresses, comma separated."""

    port: Annotated[int, Field(ge=1, le=65535)] = 9042

    local_datacenter: str = "datacenter1"
    """The data center whose replicas make the quorum."""

    keyspace: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")] = "postroad"

    username: str | None = None

    password: SecretStr | None = None

    login_folder: Path | None = None
    """Folder with the files `username` and `password`, read again for each connection, instead of
    both."""

    tls: Encryption = Encryption.DISABLED
    """Encrypt, and check the nodes' certificates."""

    tls_name: str | None = None
    """With `verify-full`: the name that each node's certificate has; None: its IP
    address."""


class S3(Section):
    """The object store, which holds the bytes."""

    endpoint: str | None = None
    """URL of the store; None: AWS by region."""

    ca_file: Path | None = None
    """Certificate authorities of the store, instead of those for every server."""

    region: str = "us-east-1"

    bucket: str | None = None
    """A bucket to share by prefix; None: a bucket of the queue's own, `<bucket_prefix><queue>`."""

    bucket_prefix: str = "postroad-"

    access_key: SecretStr | None = None

    secret_key: SecretStr | None = None

    login_folder: Path | None = None
    """Folder with the files `accessKey` and `secretKey`, read again when they change, instead of
    both."""


class BrokerSettings(Section):
    """Parameters by which RabbitMQ keeps references."""

    delivery_limit: Annotated[int, Field(ge=1, le=1000)] = 20
    """Number of times that RabbitMQ may deliver a mail that is not finished, before it is a dead
    letter."""
