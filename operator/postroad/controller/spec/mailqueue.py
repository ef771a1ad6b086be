"""The spec of a MailQueue as Python reads it.

`crds/mailqueues.yaml` has the same in OpenAPI; a test keeps fields, defaults, bounds and
descriptions equal. Rules that need the accepted configuration (a window must divide the accepted
one) stand in `domain.configuration`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from postroad.controller.spec import parts
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.pipeline import Pipeline
from postroad.controller.spec.placement import NetworkPolicy, Pod, ServiceAccount
from postroad.controller.spec.tls import StoreTls
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.patterns import (
    OBJECT_NAME_PATTERN,
    Duration,
    ObjectName,
    ServerUrl,
)
from postroad.delivery_settings.secret_references import SecretReference
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.delivery.retries import DEFAULT_LANES, DEFAULT_MAX_AGE, RetryPlan
from postroad.domain.mail.envelope_documents import MAX_HANDED, MAX_HANDING
from postroad.domain.queues.lifetimes import DEAD_LETTER_LIFETIME
from postroad.domain.reports import deciding
from postroad.errors import InvalidSettings
from postroad.settings.delivery import HandedBytes

SECOND = timedelta(seconds=1)

HandingTime = Annotated[
    Duration,
    parts.holds(lambda each: SECOND <= each <= MAX_HANDING, "timeout must be from 1s to 10m"),
]


class WebhookSpec(parts.Model):
    """Posts every mail to a webhook: multipart/form-data with the parts `envelope` and `message`,
    signed as Standard Webhooks has it."""

    url: ServerUrl
    """URL that gets the requests, without a login. A host without a dot is a Service in the
    MailQueue's namespace. With https, the certificate is verified."""

    secret_ref: SecretReference
    """Secret with `secret`, in the same namespace: 1 to 4 secrets, one a line, that sign each
    request. A renewed one is used once the kubelet has written it into the pod, within about a
    minute; no pod restarts."""

    tls: StoreTls | None = None
    """TLS to the webhook (`https`), whose certificate and name are always checked. Absent: the
    system's authorities."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail, from the connection to the answer."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class FunctionSpec(parts.Model):
    """Calls a function in Python for every mail, in the worker's own process."""

    name: Annotated[
        str,
        Field(
            max_length=253,
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
            r":[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$",
        ),
    ]
    """module:function, which the image of the queue has (spec.image)."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class ByRoutes(parts.Model):
    """Delivery to the servers that the MX records of each recipient's domain name."""


class Handler(parts.Model):
    """Handler of mails: one of these."""

    relay: Hop | None = None
    """Hand every mail to one SMTP or LMTP server."""

    mx: ByRoutes | None = None
    """Deliver to the servers that the MX records of each recipient's domain name, or as the rules
    of spec.delivery.routing have it. Set `hostname`, since many servers refuse a client without a
    name. Port 25 must be open towards the Internet."""

    webhook: WebhookSpec | None = None
    """Post every mail to a webhook."""

    function: FunctionSpec | None = None
    """Call a function in Python for every mail."""

    @model_validator(mode="after")
    def _is_one(self) -> Handler:
        fields = type(self).model_fields
        if sum(getattr(self, name) is not None for name in fields) != 1:
            raise ValueError(f"name one handler: {' or '.join(fields)}")
        return self


AT_LEAST_A_SECOND = parts.at_least(timedelta(seconds=1))


class ClusterReference(parts.Model):
    """Names a QueueCluster."""

    name: ObjectName
    """Name of the QueueCluster."""

    namespace: (
        Annotated[str, Field(min_length=1, max_length=63, pattern=OBJECT_NAME_PATTERN)] | None
    ) = None
    """Namespace of the QueueCluster, when it is another one than the MailQueue's. The QueueCluster
    must allow it (spec.allowedNamespaces), and the Secrets it names must exist under the same names
    in the MailQueue's namespace."""


class ViewSpec(parts.Model):
    """Parameters by which the time-series view is cut. Only some changes are allowed, because
    others would make mail invisible; status.configuration has the accepted values."""

    slice_window: Annotated[Duration, AT_LEAST_A_SECOND] = timedelta(hours=1)
    """Length of a slice of time, in whole seconds, at least 1s. A new value must divide the
    accepted one: after 1h, for example 30m, 20m, 15m, 10m, 5m or 1m. It can never grow."""

    bucket_count: Annotated[int, Field(ge=1, le=1024)] = 3
    """Partitions of a slice, to spread it over Cassandra's nodes: as many as nodes is a good
    number. It can only grow."""

    update_browse_start_pace: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1000
    """Ended mails, on average, between two updates of browse start. Free to change."""

    def configuration(self) -> ViewConfiguration:
        """Return the wanted configuration."""
        return ViewConfiguration(
            slice_window=self.slice_window,
            bucket_count=self.bucket_count,
            update_browse_start_pace=self.update_browse_start_pace,
        )


