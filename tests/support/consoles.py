"""Consoles over queues in memory, and clients of them without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from postroad import open_queue
from postroad.adapters.clocks import MachineClock
from postroad.administration.configuration import ConfigurationOf
from postroad.bootstrap.distributed import open_history
from postroad.console.api.access import Console
from postroad.console.api.app import console_app, guarded
from postroad.console.api.guard import Hosts, RequestRate
from postroad.console.api.sessions import Identities, Sessions
from postroad.console.queues import ConsoleQueue, OpenQueues, names_of
from postroad.console.rights import Rights, SessionRights
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.health import Readiness

HOST = "127.0.0.1:8600"
ORIGIN = f"http://{HOST}"
NO_LIMIT = RequestRate(1e9, 10**9)


@dataclass
class RunningConsole:
    """A console, its queues, and a client that has a session by the cookie and sends the console's
    own Origin."""

    console: Console
    queues: Sequence[MailQueue]
    sessions: Sessions
    client: httpx.AsyncClient
    anonymous: httpx.AsyncClient

    @property
    def queue(self) -> MailQueue:
        return self.queues[0]

    def login(self) -> str:
        """Return the secret of another session."""
        secret = self.sessions.redeem(self.sessions.new_link())
        assert secret is not None
        return secret


@asynccontextmanager
async def a_console(
    *urls: str,
    attempt_log: Path | None = None,
    reports: Path | None = None,
    rights: Rights | None = None,
    rate: RequestRate = NO_LIMIT,
    clock: Clock | None = None,
) -> AsyncIterator[RunningConsole]:
    """Run a console over queues, which are created."""
    clock = clock or MachineClock()
    opened = [await open_queue(url, create=True) for url in urls]
    histories = AsyncExitStack()
    queues = OpenQueues(
        [
            ConsoleQueue(
                name,
                queue,
                attempt_log,
                await _configuration(url, histories),
                report=None if reports is None else reports / "index.html",
            )
            for url, name, queue in zip(urls, names_of(urls), opened, strict=True)
        ]
    )
    console = Console.over(queues, rights or SessionRights(), clock)
    readiness, sessions = Readiness(), Sessions(clock.elapsed)
    readiness.opened(lambda: None)
    app = guarded(
        console_app(console, readiness), Identities(sessions), Hosts({HOST}), console, rate
    )
    async with a_client(app) as client, a_client(app) as anonymous:
        running = RunningConsole(console, opened, sessions, client, anonymous)
        client.cookies.set("postroad-console", running.login())
        client.headers["Origin"] = ORIGIN
        try:
            yield running
        finally:
            await console.operations.close()
            await histories.aclose()
            for each in opened:
                await each.close()


async def _configuration(url: str, histories: AsyncExitStack) -> ConfigurationOf | None:
    if url.startswith("embedded:"):
        return None
    return await histories.enter_async_context(open_history(url))


def a_client(app: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url=ORIGIN)
