"""Runs the operator: Kopf watches, `Controller` reconciles.

What Kopf is used for: it watches the kinds (lists, reconnections, versions that are gone), keeps
the indexes that reconciles compare with, brings each event to a handler, which only queues the
object, and runs start-up and shutdown. It has a session of the operator's own connections.

What it is not used for: its bookkeeping is off (no finalizer, no annotation, no write), so that a
crash between two of its writes can lose nothing. Probes ask the operator itself, which is ready
only with its rights; Events follow from a difference of two statuses. Source: ADR 0006, 0034.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import kopf

from postroad.adapters.kubernetes.access import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import cluster
from postroad.controller.api import (
    CHILDREN,
    FIELD_MANAGER,
    GROUP,
    MAIL_QUEUE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    VERSION,
    Key,
)
from postroad.controller.connections import Connect
from postroad.controller.controller import Controller, Intervals
from postroad.controller.deletion import DELETION_TIMEOUT
from postroad.controller.rights import missing_rights
from postroad.controller.watched import Child, User, as_child, as_user
from postroad.controller.workqueue import TASKS
from postroad.errors import KubernetesRefused, KubernetesUnavailable, PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.kubernetes import Kind
from postroad.telemetry import logs
from postroad.telemetry.health import HealthServer, Readiness

CRD_SECONDS = 2.0
"""Interval of checks for the CRDs while they are not installed."""

RIGHTS_SECONDS, MISSING_RIGHTS_SECONDS = 300.0, 5.0
"""Interval of checks of the operator's rights, and while some are missing."""

LONGEST_BACKOFF = 30.0
"""Seconds between Kopf's requests to an API server that refuses them or does not answer."""

_log = logs.logger("controller")


