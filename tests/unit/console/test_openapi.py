"""The console answers what its description says, to what its description allows and to what it
does not: requests drawn by Schemathesis. POSTROAD_CASES=10000 draws more of them than a test run
needs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth

from postroad import Mail, Selector, open_queue
from postroad.adapters.clocks import MachineClock
from postroad.console.api import app as console_app
from postroad.console.api.access import Console
from postroad.console.api.guard import RequestRate
from postroad.console.api.server import ConsoleServer, serve
from postroad.console.queues import ConsoleQueue, OpenQueues, names_of
from postroad.console.rights import SessionRights
from postroad.telemetry.health import Readiness

CASES = int(os.environ.get("POSTROAD_CASES", "300"))

QUEUE = "/api/v1/queues/local/store"


@dataclass
class Served:
    """A console over a directory, in a thread of its own."""

    base: str
    bearer: str
    document: dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "log").mkdir()
    loop, found = asyncio.new_event_loop(), list[Served]()
    stop, ready = asyncio.Event(), threading.Event()
    thread = threading.Thread(
        target=loop.run_until_complete, args=(_serve(folder, found, stop, ready),)
    )
    thread.start()
    assert ready.wait(30)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()
    assert not thread.is_alive()


async def _serve(
    folder: Path, found: list[Served], stop: asyncio.Event, ready: threading.Event
) -> None:
    url = f"embedded://{folder}/store"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with open_queue(url, create=True) as queue:
            for number in range(30):
                mail = Mail(f"a{number}@example.org", ("b@example.net",), b"x", name="n")
                await queue.enqueue(mail)
            await queue.expire(Selector(sender="a1@example.org"))
            queues = OpenQueues([ConsoleQueue(names_of([url])[0], queue, folder / "log")])
            console = Console.over(queues, SessionRights(), MachineClock())
            readiness = Readiness()
            readiness.opened(lambda: None)
            rate = RequestRate(1e9, 10**9)
            server = ConsoleServer(listening, console, readiness, rate)
            secret = server.sessions.redeem(server.sessions.new_link())
            assert secret is not None
            document = console_app.console_app(console, readiness).openapi()
            host, port = listening.getsockname()
            found.append(Served(f"http://{host}:{port}", secret, document))
            ready.set()
            await serve(server, stop)
            await console.operations.close()


def test_answers_are_those_of_the_description(served: Served) -> None:
    schema = schemathesis.openapi.from_dict(served.document)
    operations = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    assert len(operations) >= 19
    share = max(1, CASES // len(operations) // 2)
    counted = 0
    for operation in operations:
        for mode in GenerationMode:

            @settings(
                max_examples=share,
                deadline=None,
                database=None,
                derandomize=CASES == 300,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case[Any]) -> None:
                nonlocal counted
                counted += 1
                answer = case.call(
                    base_url=served.base, headers={"Authorization": f"Bearer {served.bearer}"}
                )
                assert answer.status_code < 500, (case.as_curl_command(), answer.text)
                case.validate_response(answer, excluded_checks=[ignored_auth])

            check()
    assert counted >= share * len(operations)
