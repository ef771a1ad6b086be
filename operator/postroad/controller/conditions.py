"""What is known about a resource, as Kubernetes conditions that kstatus understands.

A *finding* says what one reconcile saw; conditions are findings over time, with the instant of
their last change. Ready is always there; Reconciling and Stalled only while they are true, and
never both: Reconciling says "wait", Stalled says "nothing will change until somebody does".
"""

from __future__ import annotations

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
PIPELINE_READY, DURABLE = "PipelineReady", "Durable"
RELAY_RESTRICTED = "RelayRestricted"

PENDING = "Pending"
"""The reason while nothing was found yet, neither good nor bad."""

PODS_NOT_READY = "PodsNotReady"
"""The reason while a Deployment has not all the ready pods that it should have."""

PAUSED_BY_USER = "PausedByUser"
"""The reason while `spec.paused` keeps the operator from doing anything."""

LONGEST_MESSAGE = 1024
"""Characters of a condition's message; the CRD allows twice as many."""


class Truth(StrEnum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one reconcile saw of one aspect. `waits` says whether it can become good without anybody
    changing anything; it means nothing when the aspect is good. An `advisory` finding does not keep
    the resource from being ready."""

    aspect: str
    truth: Truth
    reason: str
    message: str
    waits: bool = True
    advisory: bool = False

    @property
    def is_good(self) -> bool:
        return self.truth is Truth.TRUE or self.advisory


def good(aspect: str, message: str, reason: str = "AsDeclared") -> Finding:
    """All is as it should be."""
    return Finding(aspect, Truth.TRUE, reason, message)


def bad(aspect: str, reason: str, message: str, *, waits: bool) -> Finding:
    """Something is not as it should be."""
    return Finding(aspect, Truth.FALSE, reason, message, waits)


def advice(aspect: str, reason: str, message: str) -> Finding:
    """Something that people should know, and that keeps nothing from being ready."""
    return Finding(aspect, Truth.FALSE, reason, message, advisory=True)


def unknown(aspect: str, reason: str, message: str) -> Finding:
    """It cannot be said yet."""
    return Finding(aspect, Truth.UNKNOWN, reason, message)


def failed(aspect: str, error: PostroadError) -> Finding:
    """An aspect whose server said no. The reason is the error's name (`BrokerUnavailable`)."""
    message = error.explain()
    if isinstance(error, CredentialsRefused):
        message = f"{message}; it is tried again when the Secret changes, and from time to time"
    return bad(aspect, type(error).__name__, message, waits=error.transient)


def conclude(findings: Sequence[Finding]) -> list[Finding]:
    """Add Ready, and Stalled or Reconciling, to the findings about the aspects."""
    errors = [each for each in findings if not each.is_good]
    if not errors:
        return [good(READY, "the resource is as declared"), *findings]
    stuck = [each for each in errors if not each.waits]
    told = stuck or [each for each in errors if each.truth is Truth.FALSE] or errors
    message = "; ".join(dict.fromkeys(each.message for each in told))
    reason = told[0].reason
    truth = Truth.UNKNOWN if reason == PENDING else Truth.FALSE
    return [
        Finding(READY, truth, reason, message),
        *findings,
        Finding(STALLED if stuck else RECONCILING, Truth.TRUE, reason, message),
    ]


def conditions(
    before: Iterable[Mapping[str, Any]],
    findings: Iterable[Finding],
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return the conditions after the findings; `lastTransitionTime` is kept where the status of a
    condition stays. Types without a finding go away."""
    known = {each["type"]: each for each in before}
    result = []
    for finding in findings:
        previous = known.get(finding.aspect, {})
        stays = previous.get("status") == finding.truth.value
        result.append(
            {
                "type": finding.aspect,
                "status": finding.truth.value,
                "observedGeneration": generation,
                "lastTransitionTime": (previous["lastTransitionTime"] if stays else timestamp(now)),
                "reason": finding.reason,
                "message": shortened(finding.message),
            }
        )
    return result


def shortened(message: str, longest: int = LONGEST_MESSAGE) -> str:
    """Return the message on one line and no longer than `longest` characters."""
    line = " ".join(message.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def timestamp(moment: datetime) -> str:
    """Return an instant as Kubernetes writes it.

    >>> timestamp(datetime(2026, 1, 1, 10, tzinfo=UTC))
    '2026-01-01T10:00:00Z'
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
