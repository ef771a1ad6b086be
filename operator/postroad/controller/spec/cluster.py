"""The spec of a QueueCluster as Python reads it.

`crds/queueclusters.yaml` has the same in OpenAPI; a test keeps the two equal. `spec_of` gives the
hosts names that every namespace resolves."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from postroad.controller.spec import parts
from postroad.controller.spec.placement import Pod, ServiceAccount
from postroad.controller.spec.tls import (
    CassandraTls,
    ServerLoginReference,
    ServerTls,
    StoreLoginReference,
    StoreTls,
)
from postroad.delivery_settings.patterns import (
    WITH_QUERY,
    WITHOUT_QUERY,
    Duration,
    Port,
    PortInRange,
    ServerUrl,
)
from postroad.delivery_settings.secret_references import SecretKeyReference

NOT_A_SYSTEM_KEYSPACE = parts.holds(
    lambda name: name != "system" and not name.startswith("system_"),
    "the keyspace must not be one of Cassandra's own",
)


class UserPolicy(parts.Model):
    """Users at RabbitMQ that the operator makes, for each MailQueue one with the rights that its
    pods need."""

    overlap: Annotated[Duration, parts.at_least(timedelta(minutes=10))] = timedelta(hours=1)
    """Time that a former user of a MailQueue is valid beside the one that follows it. At least 10m,
    because pods get the new one within minutes."""

    period: Annotated[Duration, parts.at_least(timedelta(hours=1))] = timedelta(days=30)
    """After how long a MailQueue gets another user, or before, when its annotation
    postroad.dev/rotate changes. At least 1h."""


class RabbitMQ(parts.Model):
    """The RabbitMQ server that holds references to mail."""

    url: Annotated[str, Field(max_length=512, pattern=f"^amqps?://{WITH_QUERY}"), PortInRange]
    """URL (AMQP) with host, port and vhost (percent-encoded), without user and password. A host
    without a dot is a Service in the QueueCluster's namespace."""

    management_url: ServerUrl | None = None
    """Base URL of the management API. A host without a dot is a Service in the QueueCluster's
    namespace. Absent: not used; then maintenance does not find mails whose messages RabbitMQ
    lost."""

    secret_ref: ServerLoginReference
    """Secret with the keys `username` and `password`."""

    tls: ServerTls | None = None
    """Files for TLS to RabbitMQ (`amqps`) and its management API (`https`), whose certificates and
    names are always checked. Absent: the system's authorities, and no client certificate."""

    users: UserPolicy | None = None
    """Lets the operator make a user for each MailQueue, whose pods then use that one instead of
    `secretRef`; its own user needs the tag `administrator`. Absent: it makes none."""

    @property
    def can_make_its_users(self) -> bool:
        """True if there is a management API to make users by, or none are to be made."""
        return self.users is None or self.management_url is not None

    @property
    def uses_its_tls(self) -> bool:
        """True if an address begins with TLS, or no files for it are given."""
        addresses = (self.url, self.management_url or "")
        return self.tls is None or any(each.startswith(("amqps:", "https:")) for each in addresses)

    @property
    def hides_its_password(self) -> bool:
        """True if the management API has TLS where AMQP has."""
        return not (
            self.url.startswith("amqps:") and (self.management_url or "").startswith("http:")
        )


class Replication(parts.Model):
    """Replication of the keyspace."""

    class_: Annotated[
        Literal["NetworkTopologyStrategy", "SimpleStrategy"], Field(alias="class")
    ] = "NetworkTopologyStrategy"
    """Replication strategy. SimpleStrategy is for trials."""

    factor: Annotated[int, Field(ge=1, le=9)] = 3
    """Copies of each row, in the local data center. Below 3, the loss of one machine can stop the
    queue or lose mail, and the condition Durable is False."""


