"""Runs the operator: it stands by until the Lease is its own, then it watches and reconciles.

Asks the API server for the rights without which no condition can name what is missing.

A watch that is refused has no answer by which the operator could see that it sees nothing; a status
that cannot be read or written keeps its conditions; without its Lease the operator writes none.

A way back to this release is refused before anything has changed, where resources have what it does
not know: the API server drops such fields of a spec once it has this release's CRDs, and what such
an event of a history says about where mail lies is unknown."""

import asyncio
import signal
import socket
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.kubernetes.api_requests import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.kubernetes.kopf_watch import quiet_logs, read_nested_objects
from postroad.bootstrap import cluster
from postroad.controller.credentials import Connect
from postroad.controller.kubernetes.api import (
    FIELD_MANAGER,
    GROUP,
    LEASE,
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    QUEUE_CLUSTER,
    VERSION,
    log_unexpected,
)
from postroad.controller.reads import OWN, WATCHED
from postroad.controller.run.causes import follow, lease_name
from postroad.controller.run.controller import Controller
from postroad.controller.run.elector import Elector, LeasePlace, Watchdog
from postroad.controller.run.options import Options
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.parts import Model
from postroad.controller.spec.task import MailQueueTaskSpec
from postroad.domain.configuration.documents import from_document
from postroad.errors import InvalidInput, KubernetesError, KubernetesRefused, PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.kubernetes import Kind, Kubernetes
from postroad.telemetry import logs
from postroad.telemetry.health import HealthServer, Readiness

SPECS: Mapping[Kind, type[Model]] = {
    MAIL_QUEUE: MailQueueSpec,
    QUEUE_CLUSTER: QueueClusterSpec,
    MAIL_QUEUE_TASK: MailQueueTaskSpec,
}
_NAMED = {kind.name: model for kind, model in SPECS.items()}
SCHEMAS = f"/openapi/v3/apis/{GROUP}/{VERSION}"
"""Path at which the API server has the schemas of the CRDs that are installed."""


def unknown_parts(
    resources: Iterable[Mapping[str, Any]], published: Mapping[str, Any] | None = None
) -> list[str]:
    """Return a sentence, without its end, for each field or value of a spec, and each event of a
    history. `published`: what is at `SCHEMAS`; fields that have their default there are none."""
    schemas = {
        each["kind"]: schema["properties"]["spec"]
        for schema in ((published or {}).get("components") or {}).get("schemas", {}).values()
        for each in schema.get("x-kubernetes-group-version-kind", ())
        if each["kind"] in _NAMED
    }
    return [
        f"{each['kind']} {each['metadata']['namespace']}/{each['metadata']['name']}: {part}"
        for each in resources
        for part in (*_fields(each, schemas.get(each["kind"], {})), *_events(each))
    ]


