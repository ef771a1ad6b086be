"""Builds the Job of a MailQueueTask, or its CronJob: pure.

Its pod runs `postroad task` in the queue's image, with the queue's settings, credentials and
placement, and no right in Kubernetes. A first container counts the selected mails. Each writes what
it counted as its termination message, which the operator reads with the pod."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from postroad.controller.kubernetes import api
from postroad.controller.kubernetes.drift import hash_of, with_hash
from postroad.controller.pods.manifests import INTAKE, WORKER, Child, child_of, labels
from postroad.controller.pods.pipeline_children import PIPELINE as PIPELINE_POD
from postroad.controller.pods.pipeline_children import JobCommand, run_template
from postroad.controller.pods.pods import (
    JOB_OF_POD,
    SUMMARY,
    command_container,
    command_pod,
    cron_job_spec,
    job_spec,
    placed,
    pod_template,
    verbatim,
)
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.parts import check_schedule
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.controller.spec.task import COUNTED, EXPORT, ON_SELECTED, PIPELINE, Task
from postroad.domain.queues.documents import selector_value
from postroad.domain.queues.selection import Selector
from postroad.errors import InvalidInput

TASK, COUNT = "task", "count"
"""Component and containers: the pod and what carries the operation out; what counts before."""

RETRIES = 6


def job_name(task: Task) -> str:
    """Return the name of what carries out a task, which no other task has had."""
    return f"{task.key.name}-{hash_of(task.uid)[:8]}"


def job_of(task: Task, queue: Queue, context: PodContext) -> Child:
    """Return the Job of a task, or its CronJob. Raises: InvalidInput, which names the field."""
    tags = {api.MANAGED_BY: "postroad", api.TASK: task.key.name}
    template = _template(task, queue, context)
    run = job_spec(template, _own(template["spec"]), retries=RETRIES)
    kind, schedule = api.JOB, task.spec.schedule
    if schedule is not None:
        check_schedule(schedule, "spec.schedule")
        kind = api.CRON_JOB
        run = {**cron_job_spec(schedule, run, tags), "suspend": task.spec.paused}
    notes = {api.BEGUN_FOR: queue.uid}
    _, job = child_of(task.key, task.uid, kind, job_name(task), tags, {"spec": run}, notes)
    return kind, with_hash(job)


def _own(pod: Mapping[str, Any]) -> list[str]:
    """Return the names of the own containers."""
    names = [each["name"] for each in (*pod.get("initContainers", ()), *pod["containers"])]
    return [each for each in names if each in (COUNT, TASK, PIPELINE_POD)]


def _template(task: Task, queue: Queue, context: PodContext) -> dict[str, Any]:
    spec, tags = task.spec, {api.TASK: task.key.name}
    if spec.operation == PIPELINE:
        job = str(spec.job).lower()
        if queue.spec.pipeline is None or job not in queue.spec.pipeline.scheduled:
            raise InvalidInput(f"spec.pipeline.{job} of the MailQueue is missing: declare the job")
        command = JobCommand.of_job(queue.spec.pipeline, job)
        return run_template(queue, context, command, tags)
    if spec.operation == EXPORT:
        parts = [
            queue.bucket(context.cluster),
            str(queue.name),
            "exports",
            spec.folder,
            "$(POD_NAME)",
        ]
        place = "s3a://" + "/".join(each for each in parts if each is not None)
        command = JobCommand((PIPELINE_POD, "export", place))
        template = run_template(queue, context, command, tags)
        for container in template["spec"]["containers"]:
            if container["name"] == PIPELINE_POD:
                field = {"fieldRef": {"fieldPath": "metadata.name"}}
                container["env"].append({"name": "POD_NAME", "valueFrom": field})
        return template
    return _of_the_queue(task, queue, context)


def _of_the_queue(task: Task, queue: Queue, context: PodContext) -> dict[str, Any]:
    """Return the template of pods that run the operation as a command of the queue's image."""
    tags = {**labels(queue, TASK), api.MANAGED_BY: "postroad", api.TASK: task.key.name}
    template = pod_template(queue, context, TASK, tags, {})
    for component, declared in ((WORKER, queue.spec.workers), (INTAKE, queue.spec.intake)):
        if declared is not None:
            field = f"spec.{'workers' if component == WORKER else 'intake'}"
            template = placed(template, _renamed(declared, component), field)
            break
    (found,) = (each for each in template["spec"]["containers"] if each["name"] == TASK)
    container = {
        **command_container(found),
        "name": TASK,
        "args": [TASK, task.spec.operation.lower(), "--summary", SUMMARY],
        "terminationMessagePath": SUMMARY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if (selector := _selector(task)) is not None:
        text = json.dumps(selector_value(selector), sort_keys=True)
        value = {"name": "POSTROAD_TASK_SELECTOR", "value": verbatim(text)}
        container["env"] = [*container["env"], value]
    if task.spec.schedule is not None:
        label = {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_OF_POD}']"}}
        of_job = {"name": "POSTROAD_TASK_JOB", "valueFrom": label}
        container["env"] = [*container["env"], of_job]
    counting = copy.deepcopy(container) | {"name": COUNT}
    counting["args"] = [*container["args"], "--count"]
    spec = {**command_pod(template["spec"]), "containers": [container]}
    if task.spec.dry_run:
        spec["containers"] = [{**counting, "name": TASK}]
    elif task.spec.operation in COUNTED:
        spec["initContainers"] = [counting]
    return {"metadata": template["metadata"], "spec": spec}


def _renamed(declared: Workers | Intake, component: str) -> Workers | Intake:
    """Return what the spec declares of pods, for a pod with this one container alone: a Job whose
    pod has a sidecar would never end."""
    template: Mapping[str, Any] = declared.template
    spec = template.get("spec") or {}
    own = [each for each in spec.get("containers") or () if each.get("name") == component]
    alone = {"containers": [{**each, "name": TASK} for each in own], "initContainers": []}
    return declared.model_copy(update={"template": {**template, "spec": {**spec, **alone}}})


def _selector(task: Task) -> Selector | None:
    """Return the mails of the operation; None where it is for none, or its queue knows them."""
    before = task.accepted_before
    if task.spec.selector is not None:
        return task.spec.selector.selector(before if task.spec.operation in ON_SELECTED else None)
    if task.spec.operation in COUNTED:
        return Selector(everything=True, accepted_before=before)
    return None