class Cassandra(parts.Model):
    """The Cassandra server that holds the time-series view of the queues."""

    contact_points: Annotated[list[parts.Host], Field(min_length=1, max_length=16)]
    """Host names or addresses of some nodes. A host without a dot is a Service in the
    QueueCluster's namespace."""

    port: Port = 9042
    """Port of the native protocol."""

    local_datacenter: Annotated[
        str, Field(min_length=1, max_length=128, pattern="^[A-Za-z0-9_][-A-Za-z0-9_.]*$")
    ] = "datacenter1"
    """Data center whose replicas make the quorum."""

    keyspace: Annotated[
        str, Field(max_length=48, pattern="^[a-z][a-z0-9_]{0,47}$"), NOT_A_SYSTEM_KEYSPACE
    ]
    """Keyspace of this cluster's tables, which no other QueueCluster has; created when missing.
    Cannot be changed."""

    replication: Replication = Replication()
    """Replication with which the keyspace is created when it is missing. Cannot be changed:
    Cassandra changes it (ALTER KEYSPACE, then a full repair), and the condition Durable has what it
    is."""

    row_lifetime: Annotated[Duration, parts.at_least(timedelta(hours=1))] = timedelta(hours=336)
    """Lifetime of rows. It bounds how long Cassandra keeps finished rows on disk, not how long mail
    may wait, because workers, intakes and `postroad maintain --every 30s` roll waiting mail
    forward at half of it. A queue for which none of these runs for half of rowLifetime begins to
    lose sight of its mail. At least 1h and four slices, and more than twice the longest lane of
    the queues. Free to change while everything runs: existing rows keep their lifetime, and
    marks of finished mail live as long as any row."""

    secret_ref: ServerLoginReference | None = None
    """Secret with the keys `username` and `password`. Absent: Cassandra asks for no password."""

    tls: Annotated[
        CassandraTls,
        parts.holds(
            lambda tls: tls.is_used,
            "caRef and clientCertRef need another mode than Disabled",
        ),
        parts.holds(lambda tls: tls.names_what_it_checks, "serverName goes with mode VerifyFull"),
    ]
    """True if connections are encrypted, and what is checked of certificates."""


class S3(parts.Model):
    """The object store that holds the bytes of mail."""

    url: ServerUrl | None = None
    """URL of the object store. A host without a dot is a Service in the QueueCluster's namespace.
    Absent: Amazon S3, by region."""

    region: Annotated[str, Field(min_length=1, max_length=64)] = "us-east-1"
    """Region of the buckets."""

    bucket_prefix: Annotated[str, Field(max_length=32, pattern="^[a-z0-9][a-z0-9-]*$")] = (
        "postroad-"
    )
    """Begins the name of every bucket that the operator creates. Cannot be changed."""

    secret_ref: StoreLoginReference | None = None
    """Secret with the keys `accessKey` and `secretKey`. Absent: the credentials of the pods (of
    a cloud's service account, for instance), and for the operator its own, which it has to be
    started for (--ambient-credentials)."""

    tls: StoreTls | None = None
    """Files for TLS to the object store (`https`), whose certificate and name are always checked.
    Absent: the system's authorities."""

    @property
    def uses_its_tls(self) -> bool:
        """True if the address begins with TLS, or no files for it are given."""
        return self.tls is None or not (self.url or "").startswith("http:")


class UpgradePace(parts.Model):
    """Pace at which the pods of the cluster's MailQueues are replaced when a newer operator wants
    others."""

    at_once: Annotated[int, Field(ge=0, le=1000)] = 10
    """Number of MailQueues that replace their pods at the same time; the next begins when one has
    ended. 0: all keep their pods. What a user changes of a MailQueue, its image included, or of
    the cluster's servers has its effect at once."""


CONSOLE_HOST = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?$"


class ConsolePolicy(parts.Model):
    """NetworkPolicy of the console's pods."""

    enabled: bool = False
    """True if the pods may connect to the ports of the servers, of DNS, of API servers (443 and
    6443) and of the issuer alone, and be reached at the console's port and that of metrics."""


class ConsoleOidc(parts.Model):
    """An OpenID Connect issuer that the API server knows, at which browsers log in (authorization
    code with PKCE)."""

    issuer: Annotated[str, Field(max_length=1024, pattern=f"^https://{WITHOUT_QUERY}"), PortInRange]
    """Its address, to which `/.well-known/openid-configuration` is appended, as the API server has
    it."""

    client_id: Annotated[str, Field(min_length=1, max_length=256)]
    """The console as the issuer knows it, with `https://HOST/login/callback` to return to. Its
    tokens are for it, and the API server has to take these."""

    secret_ref: SecretKeyReference | None = None
    """Key of a Secret with the secret of the client. Absent: it is a public one."""

    tls: StoreTls | None = None
    """Files for TLS to the issuer. Absent: the system's authorities."""


class ConsoleSpec(parts.Model):
    """The console: a page and an API over the MailQueues of this cluster, for users of Kubernetes
    with the rights that they have there."""

    pod: Pod | None = None
    """Placement of the pod and what it runs with. What it leaves out, the operator decides."""

    service_account: ServiceAccount | None = None
    """ServiceAccount of the pod. Absent: the operator's, without annotations."""

    hosts: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=CONSOLE_HOST)]], Field(max_length=16)
    ] = Field(default=[])
    """Names, with ports other than 443, under which a proxy with TLS, such as an Ingress, serves
    the console. Under others, it answers at loopback and as its Service alone."""

    oidc: ConsoleOidc | None = None
    """Logins of browsers at an OpenID Connect issuer. Absent: they bring a token."""

    network_policy: ConsolePolicy = ConsolePolicy()
    """NetworkPolicy of the pod."""


