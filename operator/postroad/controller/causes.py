"""What happened to resources since their last reconcile; one that fails loses none of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from postroad.controller.api import Key


class Cause(Enum):
    """Why a resource is reconciled before its time."""

    RESOURCE = auto()
    """The spec of the resource was changed, or the resource is new or gone."""

    CHILD = auto()
    """A child of the MailQueue was changed or deleted."""

    QUEUE = auto()
    """A MailQueue that refers to the QueueCluster was changed."""

    CLUSTER = auto()
    """The QueueCluster of the MailQueue was changed, or one of its Secrets, or its servers are no
    longer as they were."""


class Causes:
    """The causes of each resource."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Key, set[Cause]] = defaultdict(set)

    def add(self, key: Key, cause: Cause) -> None:
        """Keep a cause for the next reconcile."""
        self._waiting[key].add(cause)

    @contextmanager
    def taken(self, key: Key) -> Iterator[frozenset[Cause]]:
        """Take the causes of a resource for the time of a reconcile. After an error the next
        reconcile gets them too, and those that came meanwhile."""
        taken = frozenset(self._waiting.pop(key, ()))
        try:
            yield taken
        except BaseException:
            self._waiting[key] |= taken
            raise
