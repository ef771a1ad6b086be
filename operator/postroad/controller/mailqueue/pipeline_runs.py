"""Results of the jobs of a pipeline: fields of the status of a MailQueue, and a finding.

A run writes a summary in the end, which Kubernetes keeps with its pod; one that failed leaves the
end of its log there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from postroad.controller.kubernetes.api import (
    COMPONENT,
    CRON_JOB,
    INSTANCE,
    JOB,
    MANAGED_BY,
    PIPELINE_JOB,
    POD,
)
from postroad.controller.mailqueue.plan import WorkloadsPlan
from postroad.controller.pods.pipeline_children import PIPELINE, job_name
from postroad.controller.pods.pods import JOB_OF_POD
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Finding, Report, advice, good, shortened
from postroad.domain.values.instants import format_duration
from postroad.ports.kubernetes import Kubernetes, Object

JOB_FAILED = "JobFailed"
MAX_NUMBER = 10**12
MAX_RESULT = 300
_ERROR = "postroad: "
"""Prefix that the line of an error begins with."""


async def report_pipeline(
    api: Kubernetes, plan: WorkloadsPlan, now: Mapping[tuple[str, str], Object]
) -> Report:
    """Report the jobs, and whether they run. Raises: KubernetesError."""
    queue, spec = plan.queue, plan.queue.spec.pipeline
    if spec is None:
        return Report(fields={"pipeline": None})
    declared = {job: now.get((CRON_JOB.name, job_name(queue, job))) for job in spec.scheduled}
    namespace, instance = queue.name.namespace, f"{INSTANCE}={queue.name.name}"
    labels = f"{MANAGED_BY}=postroad,{instance},{COMPONENT}={PIPELINE}"
    runs, pods = await api.list(JOB, namespace, labels), await api.list(POD, namespace, labels)
    before = {each["job"]: each for each in plan.jobs}
    entries = [
        job_status(
            before.get(job, {"job": job}),
            cron_job,
            [each for each in runs if each["metadata"]["labels"].get(PIPELINE_JOB) == job],
            pods,
        )
        for job, cron_job in declared.items()
    ]
    return Report([finding_of(entries)], {"pipeline": entries or None})


def finding_of(entries: Sequence[Mapping[str, Any]]) -> Finding:
    """Return whether the last run of each job succeeded."""
    failures = [f"{each['job']} failed: {each['error']}" for each in entries if "error" in each]
    if failures:
        return advice(condition.PIPELINE_READY, JOB_FAILED, "; ".join(failures))
    names = ", ".join(each["job"] for each in entries)
    return good(condition.PIPELINE_READY, f"scheduled: {names}" if names else "no job is scheduled")


def refused(finding: Finding) -> Finding:
    """Return why the jobs are not as declared. Mail does not wait for them."""
    return replace(finding, condition=condition.PIPELINE_READY, advisory=True)


def job_status(
    before: Mapping[str, Any],
    cron_job: Mapping[str, Any] | None,
    runs: Sequence[Object],
    pods: Sequence[Object],
) -> dict[str, Any]:
    """Return what the status has about a job: of its last run that succeeded, and why a later one
    failed."""
    after = {name: value for name, value in before.items() if name != "error"}
    last = ((cron_job or {}).get("status") or {}).get("lastSuccessfulTime")
    if last is not None:
        after["lastSuccess"] = last
    ended = [each for each in runs if outcome_of(each) is not None]
    ended.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")))
    for run in ended[-1:]:
        words = _last_words(run, pods)
        if outcome_of(run) == "Failed":
            after["error"] = error_of(run, words)
        elif words is not None:
            after |= summary(words)
    if not ended and "error" in before:
        after["error"] = before["error"]
    return after


def summary(text: str) -> dict[str, Any]:
    """Return the fields that a run's summary gives; none for a text that is no summary."""
    try:
        found = json.loads(text)
        counts = {str(name): int(count) for name, count in found["counts"].items()}
        result = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to do"
        fields: dict[str, Any] = {"result": shortened(result, MAX_RESULT)}
        if found.get("lag_seconds") is not None:
            fields["lag"] = format_duration(timedelta(seconds=_natural(found["lag_seconds"])))
        if found.get("findings") is not None:
            fields["findings"] = _natural(found["findings"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}
    return fields


def _natural(number: Any) -> int:
    """Return a number that the CRD takes. Raises: ValueError; the text is a pod's."""
    if not 0 <= int(number) <= MAX_NUMBER:
        raise ValueError(f"{number} is no number of findings or seconds")
    return int(number)


def outcome_of(run: Mapping[str, Any]) -> str | None:
    """Return Complete or Failed; None while a run is under way."""
    for each in (run.get("status") or {}).get("conditions") or []:
        if each["type"] in ("Complete", "Failed") and each["status"] == "True":
            return str(each["type"])
    return None


def _last_words(run: Mapping[str, Any], pods: Sequence[Object]) -> str | None:
    """Return what the container of the newest pod of a run left."""
    name = run["metadata"]["name"]
    own = [each for each in pods if each["metadata"]["labels"].get(JOB_OF_POD) == name]
    own.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")))
    for pod in own[-1:]:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            if container["name"] == PIPELINE:
                ended = (container.get("state") or {}).get("terminated") or {}
                return str(ended.get("message", ""))
    return None


def error_of(run: Mapping[str, Any], words: str | None) -> str:
    """Return the line in which the run names its error; else why Kubernetes ended it."""
    lines = [each for each in (words or "").splitlines() if each.startswith(_ERROR)]
    if lines:
        return shortened(lines[-1].removeprefix(_ERROR), MAX_RESULT)
    for each in (run.get("status") or {}).get("conditions") or []:
        if each["type"] == "Failed":
            return shortened(str(each.get("message") or each.get("reason")), MAX_RESULT)
    return "see the log of its pod"
