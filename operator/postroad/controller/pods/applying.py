"""Applies the children of a resource, and deletes those that are no longer wanted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from postroad.controller.kubernetes.api import (
    CHILDREN,
    COMPONENT,
    INSTANCE,
    MANAGED_BY,
    ROLE_BINDING,
    Key,
    log_action,
    log_repair,
)
from postroad.controller.kubernetes.drift import ApplyResponses, repair_of, rewritten_fields
from postroad.controller.pods.manifests import (
    INTAKE,
    QUEUE,
    WORKER,
    Child,
    belongs_to,
    is_owned,
    owner_reference,
)
from postroad.controller.pods.pipeline_children import PIPELINE
from postroad.controller.reads import owner_of, version_of
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Finding, attempt
from postroad.errors import KubernetesRefused, NameTaken
from postroad.ports.kubernetes import Kind, Kubernetes, Object

CONDITION_OF = {
    QUEUE: QUEUE,  # what all pods share: a failure is reported of each component
    WORKER: condition.WORKERS_READY,
    INTAKE: condition.INTAKE_READY,
    PIPELINE: condition.PIPELINE_READY,
}
"""By component, in the order in which they are applied."""

EXECUTORS_NEED = (
    "spec.pipeline.executors needs pipelineExecutors=true of the operator's chart, or "
    "manifests/executors.yaml"
)

DECLARED_BY = {
    WORKER: "correct spec.workers.pod or spec.workers.template",
    INTAKE: "correct spec.intake.pod, spec.intake.template or spec.intake.service",
    PIPELINE: "correct spec.pipeline.pod or spec.pipeline.template",
}
"""Fields from which an invalid child comes, by component."""

_KINDS = {kind.name: kind for kind in CHILDREN}

ChildName = tuple[str, str]
"""Kind and name of a child."""

Found = dict[ChildName, Object]

IsOwn = Callable[[Object], bool]
"""True of a child that its resource owns, or takes over."""


@dataclass(frozen=True, slots=True)
class AppliedChild:
    """A child as it is now. `is_written`: it was another one before; `repair`: what another process
    had done to it, where the write undid that; `rewritten`: fields that another process keeps from
    the values that were applied."""

    object: Object
    is_written: bool = False
    repair: str = ""
    rewritten: str = ""

    @property
    def place(self) -> ChildName:
        """Its kind and name."""
        return self.object["kind"], self.object["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class WantedPart:
    """The children that a component is to have. `stays`: its Deployment, where a newer operator
    wants to replace pods, and may not yet; `failed`: why none could be decided."""

    component: str
    children: Sequence[Child] = ()
    stays: Mapping[ChildName, Object] = field(default_factory=dict)
    failed: Finding | None = None
    beside: Mapping[ChildName, Object] = field(default_factory=dict)
    """Children that are deleted later."""


@dataclass(frozen=True, slots=True)
class AppliedPart:
    """The children of a component as they are now. `waits`: a newer operator wants to replace pods,
    and may not yet; `failed`: why they are not as wanted."""

    component: str
    applied: Sequence[AppliedChild] = ()
    now: Mapping[ChildName, Object] = field(default_factory=dict)
    waits: bool = False
    failed: Finding | None = None


async def find_children(api: Kubernetes, queue: Queue, kinds: Sequence[Kind] = CHILDREN) -> Found:
    """Return the children that this MailQueue owns or takes over. The API server removes those of
    an earlier one."""
    is_own = partial(belongs_to, queue=queue)
    return await find_labelled(
        api, queue.name.namespace, f"{INSTANCE}={queue.name.name}", is_own, kinds
    )


async def find_labelled(
    api: Kubernetes, namespace: str, label: str, is_own: IsOwn, kinds: Sequence[Kind]
) -> Found:
    """Return the own children among those with a label."""
    labels = f"{MANAGED_BY}=postroad,{label}"
    lists = await asyncio.gather(*(api.list(kind, namespace, labels) for kind in kinds))
    return {
        (kind.name, each["metadata"]["name"]): each
        for kind, found in zip(kinds, lists, strict=True)
        for each in found
        if is_own(each)
    }


async def take_over(api: Kubernetes, queue: Queue, component: str, found: Found) -> None:
    """Make the MailQueue the owner of those children of a component that have none, so that they
    go with it also where they stay as they are for now. Raises: KubernetesError."""
    for place, child in _of_component(found, component).items():
        metadata = child["metadata"]
        if is_owned(child, queue.uid):
            continue
        owners = [*(metadata.get("ownerReferences") or []), owner_reference(queue.key, queue.uid)]
        change = {"resourceVersion": metadata["resourceVersion"], "ownerReferences": owners}
        at = _KINDS[place[0]], metadata["namespace"], metadata["name"]
        found[place] = await api.patch(*at, {"metadata": change}) or child
        log_action("took over a child", child=" ".join(place))


async def apply_parts(
    api: Kubernetes,
    queue: Queue,
    wanted: Sequence[WantedPart],
    found: Found,
    expected: Collection[ChildName],
    answers: ApplyResponses,
) -> list[AppliedPart]:
    """Apply the children, component by component, and delete those that are not wanted; of what all
    pods share, which is the first part, alone where that failed."""
    parts: list[AppliedPart] = []
    is_own = partial(belongs_to, queue=queue)
    for part in wanted:
        applied: list[AppliedChild] = []
        async with attempt(CONDITION_OF[part.component]) as attempted:
            try:
                async for each in apply_children(
                    api, part.children, found, expected, answers, is_own
                ):
                    applied.append(each)  # noqa: PERF401  # those before a failure count
            except KubernetesRefused as error:
                text = str(error)
                hint = EXECUTORS_NEED if ROLE_BINDING.plural in text else None
                if " is invalid: " in text or "typed patch object" in text:
                    hint = DECLARED_BY.get(part.component)
                if hint is None:
                    raise
                raise KubernetesRefused(text, hint=hint) from error
        failed = part.failed or (None if attempted.finding.is_good else attempted.finding)
        now = {**part.beside, **part.stays, **{each.place: each.object for each in applied}}
        if failed is not None:
            now = _of_component(found, part.component)
        parts.append(AppliedPart(part.component, applied, now, bool(part.stays), failed))
        if parts[0].failed is not None:
            break
    else:
        parts = await _without_unwanted(api, parts, found)
    if not any(each.failed and each.failed.reason == NameTaken.__name__ for each in parts):
        return parts
    children = [each for part in wanted for each in part.children]
    taken = await all_taken(api, queue.key, is_own, children, found)
    return [
        replace(each, failed=replace(each.failed, **taken))
        if each.failed and each.failed.reason == NameTaken.__name__
        else each
        for each in parts
    ]


def _of_component(found: Found, component: str) -> Found:
    labels = {place: each["metadata"]["labels"] for place, each in found.items()}
    return {place: found[place] for place in found if labels[place].get(COMPONENT) == component}


async def _without_unwanted(
    api: Kubernetes, parts: Sequence[AppliedPart], found: Found
) -> list[AppliedPart]:
    """Delete the children that are not wanted, but none of a component that failed; return the
    parts, where a failure is reported of the workers."""
    now = {place for part in parts for place in part.now}
    failed = {each.component for each in parts if each.failed}
    async with attempt(condition.WORKERS_READY) as deleted:
        await delete_unwanted(api, found, now, except_of=failed)
    refusal = None if deleted.finding.is_good else deleted.finding
    return [
        replace(each, failed=each.failed or refusal) if each.component == WORKER else each
        for each in parts
    ]


async def apply_children(
    api: Kubernetes,
    wanted: Sequence[Child],
    found: Found,
    expected: Collection[ChildName],
    answers: ApplyResponses,
    is_own: IsOwn,
) -> AsyncIterator[AppliedChild]:
    """Make children as wanted, without a write for those that are; yield each as it is then.
    `expected`: those that are there unless another process deleted them. Raises: NameTaken,
    KubernetesError."""
    for kind, child in wanted:
        place = (kind.name, child["metadata"]["name"])
        present = found.get(place)
        if present is None and (other := await _other(api, is_own, kind, child)) is not None:
            raise NameTaken(f"{kind.name} {other['metadata']['name']} exists already")
        if present is not None and answers.is_settled(child, present):
            yield AppliedChild(present, rewritten=_rewritten(child, present))
            continue
        was_answer = present is not None and answers.is_answer(child, present)
        done = repair_of(child, present, expected=place in expected)
        if present and done and not answers.count_repair(present):
            answers.note(child, present)
            yield AppliedChild(present, rewritten=_rewritten(child, present))
            continue
        now = await api.apply(kind, child)
        answers.note(child, now)
        rewritten = _rewritten(child, now)
        if present is not None and version_of(now) == version_of(present):
            yield AppliedChild(now, rewritten=rewritten)
            continue  # a webhook rewrites it, also what another operator applied
        if done is None or was_answer:
            log_action("applied a child", child=" ".join(place), existed=present is not None)
            yield AppliedChild(now, is_written=True, rewritten=rewritten)
        else:
            log_repair("child", child=" ".join(place), was=done)
            repair = f"{' '.join(place)} was {done}; it is as declared again"
            yield AppliedChild(now, is_written=True, repair=repair, rewritten=rewritten)


def _rewritten(child: Mapping[str, Any], now: Object) -> str:
    altered = ", ".join(rewritten_fields(child, now))
    return f"{child['kind']} {child['metadata']['name']} ({altered})" if altered else ""


async def delete_unwanted(
    api: Kubernetes, found: Found, wanted: Collection[ChildName], *, except_of: Collection[str] = ()
) -> None:
    """Delete the children that are not wanted, but none of these components."""
    for place, child in found.items():
        component = child["metadata"]["labels"].get(COMPONENT)
        if place not in wanted and component not in except_of:
            await api.delete(_KINDS[place[0]], child)
            log_action("deleted a child", child=" ".join(place))


async def _other(
    api: Kubernetes, is_own: IsOwn, kind: Kind, child: Mapping[str, Any]
) -> Object | None:
    """Return the object that has the name of a child and is not the resource's."""
    metadata = child["metadata"]
    there = await api.get(kind, metadata["namespace"], metadata["name"])
    return None if there is None or is_own(there) else there


async def all_taken(
    api: Kubernetes, owner: Key, is_own: IsOwn, wanted: Sequence[Child], found: Found
) -> dict[str, Any]:
    """Return the message of a finding with all names of children that are taken, so that they are
    cleared away at once; and whether they become free by themselves, as those of an earlier
    resource of the name do."""
    missing = [each for each in wanted if (each[0].name, each[1]["metadata"]["name"]) not in found]
    taken = [other for each in missing if (other := await _other(api, is_own, *each)) is not None]
    names = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in taken)
    message = (
        f"of the names of its children, objects that are not this {owner.kind}'s have: {names}; "
        f"delete or rename them (the API server removes those of an earlier {owner.kind})"
    )
    return {"message": message, "retryable": all(owner_of(each) == owner for each in taken)}
