"""What the API server answers before and after it serves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes import client

from postroad.controller import api_server
from postroad.controller.api import MAIL_QUEUE
from postroad.controller.api_server import ApiServer
from postroad.errors import KubernetesUnavailable

NEW = {"metadata": {"namespace": "mail", "name": "outgoing"}}


class Server(ThreadingHTTPServer):
    """Answers with the statuses given, one a request, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(self.command)
        status, headers = self.server.answers.pop(0) if self.server.answers else (200, {})
        body = json.dumps({"message": "storage is (re)initializing"}).encode()
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815, as the base class names them

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api(server: Server) -> Iterator[ApiServer]:
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_port}"
    api = ApiServer(configuration)
    yield api
    api.close()


async def test_a_server_that_is_still_starting_is_asked_again(
    server: Server, api: ApiServer
) -> None:
    server.answers = [(429, {"Retry-After": "0"})] * 2

    assert await api.create(MAIL_QUEUE, NEW)

    assert server.requests == ["POST"] * 3


async def test_a_server_that_never_has_time_is_unavailable(
    server: Server, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "RETRY_SECONDS", 0.3)
    server.answers = [(429, {"Retry-After": "0"})] * 50

    with pytest.raises(KubernetesUnavailable, match="429 storage is"):
        await api.get(MAIL_QUEUE, "mail", "outgoing")


async def test_a_caller_that_leaves_while_the_server_is_busy_asks_no_more(
    server: Server, api: ApiServer
) -> None:
    server.answers = [(429, {"Retry-After": "1"})]

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await api.create(MAIL_QUEUE, NEW)
    await asyncio.sleep(1)

    assert server.requests == ["POST"]


async def test_a_failure_that_may_have_had_its_effect_is_left_to_the_next_reconcile(
    server: Server, api: ApiServer
) -> None:
    server.answers = [(500, {})]

    with pytest.raises(KubernetesUnavailable):
        await api.create(MAIL_QUEUE, NEW)

    assert server.requests == ["POST"]
