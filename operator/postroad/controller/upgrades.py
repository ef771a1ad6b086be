"""Paces the replacement of pods that a newer operator causes.

What a user changes, replaces the pods of that MailQueue at once. A newer operator would replace
those of all MailQueues together: so each waits until fewer than `upgrades.atOnce` of its
QueueCluster replace theirs. The Deployments show which ones do, also to the next operator.
Source: ADR 0043.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroad.controller.api import DECLARED_HASH, DEPLOYMENT, TEMPLATE_HASH, Key
from postroad.controller.children import Child
from postroad.controller.conditions import UP_TO_DATE, Finding, advice, good
from postroad.controller.watched import Indexes
from postroad.ports.kubernetes import Object

NAMED = 5
"""MailQueues that a message names."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How many MailQueues of a QueueCluster wait for the replacement of their pods, and which ones
    replace theirs."""

    waiting: int
    rolling: Sequence[Key]

    def finding(self, at_once: int) -> Finding:
        """Return the condition of the QueueCluster."""
        if not self.waiting:
            return good(UP_TO_DATE, "no MailQueue waits for the replacement of its pods")
        if not at_once:
            message = f"{self.waiting} MailQueues keep their pods: spec.upgrades.atOnce is 0"
            return advice(UP_TO_DATE, "UpgradesHeld", message)
        names = ", ".join(f"{each.namespace}/{each.name}" for each in self.rolling[:NAMED])
        message = (
            f"{self.waiting} MailQueues wait for the replacement of their pods, at most {at_once} "
            f"at once; those of {len(self.rolling)} are being replaced: {names or 'none'}"
        )
        return advice(UP_TO_DATE, "UpgradeWaits", message)


class Upgrades:
    """Which MailQueues may replace their pods, because a newer operator wants others."""

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self._waiting: dict[Key, Key] = {}
        self._granted: dict[Key, Key] = {}
        """QueueClusters by MailQueue."""

    def wait(self, cluster: Key, queue: Key) -> None:
        """Let a MailQueue wait until it may replace its pods."""
        self._waiting[queue] = cluster

    def is_granted(self, queue: Key) -> bool:
        """Whether a MailQueue may replace its pods."""
        return queue in self._granted

    def end(self, queue: Key) -> None:
        """Forget a MailQueue whose pods are replaced, or are not to be. Idempotent."""
        self._waiting.pop(queue, None)
        self._granted.pop(queue, None)

    def proceed(self, cluster: Key, at_once: int) -> Sequence[Key]:
        """Let as many MailQueues begin as there is room for; return them. They are granted it until
        they end, because the indexes show what they do only later."""
        waiting = self._waiting_at(cluster)
        room = max(0, at_once - len(self._rolling(cluster))) if waiting else 0
        for each in waiting[:room]:
            self._granted[each] = self._waiting.pop(each)
        return waiting[:room]

    def has_waiting(self, cluster: Key) -> bool:
        """Whether MailQueues of a QueueCluster wait."""
        return cluster in self._waiting.values()

    def progress(self, cluster: Key) -> Progress:
        """Return how far the MailQueues of a QueueCluster are."""
        return Progress(len(self._waiting_at(cluster)), sorted(self._rolling(cluster)))

    def _waiting_at(self, cluster: Key) -> list[Key]:
        return [each for each, of in self._waiting.items() if of == cluster]

    def _rolling(self, cluster: Key) -> set[Key]:
        users = (user.key for user in self._indexes.users_of(cluster))
        children = self._indexes.children_of
        rolling = {each for each in users if any(child.is_rolling for child in children(each))}
        return rolling | {each for each, of in self._granted.items() if of == cluster}


def paced(
    build: Callable[[str], list[Child]], wanted_image: str, present: Object | None, *, pinned: bool
) -> tuple[list[Child], bool]:
    """Return the children of a component that is not upgraded: what a user declares has
    its effect, with the image that runs; and whether more waits.

    `build` builds them with an image; `pinned`: the image is one that a user declares.
    """
    wanted = build(wanted_image)
    if present is None or not wanted:
        return wanted, False
    runs, newest = hash_in(present, TEMPLATE_HASH), _hash(wanted, TEMPLATE_HASH)
    if runs == newest:
        return wanted, False
    older = wanted if pinned else build(_image_of(present) or wanted_image)
    template, declared = _hash(older, TEMPLATE_HASH), _hash(older, DECLARED_HASH)
    if template == runs or declared != hash_in(present, DECLARED_HASH):
        return older, template != newest
    return [each for each in older if each[0] is not DEPLOYMENT], True


def _hash(children: Sequence[Child], annotation: str) -> str | None:
    (deployment,) = (child for kind, child in children if kind is DEPLOYMENT)
    return hash_in(deployment, annotation)


def hash_in(found: Mapping[str, Any], annotation: str) -> str | None:
    """Return a hash that the operator wrote into the annotations of an object."""
    value: str | None = (found["metadata"].get("annotations") or {}).get(annotation)
    return value


def _image_of(deployment: Mapping[str, Any]) -> str | None:
    """Return the image of workers or intake. Their containers are called as their component."""
    component = deployment["metadata"]["name"].rpartition("-")[2]
    containers = deployment["spec"]["template"]["spec"]["containers"]
    images = (each.get("image") for each in containers if each["name"] == component)
    return next(images, None)