class BrokerPolicy(parts.Model):
    """Parameters by which RabbitMQ keeps references."""

    delivery_limit: Annotated[int, Field(ge=1, le=1000)] = 20
    """Number of times that RabbitMQ may deliver a mail that is not finished, before it goes to the
    dead letters. Cannot be changed: it is an argument of the quorum queues."""


class BlobsPlace(parts.Model):
    """The bucket that holds the bytes of this queue's mail."""

    bucket: (
        Annotated[str, Field(min_length=3, max_length=63, pattern="^[a-z0-9][a-z0-9.-]*[a-z0-9]$")]
        | None
    ) = None
    """An existing bucket to share; the queue's keys begin with its name. Absent or null: a bucket
    of its own, `<bucketPrefix><namespace>-<name>`. Cannot be changed: the bytes of waiting mail
    would be left behind."""


class Retry(parts.Model):
    """When deferred mail is tried again."""

    lanes: list[Annotated[Duration, AT_LEAST_A_SECOND]] = Field(
        default=list(DEFAULT_LANES),
        min_length=1,
        max_length=16,
    )
    """Delays before the second, third, … attempt; the last one repeats until maxAge. They differ,
    and none is longer than maxAge."""

    max_age: Annotated[Duration, AT_LEAST_A_SECOND] = DEFAULT_MAX_AGE
    """Age since acceptance at which a mail that still fails becomes a dead letter, with the last
    reply as its reason."""

    soft_bounce: bool = False
    """true: a permanent refusal (5xx) defers a mail, which is given up at maxAge only, so that a
    wrong setting ends no mail while a new set-up is tried."""

    dead_letter_lifetime: Annotated[Duration, AT_LEAST_A_SECOND] = DEAD_LETTER_LIFETIME
    """Time from the death of a mail until it is discarded, with its bytes."""

    @model_validator(mode="after")
    def _fit_together(self) -> Retry:
        if max(self.lanes) > self.max_age:
            raise ValueError("a lane cannot be longer than maxAge: name shorter lanes")
        if len(set(self.lanes)) < len(self.lanes):
            raise ValueError("lanes must differ: the last one repeats by itself")
        return self


class Reports(parts.Model):
    """Reports to the senders of mail that is not delivered, or whose delivery they ask about."""

    enabled: bool = True
    """True if workers make reports. false: a mail that is given up becomes a dead letter and its
    sender gets no notice; the intake does not offer DSN."""

    delay_after: Annotated[Duration, AT_LEAST_A_SECOND] = deciding.DELAY_REPORTED_AFTER
    """Age at which a mail that waits is reported as delayed, once. More than retry.maxAge:
    never."""

    author: parts.MailboxText | None = None
    """Address in the field From of reports. Absent: MAILER-DAEMON at the hostname of the queue, or
    of the pod."""

    administrator: parts.MailboxText | None = None
    """Address that gets reports about mail that has no sender, such as reports. Absent: none are
    made."""

    largest_returned_bytes: Annotated[int, Field(ge=0, le=1_048_576)] = deciding.MAX_RETURNED_BYTES
    """A mail of up to this size goes back whole with the report of its failure, of a larger one the
    header alone."""

    per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = deciding.REPORTS_PER_MINUTE
    """Reports of one worker to one address. Further ones wait for up to an hour; beyond that, none
    are made."""


AT_LEAST_A_MINUTE = parts.at_least(timedelta(minutes=1))


class Autoscaling(parts.Model):
    """Bounds and rules for the number of workers, which the operator changes by the mail that is
    due. Mail that is held, or waits for a later attempt, does not count."""

    min_replicas: parts.Replicas = 1
    """Fewest workers. 0: none while no mail is due, until within seconds of the first one."""

    max_replicas: Annotated[int, Field(ge=1, le=1000)]
    """Most workers, and no fewer than minReplicas."""

    mails_per_worker: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Due mails that one worker is enough for."""

    oldest_mail: Annotated[Duration, AT_LEAST_A_MINUTE] = timedelta(minutes=5)
    """Time for which a mail may be due before there are more workers, as far as there is mail that
    none of them has."""

    scale_down_after: Annotated[Duration, AT_LEAST_A_MINUTE] = timedelta(minutes=10)
    """Time for which fewer workers would have been enough before there are fewer."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Autoscaling:
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas must not be greater than maxReplicas")
        return self


class Workers(parts.Model):
    """The Deployment `<name>-worker`, which dequeues and delivers."""

    replicas: parts.Replicas = 2
    """Number of workers. `kubectl scale` and a HorizontalPodAutoscaler change this field. With
    autoscaling: the number to begin with."""

    autoscaling: Autoscaling | None = None
    """Scaling of the workers by the operator. An autoscaler of the Deployment or of the MailQueue
    decides instead for as long as there is one. Absent: there are `replicas`."""

    handler: Handler
    """Handler of mails."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Mails that one worker attempts at the same time, at most. With the handler mx: connections
    that one worker has at the same time, and half as many again that wait for their servers."""

    pod: Pod | None = None
    """Placement of pods and what they run with. What it leaves out, the operator decides;
    `template` changes what comes of both."""

    template: parts.Anything = Field(default={})
    """A partial PodTemplateSpec that is merged into the workers' pods, over `pod`: a further
    container, a volume, … The container is called `worker`."""


