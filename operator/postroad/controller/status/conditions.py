"""Turns the errors of a reconcile into findings, and these into Kubernetes conditions that kstatus
understands, and a status.

A *finding* is the result of one reconcile: a server's error is one, not a failure of the reconcile,
so that the work behind the other conditions goes on. A condition adds the instant of its last
change. Ready is always there; Reconciling and Stalled only while they are true, never both: the
operator tries again. Stalled: only a change of a resource, a Secret or a server can help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from postroad.controller.kubernetes.api import log_unexpected
from postroad.controller.kubernetes.drift import hash_of
from postroad.domain.values.text import escaped
from postroad.errors import (
    BlobsUnavailable,
    BrokerUnavailable,
    CredentialsRefused,
    InvalidInput,
    KubernetesConflict,
    KubernetesError,
    KubernetesUnavailable,
    LeadershipLost,
    PostroadError,
    ResourceConflict,
    ServerError,
    ViewUnavailable,
)
from postroad.telemetry import metrics

if TYPE_CHECKING:
    from postroad.controller.reads import ChildVersion

READY, RECONCILING, STALLED, PAUSED = "Ready", "Reconciling", "Stalled", "Paused"
CONFIGURATION_ACCEPTED = "ConfigurationAccepted"
BROKER_READY, VIEW_READY, BLOBS_READY = "BrokerReady", "ViewReady", "BlobsReady"
WORKERS_READY, INTAKE_READY = "WorkersReady", "IntakeReady"
CONSOLE_READY = "ConsoleReady"
PIPELINE_READY, DURABLE = "PipelineReady", "Durable"
VERSIONS_TRIED = "VersionsTried"
RELAY_RESTRICTED = "RelayRestricted"
UP_TO_DATE = "UpToDate"
COMPLETE, SCHEDULED = "Complete", "Scheduled"

PENDING = "Pending"
"""The reason until the first reconcile has a result."""

RUNNING = "Running"
"""The reason while a MailQueueTask is carried out."""

PODS_NOT_READY = "PodsNotReady"
"""The reason while a Deployment has fewer ready pods than replicas."""

REWRITTEN = "Rewritten"
"""The reason while another process keeps a child from what was applied."""

PAUSED_BY_USER = "PausedByUser"
"""The reason while `spec.paused` is true."""

MAX_MESSAGE = 1024
"""Characters of a condition's message; the CRD allows twice as many."""