DEFAULT_CLASS = "default"
"""Of operators, and of QueueClusters that name none."""


class QueueClusterSpec(parts.Model):
    """The servers that queues share."""

    operator_class: Annotated[
        str, Field(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    ] = DEFAULT_CLASS
    """Class of the operators that this QueueCluster and its MailQueues are for; others leave them
    alone. Cannot be changed."""

    rabbitmq: Annotated[
        RabbitMQ,
        parts.holds(lambda rabbitmq: rabbitmq.uses_its_tls, "tls needs a server by amqps or https"),
        parts.holds(
            lambda rabbitmq: rabbitmq.hides_its_password,
            "managementURL must begin with https where url begins with amqps, because both are "
            "sent the same password",
        ),
        parts.holds(
            lambda rabbitmq: rabbitmq.can_make_its_users,
            "users needs managementURL, by which they are made",
        ),
    ]
    """RabbitMQ, which holds references to mail."""

    cassandra: Cassandra
    """Cassandra, which holds the time-series view of the queues."""

    s3: Annotated[
        S3, parts.holds(lambda s3: s3.uses_its_tls, "tls needs a url that begins with https")
    ]
    """S3, which holds the bytes of mail."""

    allowed_namespaces: parts.AllowedNamespaces = parts.AllowedNamespaces()
    """Namespaces whose MailQueues may use this cluster."""

    upgrades: UpgradePace = UpgradePace()
    """Pace at which the pods of the cluster's MailQueues are replaced when a newer operator wants
    others."""

    console: ConsoleSpec | None = None
    """The console of this cluster. Absent: none runs."""

    paused: bool = False
    """true: the operator changes no tables and deletes no users, and no upgrade goes on, until it
    is false again. It still checks the servers, and reconciles the MailQueues; these have a field
    of their own."""


def pace_of(cluster: Mapping[str, Any]) -> UpgradePace:
    """Return the pace of a QueueCluster's upgrades: the default where its spec is invalid, none
    while it is paused."""
    if cluster["spec"].get("paused"):
        return UpgradePace(at_once=0)
    try:
        return UpgradePace.model_validate(cluster["spec"].get("upgrades") or {})
    except ValidationError:
        return UpgradePace()


_URL_HOST = re.compile(r"(?P<before>^[a-z0-9+.-]+://(?:[^@/]*@)?)(?P<host>[^:/?\[\]]+)")


def spec_of(found: Mapping[str, Any]) -> QueueClusterSpec:
    """Return the spec of a QueueCluster, with hosts that resolve in every namespace. Raises:
    pydantic.ValidationError."""
    namespace = found["metadata"]["namespace"]
    spec = QueueClusterSpec.model_validate(found["spec"])
    rabbitmq, cassandra, s3 = spec.rabbitmq, spec.cassandra, spec.s3
    management, store = rabbitmq.management_url, s3.url
    contact_points = [full(each, namespace) for each in cassandra.contact_points]
    return spec.model_copy(
        update={
            "rabbitmq": rabbitmq.model_copy(
                update={
                    "url": in_url(rabbitmq.url, namespace),
                    "management_url": management and in_url(management, namespace),
                }
            ),
            "cassandra": cassandra.model_copy(update={"contact_points": contact_points}),
            "s3": s3.model_copy(update={"url": store and in_url(store, namespace)}),
        }
    )


def full(host: str, namespace: str) -> str:
    """Return a host name that resolves in every namespace.

    >>> full("cassandra", "mail"), full("cassandra.example.org", "mail"), full("::1", "mail")
    ('cassandra.mail.svc', 'cassandra.example.org', '::1')
    """
    is_service = "." not in host and ":" not in host and host != "localhost"
    return f"{host}.{namespace}.svc" if is_service else host


def in_url(url: str, namespace: str) -> str:
    """Return a URL whose host resolves in every namespace.

    >>> in_url("amqp://rabbitmq:5672/%2F", "mail")
    'amqp://rabbitmq.mail.svc:5672/%2F'
    """
    return _URL_HOST.sub(lambda found: found["before"] + full(found["host"], namespace), url)


def class_of_cluster(cluster: Mapping[str, Any]) -> str:
    """Return the class of a QueueCluster."""
    return cluster["spec"].get("operatorClass") or DEFAULT_CLASS
