"""Every metric of postroad, with its unit in its name and all values of its labels.

No label holds an address; only the names of resources have no fixed list of values. A metric counts
one thing in one unit, so that its sum over any of its labels has a meaning."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import version

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the value."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each, of times


@lru_cache
def of_queue(queue: str) -> tuple[str, str]:
    """Return the labels `namespace` and `name` of a queue. One in a directory has no namespace.

    >>> of_queue("mail.outgoing"), of_queue("/var/spool/a.b")
    (('mail', 'outgoing'), ('', '/var/spool/a.b'))
    """
    namespace, _, name = ("", "", queue) if queue.startswith("/") else queue.rpartition(".")
    return namespace, name


class SampledGauge(Collector):
    """A gauge whose samples are asked for at each scrape: for resources, which come and go."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, tuple(labels)
        self.samples: Callable[[], Iterable[Sample]] = tuple
        REGISTRY.register(self)

    def set(self, value: float) -> None:
        """Give one sample without labels from now on, in this process alone."""
        self.samples = lambda: [((), value)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, value in self.samples():
            family.add_metric(labels, value)
        yield family


ENQUEUED = Counter("postroad_enqueued_mails_total", "Mails queued.", ["namespace", "name"])
ENQUEUE_FAILURES = Counter(
    "postroad_enqueue_failures_total",
    "Enqueues that reported an error.",
    ["namespace", "name", "reason"],  # reason: broker, view, blobs, deadline, invalid, full, other
)
UNWITHDRAWN = Counter(
    "postroad_unwithdrawn_enqueues_total",
    "Failed enqueues that may be delivered once all the same.",
    ["namespace", "name", "reason"],  # reason: not withdrawn, in flight, not followed
)
ENQUEUE_SECONDS = Histogram(
    "postroad_enqueue_duration_seconds", "Time until an enqueue was durable.", ["namespace", "name"]
)
ENDED = Counter(
    "postroad_ended_items_total",
    "Items that ended.",
    ["namespace", "name", "ending"],  # ending: done, retry, defer, reject
)
SKIPPED = Counter(
    "postroad_skipped_references_total",
    "References that the consumer received and did not hand out.",
    ["namespace", "name", "reason"],
    # reason: marked, finished, late, redelivery delay, claimed, repetition, unreadable, unserved
)
VANISHED = Gauge(
    "postroad_vanished_rows",
    "Rows of a closed slice that were counted and are gone; browse start stays until accepted.",
    ["namespace", "name"],
)
WRONG_CLOCKS = Gauge(
    "postroad_wrong_clock_hosts",
    "Cassandra hosts whose clocks disagreed with most others when this process last read them.",
)
UNARCHIVED = Counter(
    "postroad_unarchived_slices_total",
    "Slices that were cleaned before they were archived, because the archive did not come in time.",
    ["namespace", "name"],
)
UNARCHIVED_SEGMENTS = Counter(
    "postroad_unarchived_segments_total",
    "Segments of archived stores in directories that went before the pipeline had read them.",
)
UNDELETED = Counter(
    "postroad_undeleted_purges_total",
    "Purged partitions of which the object store kept bytes until maintenance gave up on them.",
    ["namespace", "name"],
)
ROLLED_FORWARD = Counter(
    "postroad_rolled_forward_mails_total",
    "Mails given a new entry before theirs expired.",
    ["namespace", "name"],
)
LATE = Counter(
    "postroad_late_mails_total",
    "Mails whose rows came into slices behind browse start; each was given a new entry.",
    ["namespace", "name"],
)
REPUBLISHED = Counter(
    "postroad_republished_mails_total",
    "Mails given a new message by maintenance, as the broker had fewer messages than mails waited.",
    ["namespace", "name"],
)
MAINTENANCE_ERRORS = Counter(
    "postroad_maintenance_errors_total",
    "Mails at which a round of maintenance failed; it went on with the others.",
    ["namespace", "name"],
)
UNDECODABLE = Gauge(
    "postroad_undecodable_records",
    "What the last maintenance found in the view and this release cannot decode.",
    ["namespace", "name", "record"],  # record: row, mark, dead_letter
)
EXPIRED = Counter(
    "postroad_expired_dead_letters_total",
    "Dead letters that maintenance discarded as they were older than their lifetime.",
    ["namespace", "name"],
)
UNCOUNTED = Counter(
    "postroad_sizes_without_dead_letters_total",
    "Sizes that leave out the number of dead letters, as the view did not answer for it.",
    ["namespace", "name"],
)
ORPHANED = Counter(
    "postroad_orphaned_objects_total",
    "Objects without a mail that an audit deleted.",
    ["namespace", "name"],
)
NOT_OWNED = Gauge(
    "postroad_bucket_not_owned",
    "1 while the bucket's owner object names another view or a later state: no audit deletes.",
    ["namespace", "name"],
)
LEASED = Gauge("postroad_leased_items", "Items handed out and not ended.", ["namespace", "name"])
ATTEMPTS = Counter(
    "postroad_attempted_recipients_total",
    "Recipients that a transmission was attempted for.",
    ["namespace", "name", "outcome"],  # outcome: delivered, failed, deferred
)
UNLOGGED_ATTEMPTS = Counter(
    "postroad_unlogged_attempts_total",
    "Recipients attempted that the attempt log could not be written about.",
    ["namespace", "name"],
)
STS_FETCHES = Counter(
    "postroad_sts_policy_fetches_total",
    "Policies of MTA-STS that were looked for at a domain's web server.",
    ["result"],  # result: fetched, failed
)
REPORTS = Counter(
    "postroad_reports_total",
    "Reports to senders about what became of their mail.",
    ["namespace", "name", "result"],
    # result: queued, shortened (queued without the mail), repeated (it had been queued before a
    # crash), limited (its address has had too many), impossible (the sender's address is
    # malformed), suppressed (it is not mailed)
)
SUPPRESSED = Counter(
    "postroad_suppressed_recipients_total",
    "Recipients that were not mailed, because they are on the suppression list.",
    ["namespace", "name"],
)
SIGNED = Counter("postroad_signed_mails_total", "Transmissions that were signed.")
UNSIGNED = Counter(
    "postroad_unsigned_mails_total",
    "Transmissions of mail that could not be signed; it was sent as it is.",
    ["reason"],  # reason: header (of several authors, malformed, too long), size
)
PLAIN_RETURN_PATHS = Counter(
    "postroad_plain_return_paths_total",
    "Transmissions with the plain reverse-path, which was to name the recipient and could not.",
)
DELIVERY_REFUSED = Gauge(
    "postroad_delivery_file_refused",
    "1 while the file of delivery, or one that it names, cannot be used as it is now.",
)
DELIVERY_READS = Counter(
    "postroad_delivery_file_reads_total",
    "Changes of the file of delivery, or of one that it names, that a process read.",
    ["result"],  # result: used, refused (what was read before stays)
)
INTAKE_REFUSED = Gauge(
    "postroad_intake_file_refused",
    "1 while the file of intake, or one that it names, cannot be used as it is now.",
)
INTAKE_READS = Counter(
    "postroad_intake_file_reads_total",
    "Changes of the file of intake, or of one that it names, that a process read.",
    ["result"],  # result: used, refused (what was read before stays)
)
DELIVERY_SECONDS = Histogram(
    "postroad_delivery_duration_seconds",
    "Time of one transmission.",
    ["namespace", "name"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600),  # SMTP waits for minutes
)
RECEIVED = Counter(
    "postroad_received_mails_total",
    "Mails offered to the intake.",
    ["namespace", "name", "reply"],  # reply: accepted, transient, permanent
)
RETURNED = Counter(
    "postroad_returned_reports_total",
    "Reports about mail that came back to signed reverse-paths, and complaints, by recipient.",
    ["namespace", "name", "result", "reason"],
    # result: bounce (reason: its class), complaint (reason: abuse, opt-out, other), delay,
    # delivery, automatic (by a program), other (not understood), unmatched (names no recipient)
)
FILTERED = Counter(
    "postroad_filtered_mails_total",
    "Mails that a filter of the intake looked at.",
    # verdict: accept, defer, reject, discard, hold, error (it failed: see onError)
    ["namespace", "name", "filter", "verdict"],
)
OUTBOX_MAILS = Gauge(
    "postroad_outbox_mails",
    "Mails that wait in the outbox of this intake, dead letters apart.",
    ["namespace", "name"],
)
OUTBOX_BYTES = Gauge(
    "postroad_outbox_bytes", "Octets of the contents of these mails.", ["namespace", "name"]
)
OUTBOX_OLDEST = Gauge(
    "postroad_outbox_oldest_seconds",
    "Time since the acceptance of the mail that has waited in the outbox for longest.",
    ["namespace", "name"],
)
OUTBOX_RESULTS = Counter(
    "postroad_outbox_results_total",
    "Mails of the outbox of an intake, by what became of them.",
    ["namespace", "name", "result"],
    # result: kept, forwarded, refused (the queue never takes it: a dead letter of the outbox), full
)
REFUSED_CLIENTS = Counter(
    "postroad_refused_clients_total",
    "Client connections on which the intake refused something, once for each reason.",
    ["namespace", "name", "reason"],
    # reason: sessions, connections, mails, relay, login, early, http, errors, slow, idle
)
LOGINS = Counter(
    "postroad_intake_logins_total",
    "Logins of clients of the intake.",
    ["mechanism", "result"],  # result: accepted, refused, unavailable
)
SESSIONS = Gauge("postroad_intake_sessions", "SMTP sessions that are open.")
FAILED_HANDSHAKES = Counter(
    "postroad_failed_tls_handshakes_total",
    "TLS handshakes of clients of the intake that failed.",
    ["namespace", "name", "reason"],  # reason: refused (by either side), slow, left
)
LEADER = SampledGauge(
    "postroad_operator_leader",
    "1 in the operator that holds the Lease, 0 in one that stands by.",
    [],
)
RECONCILES = Counter(
    "postroad_reconciles_total",
    "Reconciles of resources by the operator.",
    ["kind", "result"],  # kind: MailQueue, QueueCluster; result: done, conflict, error
)
RECONCILE_FAILING_SINCE = SampledGauge(
    "postroad_reconcile_failing_since_timestamp_seconds",
    "Since when reconciles of a resource fail or lack answers of the API server (since 1970).",
    ["kind", "namespace", "name"],
)
UNWRITTEN_STATUSES = Counter(
    "postroad_unwritten_statuses_total",
    "Statuses that report a failing reconcile and that the API server did not take.",
    ["kind"],
)
RECONCILE_SECONDS = Histogram(
    "postroad_reconcile_duration_seconds", "Time of one reconcile of the operator.", ["kind"]
)
SERVER_ERRORS = Counter(
    "postroad_server_errors_total",
    "Errors of servers that the operator met.",
    ["server", "error"],
    # server: rabbitmq, cassandra, s3, kubernetes; error: its name, as in reasons of conditions
)
KUBERNETES_REQUESTS = Counter(
    "postroad_kubernetes_requests_total",
    "Requests of the operator to the API server, watches included.",
    ["method", "resource"],  # resource: its plural, with a subresource: mailqueues/status
)
REPAIRS = Counter(
    "postroad_repairs_total",
    "What another process had changed or deleted and the operator made as declared again.",
    ["object"],  # object: child, queues, bucket, tables, options, user
)
WORKQUEUE_DEPTH = SampledGauge(
    "postroad_workqueue_depth",
    "Resources that wait for a reconcile.",
    ["urgency"],  # urgency: change, child, routine
)
WORKQUEUE_OLDEST = SampledGauge(
    "postroad_workqueue_oldest_seconds",
    "For how long the resource waits that has waited longest for a reconcile.",
    [],
)
RESOURCE_CONDITIONS = SampledGauge(
    "postroad_resource_condition",
    "1 for each condition of a resource, with its status.",
    ["kind", "namespace", "name", "type", "status"],
)
EVENTS = Counter(
    "postroad_events_total",
    "Events for programs outside, by what became of them; each delay is one more.",
    ["namespace", "name", "stream", "result"],  # result: sent, delayed, refused, full
)
QUEUE_MAILS = SampledGauge(
    "postroad_queue_mails",
    "Mails of a queue when the operator last counted them.",
    ["namespace", "name", "state"],  # state: waiting, delayed, held, dead; each mail is in one
)
QUEUE_DUE = SampledGauge(
    "postroad_queue_due_mails",
    "Mails of a queue that can be delivered now, when the operator last counted them: to scale by.",
    ["namespace", "name"],
)
QUEUE_OLDEST_DUE = SampledGauge(
    "postroad_queue_oldest_due_seconds",
    "Time for which a mail of a queue has been due; none where the operator would have to read too "
    "much to find it.",
    ["namespace", "name"],
)
PIPELINE_SUCCESSES = SampledGauge(
    "postroad_pipeline_job_last_success_timestamp_seconds",
    "When the last run of a job of a queue's pipeline that succeeded ended, since 1970.",
    ["namespace", "name", "job_name"],
)
PIPELINE_LAGS = SampledGauge(
    "postroad_pipeline_job_lag_seconds",
    "How far the job was behind when that run ended.",
    ["namespace", "name", "job_name"],
)
PIPELINE_FINDINGS = SampledGauge(
    "postroad_pipeline_job_findings", "What that run found.", ["namespace", "name", "job_name"]
)
FAILED_TASKS = SampledGauge(
    "postroad_scheduled_task_failed",
    "1 if the last run of a MailQueueTask by a schedule failed, 0 if it succeeded.",
    ["namespace", "name"],
)
BUILD = Gauge("postroad_build_info", "1, with the release of this process.", ["version"])
BUILD.labels(version("postroad")).set(1)

FROM_ZERO = (LATE, MAINTENANCE_ERRORS, UNARCHIVED)
"""Counters of which the first event deserves an alert: one that begins at 1 has not increased."""


def end_samples() -> None:
    """Give no more samples of resources."""
    for each in (
        WORKQUEUE_DEPTH,
        WORKQUEUE_OLDEST,
        RESOURCE_CONDITIONS,
        QUEUE_MAILS,
        QUEUE_DUE,
        QUEUE_OLDEST_DUE,
        PIPELINE_SUCCESSES,
        PIPELINE_LAGS,
        PIPELINE_FINDINGS,
        FAILED_TASKS,
        RECONCILE_FAILING_SINCE,
    ):
        each.samples = tuple