class Truth(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one reconcile for one condition. `retryable`: a bad one can become good without
    a change of a resource, a Secret or a server. `advisory`: Ready does not depend on it."""

    condition: str
    truth: Truth
    reason: str
    message: str
    retryable: bool = True
    advisory: bool = False

    @property
    def is_good(self) -> bool:
        return self.truth is Truth.TRUE or self.advisory


def good(condition: str, message: str, reason: str = "AsDeclared") -> Finding:
    """The condition is true."""
    return Finding(condition, Truth.TRUE, reason, message)


def bad(condition: str, reason: str, message: str, *, retryable: bool) -> Finding:
    """The condition is false, and Ready with it."""
    return Finding(condition, Truth.FALSE, reason, message, retryable)


def advice(condition: str, reason: str, message: str) -> Finding:
    """The condition is false, and Ready does not depend on it."""
    return Finding(condition, Truth.FALSE, reason, message, advisory=True)


def unknown(condition: str, reason: str, message: str) -> Finding:
    """The reconcile could not determine the condition."""
    return Finding(condition, Truth.UNKNOWN, reason, message)


def failed(condition: str, error: PostroadError) -> Finding:
    """The condition is false because of an error; its name is the reason (`BrokerUnavailable`)."""
    message = error.explain()
    if isinstance(error, CredentialsRefused):
        message = f"{message}; the operator tries again when the Secret changes, and regularly"
    return bad(condition, type(error).__name__, message, retryable=error.transient)


def conclude(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with Ready, and with Stalled or Reconciling while one of them holds. A
    finding about Ready itself is one about the whole resource."""
    parts = [each for each in findings if each.condition != READY]
    errors = [each for each in findings if not each.is_good]
    if not errors:
        return [good(READY, "the resource is as declared"), *parts]
    stuck = [each for each in errors if not each.retryable]
    shown = stuck or [each for each in errors if each.truth is Truth.FALSE] or errors
    message = "; ".join(dict.fromkeys(each.message for each in shown))
    reason = shown[0].reason
    truth = Truth.UNKNOWN if reason in (PENDING, PAUSED_BY_USER) else Truth.FALSE
    return [
        Finding(READY, truth, reason, message),
        *parts,
        Finding(STALLED if stuck else RECONCILING, Truth.TRUE, reason, message),
    ]


def conditions(
    before: Iterable[Mapping[str, Any]],
    findings: Iterable[Finding],
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return a condition for each finding, its `lastTransitionTime` of `before` if unchanged."""
    known = {each["type"]: each for each in before}
    result = []
    for finding in findings:
        previous = known.get(finding.condition, {})
        stays = previous.get("status") == finding.truth.value
        result.append(
            {
                "type": finding.condition,
                "status": finding.truth.value,
                "observedGeneration": generation,
                "lastTransitionTime": (previous["lastTransitionTime"] if stays else timestamp(now)),
                "reason": finding.reason,
                "message": shortened(finding.message),
            }
        )
    return result


def shortened(message: str, longest: int = MAX_MESSAGE) -> str:
    """Return the message on one line and no longer than `longest` characters, with escapes for what
    is not printable: texts of pods and servers hold anything."""
    line = escaped(" ".join(message.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def timestamp(moment: datetime) -> str:
    """Return an instant as Kubernetes writes it.

    >>> timestamp(datetime(2026, 1, 1, 10, tzinfo=UTC))
    '2026-01-01T10:00:00Z'
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


SERVER_SECONDS = 30.0
"""For one condition; the operator reports a server that takes longer, and tries again later."""

SERVERS = {
    BROKER_READY: "rabbitmq",
    VIEW_READY: "cassandra",
    CONFIGURATION_ACCEPTED: "cassandra",
    BLOBS_READY: "s3",
}
"""Server that the work behind a condition asks."""

UNAVAILABLE: Mapping[str, type[ServerError]] = {
    BROKER_READY: BrokerUnavailable,
    VIEW_READY: ViewUnavailable,
    BLOBS_READY: BlobsUnavailable,
}
TOO_SLOW = "TooSlow"


@dataclass(slots=True)
class ApiErrors:
    """Actions of a reconcile where the API server does not answer, or an object has changed since
    it was read: it ends and is repeated, unless these errors last (`reported`); then they are
    findings too. `met`: there was one."""

    reported: bool
    met: bool = False


_api_errors: ContextVar[ApiErrors | None] = ContextVar("api_errors", default=None)


@contextmanager
def api_errors(*, reported: bool) -> Iterator[ApiErrors]:
    """Let the attempts of the block, also those of tasks that begin there, report such errors."""
    errors = ApiErrors(reported)
    token = _api_errors.set(errors)
    try:
        yield errors
    finally:
        _api_errors.reset(token)


def ends_reconcile(error: Exception) -> bool:
    """True if an error ends the reconcile, to be repeated, instead of being a finding."""
    errors = _api_errors.get()
    if not isinstance(error, (KubernetesUnavailable, KubernetesConflict)):
        return isinstance(error, LeadershipLost)
    if errors is not None:
        errors.met = True
    return errors is None or not errors.reported


@dataclass(slots=True)
class Attempt:
    """The finding of a block of work."""

    finding: Finding


@asynccontextmanager
async def attempt(condition: str, seconds: float = SERVER_SECONDS) -> AsyncIterator[Attempt]:
    """Yield what gets the finding of the block. An error ends the block, and is the finding.
    Raises: KubernetesUnavailable, KubernetesConflict, after which the reconcile is repeated, unless
    these last; LeadershipLost, after which another operator repeats it."""
    attempted = Attempt(good(condition, "done"))
    try:
        async with asyncio.timeout(seconds):
            yield attempted
    except TimeoutError as error:
        attempted.finding = silent(condition, f"no answer within {seconds:.0f} s")
        count_error(SERVERS.get(condition), error)
    except InvalidInput as error:
        attempted.finding = bad(condition, "InvalidSpec", error.explain(), retryable=False)
    except PostroadError as error:
        if ends_reconcile(error):
            raise
        attempted.finding = failed(condition, error)
        if isinstance(error, KubernetesError) and condition in SERVERS:
            # The API server refused: of the server behind the condition nothing is known.
            attempted.finding = replace(attempted.finding, truth=Truth.UNKNOWN)
        count_error(SERVERS.get(condition), error)
    except ValidationError as error:
        attempted.finding = bad(condition, "InvalidSpec", invalid_fields(error), retryable=False)
    except Exception as error:
        log_unexpected("reconcile failed unexpectedly", condition=condition)
        attempted.finding = unexpected(condition, error)


def unexpected(condition: str, error: Exception) -> Finding:
    """Return the finding about an error that the operator does not know."""
    message = f"{type(error).__name__}: see the operator's log"
    return bad(condition, "UnexpectedError", message, retryable=True)


def count_error(server: str | None, error: BaseException | None) -> None:
    """Count an error for metrics if a server is its cause: the API server, or this one."""
    if isinstance(error, KubernetesError):
        server = "kubernetes"
    if server is not None and isinstance(error, (ServerError, TimeoutError)):
        name = TOO_SLOW if isinstance(error, TimeoutError) else type(error).__name__
        metrics.SERVER_ERRORS.labels(server, name).inc()


def silent(condition: str, message: str) -> Finding:
    """Return the finding about work that took too long: that of a server which is away, so that the
    reason stays the same when the server is next found to be."""
    if condition in UNAVAILABLE:
        return failed(condition, UNAVAILABLE[condition](message))
    return bad(condition, TOO_SLOW, message, retryable=True)


def invalid_fields(error: ValidationError) -> str:
    """Return the errors of a spec, without its values."""
    return "; ".join(
        f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    )


Status = dict[str, Any]

CONFLICT = ResourceConflict.__name__
"""The reason of a condition about an object that another claimant has."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a reconcile, or of a step of it. `fields` replace those of the status; a None
    removes one. `repairs`: what had been changed or deleted, `switches`: which user of RabbitMQ
    follows which, each as a sentence for an Event. `applied`: the children that were written.
    `replaced`: the only conditions that the findings replace; None: all, and Ready follows from the
    findings."""

    findings: Sequence[Finding] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    repairs: Sequence[str] = ()
    switches: Sequence[str] = ()
    applied: Sequence[ChildVersion] = ()
    replaced: frozenset[str] | None = None

    def __add__(self, step: Report) -> Report:
        return Report(
            (*self.findings, *step.findings),
            {**self.fields, **step.fields},
            (*self.repairs, *step.repairs),
            (*self.switches, *step.switches),
            (*self.applied, *step.applied),
            self.replaced,
        )


def composed(before: Mapping[str, Any], report: Report, generation: int, now: datetime) -> Status:
    """Return the status after a report. Equal to `before` when nothing changed."""
    known: Sequence[Mapping[str, Any]] = before.get("conditions") or []
    kept, findings = [], report.findings
    if report.replaced is None:
        findings = conclude(findings)
    else:
        found = {each.condition: each for each in findings}
        findings, replaced = [*found.values()], report.replaced | found.keys()
        kept = [dict(each) for each in known if each["type"] not in replaced]
    after = {
        **before,
        "observedGeneration": generation,
        **report.fields,
        "conditions": [*kept, *conditions(known, findings, generation, now)],
    }
    return {name: value for name, value in after.items() if value is not None}


def condition_of(status: Mapping[str, Any], which: str) -> Mapping[str, Any]:
    """Return a condition of a status; an empty one where it has none."""
    return next((each for each in status.get("conditions") or () if each["type"] == which), {})


def paused_report(before: Mapping[str, Any], spec: Mapping[str, Any]) -> Report:
    """Return the report about a paused resource: Paused beside its conditions from before. Ready is
    Unknown from a change of the spec on until the next reconcile."""
    message = "spec.paused is true: the operator changes nothing until it is false"
    findings = [Finding(PAUSED, Truth.TRUE, PAUSED_BY_USER, message)]
    unknown_before = condition_of(before, READY).get("reason") == PAUSED_BY_USER
    if unknown_before or before.get("specHash") != hash_of_spec(spec):
        message = f"{message}; until then no change of the spec is carried out"
        findings.insert(0, Finding(READY, Truth.UNKNOWN, PAUSED_BY_USER, message))
    replaced = frozenset({RECONCILING, STALLED, *(each.condition for each in findings)})
    return Report(findings, replaced=replaced)


def changed_conditions(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Return the conditions that differ, each with `STATUS REASON` before and after."""
    was, now = (
        {each["type"]: f"{each['status']} {each['reason']}" for each in of.get("conditions") or []}
        for of in (before, after)
    )
    types = dict.fromkeys((*was, *now))
    return [
        (each, was.get(each, "absent"), now.get(each, "absent"))
        for each in types
        if was.get(each) != now.get(each)
    ]


def hash_of_spec(spec: Mapping[str, Any]) -> str:
    """Return a hash of a spec, equal for specs that differ in `paused` alone."""
    return hash_of({key: value for key, value in spec.items() if key != "paused"})


def instant(moment: datetime | None) -> str | None:
    return timestamp(moment) if moment is not None else None


def servers_are_good(status: Mapping[str, Any]) -> bool:
    """True if the last full reconcile found servers and configuration good."""
    truths = {each["type"]: each["status"] for each in status.get("conditions") or []}
    servers = (BROKER_READY, VIEW_READY, BLOBS_READY)
    return all(truths.get(each) == "True" for each in servers) and (
        truths.get(CONFIGURATION_ACCEPTED, "True") == "True"
    )


def wants_retry(status: Mapping[str, Any]) -> bool:
    """True if a full reconcile should be repeated soon. Pods that are not ready need none, because
    the watch of their Deployment has an event when they are; what a webhook rewrites is applied
    again in its own time."""
    return not servers_are_good(status) or any(
        each["type"] in (WORKERS_READY, INTAKE_READY)
        and each["status"] == "False"
        and each["reason"] not in (PODS_NOT_READY, REWRITTEN)
        for each in status.get("conditions") or []
    )
