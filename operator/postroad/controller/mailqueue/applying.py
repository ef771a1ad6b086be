"""Applies the children of a MailQueue, and deletes those that are no longer wanted."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroad.controller.kubernetes.actions import log_action, log_repair
from postroad.controller.kubernetes.api import CHILDREN, COMPONENT, INSTANCE, MANAGED_BY
from postroad.controller.kubernetes.drift import ApplyAnswers, repair_of, rewritten_fields
from postroad.controller.pods.children import Child, belongs_to
from postroad.controller.reads import owner_of, version_of
from postroad.controller.spec.queue_resource import Queue
from postroad.errors import NameTaken
from postroad.ports.kubernetes import Kind, Kubernetes, Object

ChildName = tuple[str, str]
"""Kind and name of a child."""

Found = dict[ChildName, Object]


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


async def find_children(api: Kubernetes, queue: Queue) -> Found:
    """Return the children that this MailQueue owns or takes over. The API server removes those of
    an earlier one."""
    labels = f"{MANAGED_BY}=postroad,{INSTANCE}={queue.name.name}"
    lists = await asyncio.gather(
        *(api.list(kind, queue.name.namespace, labels) for kind in CHILDREN)
    )
    return {
        (kind.name, each["metadata"]["name"]): each
        for kind, found in zip(CHILDREN, lists, strict=True)
        for each in found
        if belongs_to(each, queue)
    }


async def apply_children(
    api: Kubernetes,
    queue: Queue,
    wanted: Sequence[Child],
    found: Found,
    expected: Collection[ChildName],
    answers: ApplyAnswers,
) -> AsyncIterator[AppliedChild]:
    """Make children as wanted, without a write for those that are; yield each as it is then.
    `expected`: those that are there unless another process deleted them. Raises: NameTaken,
    KubernetesError."""
    for kind, child in wanted:
        place = (kind.name, child["metadata"]["name"])
        present = found.get(place)
        if present is None and (other := await _other(api, queue, kind, child)) is not None:
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
    api: Kubernetes, found: Found, wanted: Collection[ChildName], *, except_of: Collection[str]
) -> None:
    """Delete the children that are not wanted, but none of these components."""
    kinds = {kind.name: kind for kind in CHILDREN}
    for place, child in found.items():
        component = child["metadata"]["labels"].get(COMPONENT)
        if place not in wanted and component not in except_of:
            await api.delete(kinds[place[0]], child)
            log_action("deleted a child", child=" ".join(place))


async def _other(
    api: Kubernetes, queue: Queue, kind: Kind, child: Mapping[str, Any]
) -> Object | None:
    """Return the object that has the name of a child and is not the MailQueue's."""
    metadata = child["metadata"]
    there = await api.get(kind, metadata["namespace"], metadata["name"])
    return None if there is None or belongs_to(there, queue) else there


async def all_taken(
    api: Kubernetes, queue: Queue, wanted: Sequence[Child], found: Found
) -> tuple[str, bool]:
    """Return a message with all names of children that are taken, so that they are cleared away at
    once; and whether they become free by themselves, as those of an earlier MailQueue do."""
    missing = [each for each in wanted if (each[0].name, each[1]["metadata"]["name"]) not in found]
    taken = [other for each in missing if (other := await _other(api, queue, *each)) is not None]
    names = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in taken)
    message = (
        f"of the names of its children, objects that are not this MailQueue's have: {names}; "
        "delete or rename them (the API server removes those of an earlier MailQueue)"
    )
    return message, all(owner_of(each) == queue.key for each in taken)
