"""The console answers what its description says, to what its description allows and to what it
does not: requests drawn by Schemathesis. POSTROAD_CASES=10000 draws more of them than a test run
needs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    positive_data_acceptance,
)

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


@dataclass
class Served:
    """A console over a directory, in a thread of its own."""

    base: str
    headers: dict[str, str]
    known: dict[str, str]
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
                last = await queue.enqueue(mail)
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
            headers = {"Authorization": f"Bearer {secret}"}
            known = {"namespace": "local", "name": "store", "id": str(last)}
            host, port = listening.getsockname()
            found.append(Served(f"http://{host}:{port}", headers, known, document))
            ready.set()
            await serve(server, stop)
            await console.operations.close()


def test_answers_are_those_of_the_description(served: Served) -> None:
    # Without `security`: it would draw other credentials, which those of the test replace.
    without = {key: each for key, each in served.document.items() if key != "security"}
    schema = schemathesis.openapi.from_dict(without)
    operations = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    assert len(operations) >= 23
    share = max(1, CASES // len(operations) // 2)
    counted, statuses = 0, Counter[int]()
    for operation in operations:
        for mode in GenerationMode:

            @settings(
                max_examples=share,
                deadline=None,
                database=None,
                derandomize=CASES == 300,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes minutes
            )
            # Of random names, nearly each request would be for a queue that is not there.
            @given(
                case=operation.as_strategy(generation_mode=mode),
                known=st.sampled_from(("", "namespace name", "namespace name id")),
            )
            def check(case: schemathesis.Case[Any], known: str) -> None:
                nonlocal counted
                counted += 1
                case.path_parameters.update(
                    {
                        each: served.known[each]
                        for each in known.split()
                        if f"{{{each}}}" in case.path
                    }
                )
                if case.path.endswith("{name}/events"):
                    begin_stream(case, served)
                    return
                answer = case.call(base_url=served.base, headers=served.headers)
                statuses[answer.status_code] += 1
                assert answer.status_code < 500, (case.as_curl_command(), answer.text)
                # Of what a schema allows, a queue refuses some: an empty selector, for example.
                excluded: list[Any] = [positive_data_acceptance] if known else []
                sent = parse_qs(urlsplit(answer.request.url or "").query, keep_blank_values=True)
                if not (case.query or {}).keys() <= sent.keys():  # an empty list is not sent
                    excluded.append(negative_data_rejection)
                case.validate_response(answer, excluded_checks=excluded)

            with suppress(Unsatisfiable):  # a path without parameters has no wrong ones
                check()
    assert counted >= share * len(operations)
    print(f"{counted} cases: {dict(sorted(statuses.items()))}")
    assert statuses[200] + statuses[202] + statuses[204] > counted / 20


def begin_stream(case: schemathesis.Case[Any], served: Served) -> None:
    """Look at the beginning of the answer of a path whose stream does not end by itself."""
    sent = case.as_transport_kwargs(base_url=served.base, headers=served.headers)
    with requests.request(**sent, stream=True, timeout=60) as answer:
        assert answer.status_code in (200, 400, 404, 405, 422)
