"""Kopf's part in the operator: it watches.

What Kopf is used for: it watches the kinds (lists, reconnections, versions that are gone), keeps
the indexes that reconciles compare with, brings each event to a handler, which only queues the
object, and runs start-up and shutdown. It has a session of the operator's own connections.

What it is not used for: its bookkeeping is off (no finalizer, no annotation, no write), so that a
crash between two of its writes can lose nothing. Its peering is off: `Elector` decides which
operator leads, and Kopf begins to watch only then. Probes ask the operator itself, which is ready
only with its rights; Events follow from a difference of two statuses. Source: ADR 0006, 0034, 0041.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kopf

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import (
    CHILDREN,
    GROUP,
    MAIL_QUEUE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    VERSION,
    Key,
)
from postroad.controller.reads.indexes import User, as_object, as_user, key_of
from postroad.controller.run.classes import class_of_cluster
from postroad.controller.run.controller import Controller
from postroad.controller.run.index_toggles import waiting_reconciles
from postroad.ports.kubernetes import Kind, Object

LONGEST_BACKOFF = 30.0
"""Seconds between Kopf's requests to an API server that refuses them or does not answer."""

LISTED_AT_ONCE, IDLE_SECONDS = 100, 0.1
"""Objects of one answer; how long Kopf keeps an object's task, with its last event, for another
event. Larger ones are memory that the process keeps after the watches began."""


async def watch(
    controller: Controller,
    api: ApiServer,
    namespaces: Sequence[str],
    ready: asyncio.Event,
    indexed: asyncio.Event,
    end: asyncio.Event,
    take_signals: Callable[[], None],
) -> None:
    """Watch until `end` is set, in these namespaces or in all; set `ready` when it begins, and
    `indexed` when the indexes have all objects that there were then.

    Kopf takes the signals of the process; `take_signals` takes them back, because Kopf's handlers
    would end what is under way.
    """
    waiting_reconciles(indexed)
    ignored = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry_of(controller, api),
        settings=watching_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
        stop_flag=end,
    )
    take_signals()
    await kopf.run_tasks(tasks, ignored=ignored)


def registry_of(controller: Controller, api: ApiServer) -> kopf.OperatorRegistry:
    """Return the handlers, which queue what the watches bring, and the indexes."""
    registry = kopf.OperatorRegistry()
    on_event, on_child_event = controller.causes.on_event, controller.causes.on_child_event

    def watch_own(kind: Kind) -> None:
        @kopf.index(GROUP, VERSION, kind.plural, id="objects", registry=registry)
        async def index_own(body: kopf.Body, **_: Any) -> dict[Key, Object]:
            return as_object(dict(body))

        @kopf.on.event(GROUP, VERSION, kind.plural, id=f"watch-{kind.plural}", registry=registry)
        async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
            on_event(kind, dict(body), gone=type == "DELETED", routine=type is None)

    def watch_child(kind: Kind) -> None:
        group, _, version = kind.api_version.rpartition("/")

        @kopf.index(
            group,
            version,
            kind.plural,
            id="objects",
            labels={MANAGED_BY: "postroad"},
            registry=registry,
        )
        async def index_child(body: kopf.Body, **_: Any) -> dict[Key, Object]:
            return as_object(dict(body))

        @kopf.on.event(
            group,
            version,
            kind.plural,
            id=f"watch-{kind.plural}",
            labels={MANAGED_BY: "postroad"},
            registry=registry,
        )
        async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
            on_child_event(dict(body), gone=type == "DELETED", routine=type is None)

    @kopf.on.startup(registry=registry)
    async def use_indexes(**indexes: Any) -> None:
        found = controller.indexes
        found.users, found.objects = indexes["users"], indexes["objects"]
        found.classes = indexes["classes"]

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=api.access.address, aiohttp_session=api.open_session())

    _index_own(registry)
    for own in (QUEUE_CLUSTER, MAIL_QUEUE):
        watch_own(own)
    for child in CHILDREN:
        watch_child(child)
    return registry


def _index_own(registry: kopf.OperatorRegistry) -> None:
    @kopf.index(GROUP, VERSION, MAIL_QUEUE.plural, id="users", registry=registry)
    async def index_user(body: kopf.Body, **_: Any) -> dict[Key, User]:
        return as_user(body)

    @kopf.index(GROUP, VERSION, QUEUE_CLUSTER.plural, id="classes", registry=registry)
    async def index_class(body: kopf.Body, **_: Any) -> dict[Key, str]:
        return {key_of(body): class_of_cluster(body)}


class Backoffs:
    """Seconds between Kopf's attempts at a request, without end: after the last one Kopf would end
    the operator, although rights can be given and an API server can come back."""

    def __iter__(self) -> Iterator[float]:
        seconds = 1.0
        while True:
            yield seconds
            seconds = min(2 * seconds, LONGEST_BACKOFF)


class NoDiffs(kopf.DiffBaseStorage):
    """Keeps nothing and compares nothing. Kopf would copy each object that a watch brings, which is
    a tenth of the operator's CPU, for handlers of changes, of which there are none."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Raises: NotImplementedError; Kopf stores nothing for handlers of events."""
        raise NotImplementedError


def watching_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings, with everything but its watches off."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = NoDiffs()
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 15
    settings.watching.chunk_size = LISTED_AT_ONCE
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 15
    settings.networking.error_backoffs = Backoffs()
    for kind in CHILDREN:
        group, _, version = kind.api_version.rpartition("/")
        settings.watching.label_selectors[group, version, kind.plural] = f"{MANAGED_BY}=postroad"
    return settings


def quiet_logs() -> None:
    """Drop Kopf's lines below WARNING: they are about its handlers, which only queue objects."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
