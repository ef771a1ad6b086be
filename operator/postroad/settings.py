"""Typed settings, read once from the environment and validated at start.

Variables are named `POSTROAD_<SECTION>_<FIELD>`; the docstring under each field is its reference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SecretStr,
    ValidationError,
    model_validator,
)

from postroad.domain.durations import parse_duration
from postroad.domain.handed_mails import LARGEST_HANDED, LONGEST_HANDING
from postroad.domain.lifetimes import DEAD_LETTER_LIFETIME
from postroad.domain.mail import MAILBOX_PATTERN
from postroad.domain.networks import Networks
from postroad.domain.next_hops import HOSTNAME_PATTERN, Protocol, TlsMode
from postroad.domain.reports.deciding import DELAY_REPORTED_AFTER, LARGEST_RETURNED_BYTES
from postroad.domain.reports.limits import REPORTS_PER_MINUTE
from postroad.domain.retries import DEFAULT_LANES, DEFAULT_MAX_AGE
from postroad.domain.sasl import Mechanism
from postroad.errors import InvalidInput, InvalidSettings
from postroad.tls import Encryption

PREFIX = "POSTROAD_"

T = TypeVar("T")


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def parsed(kind: type[T], parse: Callable[[str], T]) -> BeforeValidator:
    """Parse the text of a value that is not of this type yet; InvalidInput makes it invalid."""

    def check(value: object) -> T:
        try:
            return value if isinstance(value, kind) else parse(str(value))
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(check)


def _hostname(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(HOSTNAME_PATTERN, value):
        raise ValueError("write a full name (mx.example.org) or an address literal ([192.0.2.1])")
    return value


Duration = Annotated[timedelta, parsed(timedelta, parse_duration), Field(gt=timedelta(0))]
"""Written as in Kubernetes: `1h30m`."""

Mailbox = Annotated[str, Field(max_length=254, pattern=MAILBOX_PATTERN)]
"""An address in ASCII, without quotes."""

NetworkList = Annotated[InstanceOf[Networks], parsed(Networks, Networks.parse)]
"""Comma separated."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _WithClientTls(_Section):
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

    contact_points: Annotated[tuple[str, ...], BeforeValidator(_split)] = ("localhost",)
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


class S3(_Section):
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


class BrokerSettings(_Section):
    """How RabbitMQ keeps references."""

    delivery_limit: Annotated[int, Field(ge=1, le=1000)] = 20
    """How often RabbitMQ may deliver a mail that is not finished, before it is a dead letter."""


class Retry(_Section):
    """When the worker tries again."""

    lanes: Annotated[tuple[Duration, ...], BeforeValidator(_split), Field(min_length=1)] = (
        DEFAULT_LANES
    )
    """Delays by attempt, comma separated; the last one repeats."""

    max_age: Duration = DEFAULT_MAX_AGE
    """Since acceptance; a mail that is older is given up at its next deferral."""

    soft_bounce: bool = False
    """Whether a permanent refusal defers a mail, which is given up at its max age only."""

    dead_letter_lifetime: Duration = DEAD_LETTER_LIFETIME
    """From the death of a mail until it is discarded, with its bytes; distributed queue only."""


class Worker(_Section):
    """The worker and its next hop."""

    relay_host: str | None = None
    """The next hop. None: given on the command line."""

    relay_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """None: 25, or 465 where TLS is implicit."""

    relay_tls: TlsMode = TlsMode.OPPORTUNISTIC

    relay_protocol: Protocol = Protocol.SMTP

    relay_socket: Path | None = None
    """The Unix socket of an LMTP server on this machine, instead of a host. None: the next hop is a
    host."""

    relay_ca_file: Path | None = None
    """Certificate authorities of the next hop where TLS is required or implicit, instead of those
    for every server."""

    relay_login_folder: Path | None = None
    """Folder with the files `username` and `password`, read again for each connection: the login at
    the next hop. None: no login."""

    relay_login_mechanism: Mechanism | None = None
    """None: SCRAM-SHA-256, PLAIN or LOGIN, the first that the next hop offers. XOAUTH2: the
    password is an access token."""

    relay_login_unverified: bool = False
    """Log in also in clear, and where the next hop's certificate is not verified."""

    source_addresses: Annotated[tuple[str, ...], BeforeValidator(_split), Field(max_length=2)] = ()
    """Addresses of this machine from which the next hop is connected to, comma separated, one of
    IPv4 and one of IPv6 at most. None: the system chooses."""

    delivery_file: Path | None = None
    """YAML file of what an administrator decides about delivery (`delivery_settings`)."""

    attempt_log: Path | None = None
    """Folder of the attempt log, in which `postroad trace` searches. None: none is written."""

    attempt_log_addresses: bool = False
    """Whether it has addresses and replies as they are; otherwise domains, and replies without
    what names a person, a host or a mail."""

    attempt_log_lifetime: Duration = timedelta(days=14)
    """How long a line is kept, to the hour."""

    attempt_log_bytes: Annotated[int, Field(ge=32 * 2**20)] = 2**30
    """Of all files; beyond it the oldest are deleted, but none of the last two hours."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Connections to next hops at most; with a relay, mails in hand too."""

    window: Annotated[int, Field(ge=1, le=20_000)] = 900
    """Mails in hand at most where mail goes by routes: those of sites that are slow or rest must
    leave room for others. Each that waits costs a distributed queue a claim every 40 s; an embedded
    one nothing."""


