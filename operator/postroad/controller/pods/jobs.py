"""Builds what Jobs and CronJobs of a MailQueue have beside their pods: pure."""

from collections.abc import Mapping, Sequence
from typing import Any

JOB_OF_POD = "batch.kubernetes.io/job-name"
"""Label of a pod, with the name of its Job."""

SUMMARY = "/dev/termination-log"
"""File of a container, from which the operator reads the result of a run."""

MAX_RUN_SECONDS = 24 * 3600
"""A run that hangs would keep all later ones away."""

STARTING_DEADLINE_SECONDS = 900
"""Without one, a CronJob that missed a hundred runs starts none any more."""

MENDED_FIRST = [1, 2]
"""Exit codes of a run that fails again until an administrator acts."""


def job_spec(
    template: Mapping[str, Any], containers: Sequence[str], *, retries: int
) -> dict[str, Any]:
    """Return the spec of a Job. `containers`: those whose exit codes end it, for a sidecar that a
    mesh adds has codes of its own. A pod that is evicted counts as no failure."""
    codes = {"operator": "In", "values": MENDED_FIRST}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "backoffLimit": retries,
        "activeDeadlineSeconds": MAX_RUN_SECONDS,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [disrupted]},
                *(
                    {"action": "FailJob", "onExitCodes": {"containerName": name, **codes}}
                    for name in containers
                ),
            ]
        },
        "template": template,
    }


def cron_job_spec(schedule: str, job: Mapping[str, Any], tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a CronJob, by whose schedule Jobs with these labels are made."""
    return {
        "schedule": schedule,
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": STARTING_DEADLINE_SECONDS,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {"labels": tags}, "spec": job},
    }
