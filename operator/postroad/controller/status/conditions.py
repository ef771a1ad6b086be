"""Turns the findings of reconciles into Kubernetes conditions that kstatus understands.

A *finding* is the result of one reconcile; a condition adds the instant of its last change. Ready
is always there; Reconciling and Stalled only while they are true, and never both. Reconciling: the
operator tries again. Stalled: only a change of a resource, a Secret or a server can help."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from postroad.errors import CredentialsRefused, PostroadError

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
    """Return the message on one line and no longer than `longest` characters."""
    line = " ".join(message.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def timestamp(moment: datetime) -> str:
    """Return an instant as Kubernetes writes it.

    >>> timestamp(datetime(2026, 1, 1, 10, tzinfo=UTC))
    '2026-01-01T10:00:00Z'
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