class MailQueueSpec(parts.Model):
    """A distributed mail queue and the programs around it."""

    cluster_ref: ClusterReference
    """The QueueCluster whose servers carry this queue. Cannot be changed."""

    view: ViewSpec = ViewSpec()
    """Parameters by which the time-series view is cut."""

    broker: BrokerPolicy = BrokerPolicy()
    """Parameters by which RabbitMQ keeps references."""

    blobs: BlobsPlace = BlobsPlace()
    """The bucket that holds the bytes of this queue's mail."""

    retry: Retry = Retry()
    """When deferred mail is tried again."""

    reports: Reports = Reports()
    """Reports to senders."""

    hostname: parts.Hostname | None = None
    """The name that workers give in EHLO, and the intake in its greeting and the `Received` field:
    a fully qualified name in A-labels, or an address literal such as [192.0.2.1]. Absent: workers
    give the address of each connection as a literal, and the intake gives
    `<name>-intake.<namespace>.svc`."""

    workers: Workers | None = None
    """The workers, which dequeue and deliver. Absent: none; programs of your own dequeue. Workers,
    intakes and `postroad maintain --every 30s` roll rows forward; a queue for which none of these
    runs for half of rowLifetime begins to lose sight of its mail."""

    intake: Intake | None = None
    """The intake, which accepts mail by SMTP and HTTP. Absent: none."""

    delivery: DeliverySettings | None = None
    """Decisions about the delivery by workers: where mail goes, how connections are secured, which
    keys sign, how much goes in a minute. Workers follow a change within about two minutes, and
    no pod restarts, unless another Secret is named. Absent: mail goes as the handler has it,
    without limits, and is not signed."""

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")] | None = None
    """The image of workers and intake, which stays when the operator is upgraded. Absent: the one
    that the operator names, at the pace of the QueueCluster's `upgrades`."""

    pipeline: Pipeline | None = None
    """Jobs of the data pipeline. Absent: none."""

    service_account: ServiceAccount | None = None
    """ServiceAccount of all pods, by which they have the identity of a cloud. Absent: the
    operator's, without annotations."""

    network_policy: NetworkPolicy = NetworkPolicy()
    """NetworkPolicies of all pods."""

    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """Fate of the RabbitMQ queues, the rows in Cassandra and the bytes in S3 when this resource is
    deleted. Retain: all stay, and a MailQueue of the same name takes them over. Delete: all are
    deleted, dead letters and the configuration history included; in S3 the objects under
    `<namespace>.<name>/`, and the queue's own bucket if nothing else is left in it. Mail that
    waits is deleted when the annotation `postroad.dev/confirm-deletion` confirms it, with the
    resource's name."""

    paused: bool = False
    """true: the operator changes nothing of this queue until it is false again. Running workers go
    on; the operator still updates the sizes and the numbers of pods in the status."""

    @model_validator(mode="after")
    def _has_functions_of_filters(self) -> MailQueueSpec:
        filters = () if self.intake is None else self.intake.filters
        if self.image is None and any(each.function is not None for each in filters):
            raise ValueError(
                "a filter with function needs an image of your own that has it: name it in image"
            )
        return self

    @model_validator(mode="after")
    def _list_is_looked_at(self) -> MailQueueSpec:
        bounces = None if self.intake is None else self.intake.bounces
        suppression = None if self.delivery is None else self.delivery.suppression
        if bounces is not None and bounces.suppress and suppression is None:
            raise ValueError(
                "intake.bounces.suppress needs delivery.suppression, with which workers look at the"
                " suppression list: write delivery: {suppression: {}}"
            )
        return self

    @model_validator(mode="after")
    def _retries_fit_the_queue(self) -> MailQueueSpec:
        try:
            plan = RetryPlan(tuple(self.retry.lanes), self.retry.max_age)
            if self.delivery is not None:
                self.delivery.retry_rules(plan)
        except InvalidSettings as error:
            raise ValueError(f"delivery.{error}") from error
        return self

    @model_validator(mode="after")
    def _routes_are_followed(self) -> MailQueueSpec:
        if (
            self.delivery is not None
            and self.delivery.routing is not None
            and self.workers is not None
            and self.workers.handler.mx is None
        ):
            raise ValueError(
                "delivery.routing goes with the handler mx: write workers.handler: {mx: {}}; a rule"
                " can name a relay in hops"
            )
        if (
            self.delivery is not None
            and self.delivery.suspensions
            and self.workers is not None
            and self.workers.handler.mx is None
        ):
            raise ValueError(
                "delivery.suspensions goes with the handler mx: replies of a relay are about sites"
                " behind it, and suspend nothing"
            )
        return self
