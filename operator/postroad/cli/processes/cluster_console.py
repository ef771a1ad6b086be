"""`postroad cluster-console`: the queues of a QueueCluster over HTTP, in a pod, for users of
Kubernetes and with the rights that they have there."""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from postroad.adapters.clocks import MachineClock
from postroad.cli.options import LISTEN
from postroad.cli.processes.console import listen_on, serve_until_signal
from postroad.cli.processes.long_running import run
from postroad.domain.queues.names import QueueName
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.ports.access_reviews import QUEUE_GROUP
from postroad.ports.kubernetes import Kind, Kubernetes
from postroad.settings import Settings, from_environment
from postroad.telemetry.health import HealthServer, Readiness

if TYPE_CHECKING:
    from postroad.bootstrap.distributed import OpenShared
    from postroad.console.audit import AuditEntry
    from postroad.console.followed_queues import ServedQueue
    from postroad.console.queues import ConsoleQueue

PORT = 8600
EVENT = Kind("events.k8s.io/v1", "Event", "events")
MAX_NOTE = 1000
"""Characters of the note of an Event, of at most 1,024 octets."""


@click.command(hidden=True)
@click.option(
    "--queues",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file with the queues, which the operator writes.",
)
@click.option("--listen", type=LISTEN, help="An address (default: all, at port 8600).")
@click.option("--audience", required=True, help="The audience of tokens for this console.")
@click.option("--service", "services", multiple=True, help="A name of its Service.")
@click.option("--host", "hosts", multiple=True, help="A name under which a proxy with TLS has it.")
@click.option("--issuer", help="The OpenID Connect issuer that browsers log in at.")
@click.option("--client", "client_id", help="The console as its issuer knows it.")
@click.option(
    "--issuer-files",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder with `ca.crt` of the issuer, and `clientSecret`.",
)
def cluster_console(
    file: Path,
    listen: str | None,
    audience: str,
    services: tuple[str, ...],
    hosts: tuple[str, ...],
    issuer: str | None,
    client_id: str | None,
    issuer_files: Path | None,
) -> None:
    """Serve the queues of a QueueCluster over HTTP, until SIGTERM. The operator runs this, for
    `spec.console`; the rights are Kubernetes'."""
    settings = from_environment()
    every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
    place = parse_host_port(listen, 0) if listen else (every, PORT)
    login = (issuer, client_id or audience, issuer_files) if issuer else None
    run(settings, _serve(settings, file, place, audience, services, hosts, login))


async def _serve(
    settings: Settings,
    file: Path,
    place: tuple[str, int],
    audience: str,
    services: tuple[str, ...],
    hosts: tuple[str, ...],
    login: tuple[str, str, Path | None] | None,
) -> None:
    from postroad.adapters.kubernetes.access_reviews import ApiAccessReviews
    from postroad.adapters.kubernetes.api_requests import load_access
    from postroad.adapters.kubernetes.api_server import ApiServer
    from postroad.bootstrap.distributed import open_shared
    from postroad.console.api.access import Console
    from postroad.console.api.guard import Hosts
    from postroad.console.api.server import ConsoleServer
    from postroad.console.api.sessions import TokenIdentities
    from postroad.console.followed_queues import FollowedQueues
    from postroad.console.openid import OpenIdClient, OpenIdLogins
    from postroad.console.reviewed_rights import ReviewedRights

    readiness, clock = Readiness(), MachineClock()
    async with AsyncExitStack() as opened:
        health = HealthServer(readiness)
        await health.listen(settings.health_host, settings.health_port)
        opened.push_async_callback(health.close)
        listening = listen_on(*place)
        opened.callback(listening.close)
        server = ApiServer(load_access(), "postroad-console")
        opened.push_async_callback(server.close)
        shared = await opened.enter_async_context(open_shared(settings))
        queues = FollowedQueues(file, partial(_opened, shared))
        opened.push_async_callback(queues.close)
        rights = ReviewedRights(ApiAccessReviews(server), clock.elapsed, audience)
        served = Console.over(queues, rights, clock, partial(_announce, server))
        opened.push_async_callback(served.operations.close)
        reached = Hosts(
            {place for each in services for place in (each.lower(), f"{each.lower()}:{PORT}")},
            {each.lower() for each in hosts},
            is_forwarded=True,
        )
        logins = OpenIdLogins(OpenIdClient(*login), clock.elapsed) if login else None
        identities = TokenIdentities(rights, clock.elapsed, logins)
        serving = ConsoleServer(listening, served, readiness, identities=identities, hosts=reached)
        readiness.opened(lambda: None)
        await serve_until_signal(serving)


async def _opened(shared: OpenShared, name: QueueName, declared: ServedQueue) -> ConsoleQueue:
    from postroad.console.queues import ConsoleQueue

    own = from_environment({**os.environ, **declared.environment})
    queue, configuration = await shared(name, own)
    return ConsoleQueue(name, queue, None, configuration, declared.keeps_hashes, declared.uid)


async def _announce(server: Kubernetes, on: ConsoleQueue, entry: AuditEntry) -> None:
    """Post an Event on the MailQueue about a change."""
    instance = os.environ.get("HOSTNAME") or socket.gethostname()
    await server.create(EVENT, event_of(on, entry, instance))


def event_of(on: ConsoleQueue, entry: AuditEntry, instance: str) -> dict[str, object]:
    """Return the Event of a change. Source: Kubernetes documentation (Event v1 events.k8s.io)."""
    name = on.name
    parts = [entry.change, *(f"{field} {value}" for field, value in entry.more)]
    if entry.matched is not None:
        parts.append(f"of {entry.matched} mails selected by {', '.join(entry.fields) or 'all'}")
    note = f"{entry.who}: {' '.join(parts)}"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": f"{name.name[:200]}.{uuid4().hex}", "namespace": name.namespace},
        "eventTime": entry.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Normal",
        "reason": "ChangedByConsole",
        "action": "Change",
        "note": note[:MAX_NOTE].encode()[:MAX_NOTE].decode(errors="ignore"),
        "regarding": {
            "apiVersion": f"{QUEUE_GROUP}/v1beta1",
            "kind": "MailQueue",
            "namespace": name.namespace,
            "name": name.name,
            "uid": on.uid,
        },
        "reportingController": f"{QUEUE_GROUP}/console",
        "reportingInstance": instance,
    }
