"""Runs receivers as processes of their own, which serve clients, because a Python process uses one
core.

The children share the listening sockets, which they inherit, and reply 250 only after `enqueue`
returned. With an embedded queue that this process owns, they also inherit the lock on its store and
store the mails themselves (`embedded/rpc/receiver.py`).
They end when this process does, even by a crash, because their standard input then ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE
from asyncio.subprocess import Process as Child
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

from postroad.bootstrap import lock_of
from postroad.cli.processes.intake import log_rules, ports_of, rules_of
from postroad.cli.processes.long_running import Process
from postroad.errors import ReceiverEnded
from postroad.intake.listening import listening_on
from postroad.settings import Settings
from postroad.telemetry.logs import logger

_log = logger("intake")

GRACE = timedelta(seconds=5)
"""How long a child may run beyond the drain time before it is killed."""


async def receive_in_children(this: Process, settings: Settings, url: str, count: int) -> None:
    """Accept mail in `count` processes until this one is to end.

    Raises: InvalidSettings for an address that cannot be used, ReceiverEnded when a child ends.
    """
    children: list[Child] = []
    try:
        with ExitStack() as sockets:
            log_rules(this.queue, settings.intake)
            listening = {
                sockets.enter_context(each): tls
                for port, tls in ports_of(settings.intake)
                for each in listening_on(settings.intake.host, port)
            }
            addresses, lock = list(map(_address_of, listening)), lock_of(this.queue)
            while len(children) < count:
                children.append(await _start(settings, url, listening, lock, count))
        await _watch(this, children, addresses)
    finally:
        await _end(children, this.drain_within + GRACE)


async def _watch(this: Process, children: list[Child], addresses: list[str]) -> None:
    """Wait until this process is to end. Raises: ReceiverEnded."""
    stopping = asyncio.create_task(this.stop.wait())
    beginning = asyncio.gather(*map(_is_listening, children))
    try:
        either: list[asyncio.Future[Any]] = [stopping, beginning]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if this.stop.is_set():
            return  # a signal to the whole process group may have ended the children already
        if not all(beginning.result()):
            raise ReceiverEnded
        for address in addresses:
            _log.info("listening", queue=this.queue.name, address=address)
        ends = [asyncio.create_task(child.wait()) for child in children]
        await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
        if not this.stop.is_set():
            raise ReceiverEnded
    finally:
        stopping.cancel()
        beginning.cancel()


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


async def _start(
    settings: Settings,
    url: str,
    listening: Mapping[socket.socket, bool],
    lock: int | None,
    count: int,
) -> Child:
    words: list[str] = []
    for each, tls in listening.items():
        words += ["--inherited-tls" if tls else "--inherited", str(each.fileno())]
    words += [] if lock is None else ["--lock", str(lock)]
    inherited = [each.fileno() for each in listening] + ([] if lock is None else [lock])
    section = settings.intake
    environment = {
        "POSTROAD_HEALTH_HOST": "127.0.0.1",
        "POSTROAD_HEALTH_PORT": "0",  # the parent answers the probes
        "POSTROAD_INTAKE_RELAY_FROM": str(rules_of(section).relay_from),
        "POSTROAD_INTAKE_MAX_SESSIONS": str(-(-section.max_sessions // count)),
    }
    if section.client_sessions is not None:
        share = -(-section.client_sessions // count)
        environment["POSTROAD_INTAKE_CLIENT_SESSIONS"] = str(share)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroad", "intake", "--queue", url),
        *words,
        stdin=PIPE,
        stdout=PIPE,
        pass_fds=inherited,
        env=os.environ | environment,
    )


async def _is_listening(child: Child) -> bool:
    assert child.stdout is not None
    return await child.stdout.readline() != b""


async def _end(children: list[Child], within: timedelta) -> None:
    """Stop the children, which first finish the mails that they are receiving; kill late ones."""
    if not children:
        return
    for child in children:
        with suppress(ProcessLookupError):
            child.terminate()
    waits = [asyncio.create_task(child.wait()) for child in children]
    _, late = await asyncio.wait(waits, timeout=within.total_seconds())
    if late:
        for child in children:
            with suppress(ProcessLookupError):
                child.kill()
        await asyncio.wait(late)