class WorkerWebhook(_Section):
    """The webhook that gets a worker's mail."""

    url: SecretStr | None = None
    """None: mail goes elsewhere."""

    login_folder: Path | None = None
    """Folder with the file `secret`, read again for each mail: the secrets that sign requests, one
    a line."""

    ca_file: Path | None = None
    """Certificate authorities of the webhook, instead of those for every server."""

    timeout: Annotated[Duration, Field(ge=timedelta(seconds=1), le=LONGEST_HANDING)] = timedelta(
        seconds=60
    )
    """For one mail, from the connection to the answer."""

    largest_bytes: Annotated[int, Field(ge=65536, le=LARGEST_HANDED)] = LARGEST_HANDED
    """A longer mail is refused for good."""


class WorkerFunction(_Section):
    """The function in Python that gets a worker's mail."""

    name: str | None = None
    """`module:function`. None: mail goes elsewhere."""

    timeout: Annotated[Duration, Field(ge=timedelta(seconds=1), le=LONGEST_HANDING)] = timedelta(
        seconds=60
    )
    """For one mail."""

    largest_bytes: Annotated[int, Field(ge=65536, le=LARGEST_HANDED)] = LARGEST_HANDED
    """A longer mail is refused for good."""


class Reports(_Section):
    """Reports to the senders of mail that is not delivered, or whose delivery they ask about."""

    enabled: bool = True
    """false: none are made, and the intake does not offer DSN."""

    delay_after: Duration = DELAY_REPORTED_AFTER
    """The age at which a mail that waits is reported as delayed, once; more than the retry's max
    age: never."""

    delay_cleared: bool = False
    """Whether a delivery is reported after a delay was."""

    author: Mailbox | None = None
    """The address in the field From; None: MAILER-DAEMON at the name of this process in SMTP."""

    administrator: Mailbox | None = None
    """The address that gets reports about mail with the null reverse-path, such as reports; None:
    none are made."""

    largest_returned_bytes: Annotated[int, Field(ge=0, le=2**20)] = LARGEST_RETURNED_BYTES
    """A mail of up to this size goes back whole with the report of its failure, of a larger one the
    header alone."""

    per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = REPORTS_PER_MINUTE
    """Reports of one process to one address. Further ones wait for up to an hour; beyond that, none
    are made."""


class BareLineEnds(Enum):
    """What an intake does with a CR without LF, or an LF without CR, in a mail."""

    REFUSE = "refuse"
    NORMALISE = "normalise"


class LongLines(Enum):
    """What an intake does with a mail that has a line of more than 998 octets."""

    REFUSE = "refuse"
    FOLD = "fold"


class Intake(_Section):
    """The intake, and the limits of its clients."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on; `*`: all of both families."""

    port: Annotated[int, Field(ge=0, le=65535)] = 2525

    tls_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """The port on which clients begin with TLS (RFC 8314 3.3), beside `port`; the same number:
    instead of it. None: no such port."""

    relay_from: NetworkList | None = None
    """Networks whose clients may send, to any recipient. None: loopback, and only while `host` is
    a loopback address."""

    max_size_bytes: Annotated[int, Field(ge=65536)] = 50 * 2**20

    max_recipients: Annotated[int, Field(ge=100)] = 1000
    """Per mail. Source: RFC 5321 4.5.3.1.8."""

    max_sessions: Annotated[int, Field(ge=1)] = 500

    client_sessions: Annotated[int, Field(ge=1)] | None = None
    """Sessions of one client address; None: half of `max_sessions`."""

    client_connections_per_minute: Annotated[int, Field(ge=1)] | None = None

    client_mails_per_minute: Annotated[int, Field(ge=1)] | None = None

    least_bytes_per_second: Annotated[int, Field(ge=1)] = 500
    """Of a mail as a whole, after its first five minutes."""

    longest_session: Duration = timedelta(hours=1)
    """No mail begins in an older session."""

    bare_line_ends: BareLineEnds = BareLineEnds.REFUSE
    """What the intake does with a mail that has a CR without LF, or an LF without CR."""

    normalise_from: NetworkList | None = None
    """Networks whose mail is normalised although `bare_line_ends` is `refuse`."""

    early_input_from: NetworkList | None = None
    """Networks whose clients may send more after EHLO, HELO and DATA before the reply."""

    long_lines: LongLines = LongLines.REFUSE
    """What the intake does with a mail that has a line of more than 998 octets. `fold`: it accepts
    the mail unchanged, and the worker folds the line where the mail is not signed."""

    tls_certificate: Path | None = None
    """PEM file of the certificate and its chain; with `tls_key`, STARTTLS is offered."""

    tls_key: Path | None = None