class NotReady(PostroadError):
    """The watches do not run."""

    transient = True


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the operator's command. No `namespaces`: all."""

    image: str
    namespaces: tuple[str, ...] = ()
    tasks: int = TASKS
    intervals: Intervals = field(default_factory=Intervals)
    deletion_timeout: timedelta = DELETION_TIMEOUT
    ambient_credentials: bool = False


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The API server, the servers behind queues, clock and randomness."""

    api: ApiServer
    connect: Connect
    clock: Clock
    randomness: Randomness


class Program:
    """The running operator. `ready` is set once Kopf has begun to watch."""

    def __init__(self, dependencies: Dependencies, options: Options) -> None:
        self._dependencies = dependencies
        self._options = options
        self.ready = asyncio.Event()
        self._missing_rights: tuple[str, ...] | None = None
        self.stop = asyncio.Event()
        self.controller = Controller(
            dependencies.api,
            connect=dependencies.connect,
            clock=dependencies.clock,
            randomness=dependencies.randomness,
            image=options.image,
            namespaces=options.namespaces,
            intervals=options.intervals,
            deletion_timeout=options.deletion_timeout,
            ambient_credentials=options.ambient_credentials,
        )

    async def run(self) -> None:
        """Run until `stop` is set or a signal comes. Raises: what ended the reconcile loop."""
        await self._wait_for_crds()
        loop = asyncio.create_task(self.controller.run(self._options.tasks))
        loop.add_done_callback(lambda _: self.stop.set())
        rights = asyncio.create_task(self._check_rights())
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=watching_settings(),
                standalone=True,
                clusterwide=not self._options.namespaces,
                namespaces=self._options.namespaces,
                ready_flag=self.ready,
                stop_flag=self.stop,
            )
        finally:
            self.ready.clear()
            if loop.done() and not loop.cancelled():
                loop.result()
            loop.cancel()
            rights.cancel()
            await asyncio.gather(loop, rights, return_exceptions=True)
            await self.controller.close()

    def require_ready(self) -> None:
        """Raises: NotReady unless the operator watches, with all rights to do so."""
        if not self.ready.is_set() or self._missing_rights is None:
            raise NotReady("the operator does not watch yet")
        if self._missing_rights:
            raise NotReady(f"the API server refuses: {', '.join(self._missing_rights)}")

    async def _check_rights(self) -> None:
        while True:
            try:
                missing = await missing_rights(self._dependencies.api, self._options.namespaces)
            except KubernetesUnavailable:
                await asyncio.sleep(MISSING_RIGHTS_SECONDS)
                continue
            except KubernetesRefused as error:
                _log.warning("the operator's rights cannot be checked", error=str(error))
                missing = ()
            if missing and missing != self._missing_rights:
                _log.error("rights are missing: apply manifests/install.yaml", missing=missing)
            self._missing_rights = missing
            await asyncio.sleep(MISSING_RIGHTS_SECONDS if missing else RIGHTS_SECONDS)

    async def _wait_for_crds(self) -> None:
        warned = False
        while not await self._dependencies.api.serves(MAIL_QUEUE, QUEUE_CLUSTER):
            if not warned:
                _log.warning("the CRDs are not installed: apply the files of crds/", group=GROUP)
                warned = True
            await asyncio.sleep(CRD_SECONDS)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        on_event, on_child_event = self.controller.on_event, self.controller.on_child_event

        def watch_own(kind: Kind) -> None:
            @kopf.on.event(
                GROUP, VERSION, kind.plural, id=f"watch-{kind.plural}", registry=registry
            )
            async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
                on_event(kind, dict(body), gone=type == "DELETED", routine=type is None)

        def watch_child(kind: Kind) -> None:
            group, _, version = kind.api_version.rpartition("/")

            @kopf.index(
                group,
                version,
                kind.plural,
                id="children",
                labels={MANAGED_BY: "postroad"},
                registry=registry,
            )
            async def index_child(body: kopf.Body, **_: Any) -> dict[Key, Child]:
                return as_child(body)

            @kopf.on.event(
                group,
                version,
                kind.plural,
                id=f"watch-{kind.plural}",
                labels={MANAGED_BY: "postroad"},
                registry=registry,
            )
            async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
                if type is not None:
                    on_child_event(dict(body))

        @kopf.index(GROUP, VERSION, MAIL_QUEUE.plural, id="users", registry=registry)
        async def index_user(body: kopf.Body, **_: Any) -> dict[Key, User]:
            return as_user(body)

        @kopf.on.startup(registry=registry)
        async def use_indexes(**indexes: Any) -> None:
            found = self.controller.indexes
            found.users, found.children = indexes["users"], indexes["children"]

        @kopf.on.login(registry=registry)
        async def log_in(**_: Any) -> kopf.AiohttpSession:
            api = self._dependencies.api
            return kopf.AiohttpSession(
                server=api.access.address, aiohttp_session=api.open_session()
            )

        for own in (QUEUE_CLUSTER, MAIL_QUEUE):
            watch_own(own)
        for child in CHILDREN:
            watch_child(child)
        return registry


class Backoffs:
    """Seconds between Kopf's attempts at a request, without end: after the last one Kopf would end
    the operator, although rights can be given and an API server can come back."""

    def __iter__(self) -> Iterator[float]:
        seconds = 1.0
        while True:
            yield seconds
            seconds = min(2 * seconds, LONGEST_BACKOFF)


def watching_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings, with everything but its watches off."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 15
    settings.watching.chunk_size = 500
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


async def serve(options: Options, health_host: str, health_port: int) -> None:
    """Run the operator on the machine's API server until a signal comes.

    Raises: KubernetesError when no API server is configured; InvalidSettings for a taken port.
    """
    readiness = Readiness()
    health = HealthServer(readiness)
    await health.listen(health_host, health_port)
    api = ApiServer(load_access(), FIELD_MANAGER)
    try:
        clock, randomness = MachineClock(), SystemRandomness()
        program = Program(Dependencies(api, cluster.connect, clock, randomness), options)
        readiness.opened(program.require_ready)
        await program.run()
    finally:
        await api.close()
        await health.close()