def _fields(found: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    try:
        _NAMED[found["kind"]].model_validate(found["spec"], extra="forbid")
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
    else:
        return []
    unknown = []
    for each in errors:
        path = ".".join(("spec", *map(str, each["loc"])))
        if each["type"] == "literal_error":
            unknown.append(f"{path} has a value that is unknown: choose another one first")
        elif each["type"] == "extra_forbidden" and not _is_default(
            _schema_at(schema, each["loc"]), each["input"]
        ):
            unknown.append(f"{path} is unknown, and would be lost: take it out first")
        elif each["type"] != "extra_forbidden" and not _is_refused(found):
            why = each["msg"].removeprefix("Value error, ")
            unknown.append(f"{path} is refused by this release: {why}: change it first")
    return unknown


def _is_refused(found: Mapping[str, Any]) -> bool:
    """True for a spec that the release which runs refuses too: it keeps none from going back."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["reason"] == "InvalidSpec" for each in conditions)


def _schema_at(schema: Mapping[str, Any], path: Iterable[int | str]) -> Mapping[str, Any]:
    for step in path:
        inner = schema.get("items") if isinstance(step, int) else schema.get("properties")
        schema = (inner if isinstance(step, int) else (inner or {}).get(step)) or {}
    return schema


def _is_default(schema: Mapping[str, Any], value: Any) -> bool:
    if "default" in schema and isinstance(value, Mapping):
        fields = schema.get("properties", {})
        return all(_is_default(fields.get(name, {}), each) for name, each in value.items())
    return "default" in schema and bool(schema["default"] == value)


def _events(found: Mapping[str, Any]) -> list[str]:
    unread = []
    for document in (found.get("status") or {}).get("history") or ():
        try:
            from_document(document)
        except InvalidInput as error:
            number = document.get("sequence")
            unread.append(f"event {number} of its configuration history cannot be read: {error}")
    return unread


NEEDED = (
    *((verb, kind, "") for kind in WATCHED for verb in ("list", "watch")),
    *(("get", kind, "") for kind in OWN),
    *(("update", kind, "status") for kind in OWN),
)
"""Verbs, kinds and subresources, in each namespace."""

LEASE_VERBS = ("get", "create", "patch")


async def missing_rights(
    api: Kubernetes, lease_namespace: str, namespaces: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the rights that the operator lacks in the namespaces that it watches (none: in all),
    and those to its Lease, each as verb and resource. Raises: KubernetesError."""
    needed = [
        (verb, kind, part, namespace)
        for namespace in namespaces or (None,)
        for verb, kind, part in NEEDED
    ]
    needed += [(verb, LEASE, "", lease_namespace) for verb in LEASE_VERBS]
    missing = [
        f"{verb} {kind.plural}{part and f'/{part}'}"
        + (f" in namespace {namespace}" if namespace else "")
        for verb, kind, part, namespace in needed
        if not await api.may(verb, kind, namespace, subresource=part)
    ]
    return tuple(missing)


RIGHTS_ARE_MISSING = (
    "rights are missing: upgrade the chart's release, or give the rights of manifests/install.yaml"
)

CRD_INTERVAL = timedelta(seconds=2)
"""Interval of checks for the CRDs while they are not installed."""

RIGHTS_INTERVAL, MISSING_RIGHTS_INTERVAL = timedelta(minutes=5), timedelta(seconds=5)
"""Interval of checks of the operator's rights, and while some are missing."""

FINISH_SECONDS = 10.0
"""Time that an operator that is stopped lets reconciles end by themselves. It breaks off those that
take longer, and the next leader then waits until the Lease expires."""

_log = logs.logger("controller")


class NotReady(PostroadError):
    """The operator neither watches, nor could take over from the one that does."""

    transient = True


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The API server as reconciles use it, behind the fence, and before it; the election; the
    servers behind queues; clock and randomness."""

    api: ApiServer
    unfenced: ApiServer
    elector: Elector
    connect: Connect
    clock: Clock
    randomness: Randomness


class Program:
    """The running operator. `ready` is set once it leads and has begun to watch."""

    def __init__(self, dependencies: Dependencies, options: Options) -> None:
        self._dependencies = dependencies
        self._elector = dependencies.elector
        self._options = options
        self.ready = asyncio.Event()
        self._missing_rights: tuple[str, ...] | None = None
        self.stop = asyncio.Event()
        self.controller = Controller(
            dependencies.api,
            options,
            connect=dependencies.connect,
            clock=dependencies.clock,
            randomness=dependencies.randomness,
        )

    async def run(self) -> None:
        """Stand by until the Lease is this operator's, then watch and reconcile, until `stop` is
        set or a signal comes. Raises: LeadershipLost; what ended the reconcile loop."""
        self._take_signals()
        rights = asyncio.create_task(self._check_rights())
        try:
            if await self._unless_stopped(self._stand_by()):
                await self._lead()
        finally:
            rights.cancel()
            await asyncio.gather(rights, return_exceptions=True)
            await self.controller.close()

    async def _stand_by(self) -> None:
        await self._wait_for_crds()
        await self._elector.lead()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do a work; break it off, and return false, when the operator is stopped first."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            await _cancelled(working, stopping)

    async def _lead(self) -> None:
        """Watch and reconcile while the Lease is kept. It is given back when all that was under way
        has ended by itself; else the next leader waits until it expires."""
        electing = asyncio.create_task(self._elector.keep())
        indexed = asyncio.Event()
        working = asyncio.create_task(self._reconcile(indexed))
        stopping = asyncio.create_task(self.stop.wait())
        watching = asyncio.create_task(self._watch(indexed))
        tasks = (electing, working, stopping, watching)
        has_finished = False
        ended: set[asyncio.Task[Any]] = set()
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not (electing.done() or working.done()):
                has_finished = await self._finish(electing)
        finally:
            self.ready.clear()
            self._elector.fence.shut()
            await _cancelled(*tasks)
        if has_finished:
            await self._elector.give_back()
        for each in ended:
            each.result()

    async def _reconcile(self, indexed: asyncio.Event) -> None:
        await indexed.wait()
        await self.controller.run(self._options.tasks)

    async def _watch(self, indexed: asyncio.Event) -> None:
        api, namespaces = self._dependencies.api, self._options.namespaces
        self.ready.set()
        await follow(api, self.controller.causes, namespaces, indexed)

    async def _finish(self, electing: asyncio.Task[Any]) -> bool:
        """Let what is under way end; return whether all has, with the Lease still kept."""
        finishing = asyncio.create_task(self.controller.finish())
        await asyncio.wait(
            (finishing, electing), timeout=FINISH_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        has_finished = finishing.done() and not electing.done()
        await _cancelled(finishing)
        return has_finished

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(each, self.stop.set)

    def require_ready(self) -> None:
        """Raises: NotReady unless the operator leads and watches, or stands by and could take over;
        both with all rights."""
        if self._missing_rights is None:
            raise NotReady("the operator's rights are not known yet")
        if self._missing_rights:
            raise NotReady(f"the API server refuses: {', '.join(self._missing_rights)}")
        if self._elector.is_leader and not self.ready.is_set():
            raise NotReady("the operator does not watch yet")
        if not self._elector.is_in_touch():
            raise NotReady("the Lease cannot be read")

    async def _check_rights(self) -> None:
        api, clock = self._dependencies.unfenced, self._dependencies.clock
        place = self._elector.place
        while True:
            try:
                missing = await missing_rights(api, place.namespace, self._options.namespaces)
            except KubernetesRefused as error:
                _log.warning("the operator's rights cannot be checked", error=str(error))
                missing = ()
            except KubernetesError:
                await clock.sleep(MISSING_RIGHTS_INTERVAL)
                continue
            except Exception:  # which must not leave the readiness as it is for ever
                log_unexpected("the operator's rights were not checked")
                await clock.sleep(MISSING_RIGHTS_INTERVAL)
                continue
            if missing and missing != self._missing_rights:
                _log.error(RIGHTS_ARE_MISSING, missing=missing)
            self._missing_rights = missing
            await clock.sleep(MISSING_RIGHTS_INTERVAL if missing else RIGHTS_INTERVAL)

    async def _wait_for_crds(self) -> None:
        known = ""
        while True:
            try:
                if await self._dependencies.unfenced.serves(*OWN):
                    return
                obstacle = "the CRDs are not installed: apply the files of crds/"
            except KubernetesError as error:
                obstacle = str(error)
            if obstacle != known:
                _log.warning(obstacle, group=GROUP)
            known = obstacle
            await self._dependencies.clock.sleep(CRD_INTERVAL)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


NO_RIGHTS = (
    "the account may list no MailQueues where this release is to watch, so nothing could be "
    "checked: give it the rights first, or do without the check (--no-hooks)"
)


async def unknown_to_this_release(namespaces: Sequence[str]) -> list[str]:
    """Return what the resources of these namespaces (none: of all) have that this release does not
    know. Raises: KubernetesError."""
    api = ApiServer(load_access(), FIELD_MANAGER)
    try:
        places = namespaces or (None,)
        kinds = [each for each in SPECS if await api.serves(each)]
        # Before an upgrade the account has no right yet to a kind, or in a namespace, that the
        # upgrade brings: Helm makes the Roles after this.
        readable = [
            (kind, place)
            for kind in kinds
            for place in places
            if await api.may("list", kind, place)
        ]
        if kinds and not readable:
            raise KubernetesRefused(NO_RIGHTS)
        found = [each for kind, place in readable for each in await api.list(kind, place)]
        return unknown_parts(found, await api.call("GET", SCHEMAS, missing_ok=True))
    finally:
        await api.close()


async def serve(options: Options, health_host: str, health_port: int) -> None:
    """Run the operator on the machine's API server until a signal comes. Raises: KubernetesError
    when no API server is configured; InvalidSettings for a taken port; LeadershipLost."""
    quiet_logs()
    read_nested_objects()
    readiness = Readiness()
    health = HealthServer(readiness)
    await health.listen(health_host, health_port)
    access, clock, randomness = load_access(), MachineClock(), SystemRandomness()
    unfenced = ApiServer(access, FIELD_MANAGER)
    elector = elector_of(options, unfenced, clock, randomness)
    guard = elector.fence.require
    api = ApiServer(access, FIELD_MANAGER, guard)
    Watchdog(elector.fence).start()
    try:
        connect = partial(cluster.connect, guard=guard)
        dependencies = Dependencies(api, unfenced, elector, connect, clock, randomness)
        program = Program(dependencies, options)
        readiness.opened(program.require_ready)
        await program.run()
    finally:
        await api.close()
        await unfenced.close()
        await health.close()


def elector_of(
    options: Options, unfenced: ApiServer, clock: Clock, randomness: Randomness
) -> Elector:
    """Return this process's part in the election, under a name that no other process has."""
    return Elector(
        unfenced,
        LeasePlace(options.lease_namespace, lease_name(options.operator_class)),
        f"{socket.gethostname()}_{uuid4()}",
        clock=clock,
        randomness=randomness,
    )
