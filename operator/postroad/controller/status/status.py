"""Composes a resource's status from the findings of a reconcile: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.status.conditions import (
    BLOBS_READY,
    BROKER_READY,
    CONFIGURATION_ACCEPTED,
    INTAKE_READY,
    PAUSED,
    PAUSED_BY_USER,
    PODS_NOT_READY,
    READY,
    RECONCILING,
    REWRITTEN,
    STALLED,
    VIEW_READY,
    WORKERS_READY,
    Finding,
    Truth,
    conclude,
    conditions,
    timestamp,
)
from postroad.errors import ResourceConflict

if TYPE_CHECKING:
    from postroad.controller.reads import ChildVersion

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


def paused_report(before: Mapping[str, Any], spec: Mapping[str, Any]) -> Report:
    """Return the report about a paused resource: Paused beside its conditions from before. Ready is
    Unknown from a change of the spec on until the next reconcile."""
    known: Sequence[Mapping[str, Any]] = before.get("conditions") or []
    message = "spec.paused is true: the operator changes nothing until it is false"
    findings = [Finding(PAUSED, Truth.TRUE, PAUSED_BY_USER, message)]
    unknown_before = any(
        each["type"] == READY and each["reason"] == PAUSED_BY_USER for each in known
    )
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
