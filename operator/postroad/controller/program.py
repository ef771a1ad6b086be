"""Runs the operator: Kopf watches, our own loop reconciles.

Kopf's handlers here only say which object to look at. Nothing of Kopf's own bookkeeping is used (no
finalizer, no annotation, no write of its own), so there is nothing that a crash between two of its
writes could lose. Source: ADR 0006.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import kopf

from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import cluster
from postroad.controller.api import (
    CHILDREN,
    GROUP,
    MAIL_QUEUE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    VERSION,
    Kind,
)
from postroad.controller.api_server import ApiServer, load_configuration
from postroad.controller.connections import Connect
from postroad.controller.controller import Controller, Intervals
from postroad.controller.deletion import DELETION_TIMEOUT
from postroad.errors import PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.telemetry import logs
from postroad.telemetry.health import HealthServer, Readiness

TASKS = 8
"""Looks at the same time. A look mostly waits for servers."""

CRD_SECONDS = 2.0
"""How often is asked for the CRDs while they are not installed."""

_log = logs.logger("controller")


class NotReady(PostroadError):
    """The watches do not run yet, or no longer."""

    transient = True


@dataclass(frozen=True, slots=True)
class Options:
    """What a person decides about an operator. No `namespaces`: all."""

    image: str
    namespaces: tuple[str, ...] = ()
    tasks: int = TASKS
    intervals: Intervals = field(default_factory=Intervals)
    deletion_timeout: timedelta = DELETION_TIMEOUT


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the operator needs of everything outside."""

    api: ApiServer
    connect: Connect
    clock: Clock
    randomness: Randomness


class Program:
    """The running operator. `ready` is set once all watches have listed what there is."""

    def __init__(self, world: Dependencies, options: Options) -> None:
        self._world = world
        self._options = options
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()
        self.controller = Controller(
            world.api,
            connect=world.connect,
            clock=world.clock,
            randomness=world.randomness,
            image=options.image,
            namespaces=options.namespaces,
            intervals=options.intervals,
            deletion_timeout=options.deletion_timeout,
        )

    async def run(self) -> None:
        """Run until `stop` is set or a signal comes. Raises whatever ends the reconcile loop."""
        await self._wait_for_crds()
        loop = asyncio.create_task(self.controller.run(self._options.tasks))
        loop.add_done_callback(lambda _: self.stop.set())
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
            await asyncio.gather(loop, return_exceptions=True)
            await self.controller.close()

    async def require_ready(self) -> None:
        """Raises: NotReady unless all watches run."""
        if not self.ready.is_set():
            raise NotReady

    async def _wait_for_crds(self) -> None:
        told = False
        while not await self._world.api.serves(MAIL_QUEUE, QUEUE_CLUSTER):
            if not told:
                _log.warning("the CRDs are not installed: apply the files of crds/", group=GROUP)
                told = True
            await asyncio.sleep(CRD_SECONDS)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        see, see_child = self.controller.see, self.controller.see_child

        def watch_own(kind: Kind) -> None:
            @kopf.on.event(GROUP, VERSION, kind.plural, id=f"see-{kind.plural}", registry=registry)
            async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
                await see(kind, dict(body), gone=type == "DELETED", routine=type is None)

        def watch_child(kind: Kind) -> None:
            group, _, version = kind.api_version.rpartition("/")

            @kopf.on.event(
                group,
                version,
                kind.plural,
                id=f"see-{kind.plural}",
                labels={MANAGED_BY: "postroad"},
                registry=registry,
            )
            async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
                if type is not None:
                    see_child(dict(body))

        @kopf.on.login(registry=registry)
        def log_in(**_: Any) -> kopf.ConnectionInfo:
            return connection(self._world.api)

        for own in (QUEUE_CLUSTER, MAIL_QUEUE):
            watch_own(own)
        for child in CHILDREN:
            watch_child(child)
        return registry


def connection(api: ApiServer) -> kopf.ConnectionInfo:
    """Return what Kopf needs to come as the same user as we do."""
    configuration = api.configuration
    scheme, _, token = (api.authorization() or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token or None,
    )


def watching_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings: watch, and nothing else."""
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
    for kind in CHILDREN:
        group, _, version = kind.api_version.rpartition("/")
        settings.watching.label_selectors[group, version, kind.plural] = f"{MANAGED_BY}=postroad"
    return settings


def quiet_logs() -> None:
    """Kopf's own lines are about its handlers, which do nothing; ours say what matters."""
    logging.getLogger("kopf").setLevel(logging.WARNING)


async def serve(options: Options, health_port: int) -> None:
    """Run the operator on the real world until a signal comes.

    Raises: KubernetesError when no API server is configured; InvalidSettings for a taken port.
    """
    readiness = Readiness()
    health = HealthServer(readiness)
    await health.listen(health_port)
    api = ApiServer(load_configuration())
    try:
        clock, randomness = MachineClock(), SystemRandomness()
        program = Program(Dependencies(api, cluster.connect, clock, randomness), options)
        readiness.opened(program.require_ready)
        await program.run()
    finally:
        api.close()
        await health.close()