LEAST_KEY = 16
"""Characters of a key of hashed addresses, at least."""


class AddressKind(Enum):
    """What the lake has of an address."""

    HASHED = "hashed"
    PLAIN = "plain"
    NONE = "none"


class Pipeline(_Section):
    """The data pipeline."""

    jars: Path | None = None
    """Folder of the jars that `postroad pipeline fetch` fetches. None: `postroad/jars` in the
    user's cache."""

    addresses: AddressKind = AddressKind.HASHED
    """What the lake has of addresses; their domains are plain."""

    address_key: Annotated[SecretStr, Field(min_length=LEAST_KEY)] | None = None
    """The key of hashed addresses: the same for all runs, or the same address has two hashes."""

    address_key_file: Path | None = None
    """File with this key, instead of it."""

    summary_file: Path | None = None
    """File to which a run writes in the end what it did, as JSON. None: none."""

    executors_file: Path | None = None
    """JSON file about the executors of a driver on Kubernetes, as the operator writes it. None:
    Spark runs as the option `--master` has it."""

    pod_name: str | None = None
    """With `executors_file`: the name of the driver's pod."""

    pod_ip: str | None = None
    """With `executors_file`: its address."""


class Settings(_Section):
    """All settings of a process."""

    rabbitmq: RabbitMQ = RabbitMQ()
    cassandra: Cassandra = Cassandra()
    s3: S3 = S3()
    broker: BrokerSettings = BrokerSettings()
    retry: Retry = Retry()
    worker: Worker = Worker()
    worker_webhook: WorkerWebhook = WorkerWebhook()
    worker_function: WorkerFunction = WorkerFunction()
    reports: Reports = Reports()
    intake: Intake = Intake()
    pipeline: Pipeline = Pipeline()

    hostname: Annotated[str, BeforeValidator(_hostname)] | None = None
    """The name of this process in SMTP: a fully qualified name or an address literal. None: the
    machine's own name."""

    health_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address that answers probes and scrapes; `*`: all of both families."""

    health_port: Annotated[int, Field(ge=0, le=65535)] = 8080

    drain_seconds: Annotated[float, Field(ge=0)] = 25
    """How long mails in flight may take after SIGTERM; less than a pod's grace period of 30 s."""

    ca_file: Path | None = None
    """Certificate authorities for every server that has none of its own, and for a next hop where
    TLS is required or implicit; None: the system's."""

    log_level: Annotated[str, Field(pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"


SECTIONS: Mapping[str, type[_Section]] = {
    "rabbitmq": RabbitMQ,
    "cassandra": Cassandra,
    "s3": S3,
    "broker": BrokerSettings,
    "retry": Retry,
    "worker": Worker,
    "worker_webhook": WorkerWebhook,
    "worker_function": WorkerFunction,
    "reports": Reports,
    "intake": Intake,
    "pipeline": Pipeline,
}


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. Unknown POSTROAD_* variables are ignored.

    Raises: InvalidSettings with the variable's name, and never with a secret.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    for section, model in SECTIONS.items():
        found = {
            field: environment[name]
            for field in model.model_fields
            if (name := f"{PREFIX}{section}_{field}".upper()) in environment
        }
        values[section] = {field: value for field, value in found.items() if value != ""}
    for field in Settings.model_fields.keys() - SECTIONS.keys():
        if value := environment.get(f"{PREFIX}{field}".upper()):
            values[field] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{PREFIX}{'_'.join(str(part) for part in each['loc'][:2])}".upper()
            + f": {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_input=False, include_url=False)
        )
        raise InvalidSettings(problems) from None
