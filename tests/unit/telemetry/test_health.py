"""Probes get the present state of the process; no probe asks a server."""

import asyncio

import pytest

from postroad.errors import InvalidSettings, StoreFailed
from postroad.telemetry import metrics
from postroad.telemetry.health import MAX_CONNECTIONS, HealthServer, Readiness


async def ask(readiness: Readiness, path: str, method: str = "GET") -> tuple[int, str]:
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    head, _, body = (await HealthServer(readiness).respond(request)).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


class Check:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self) -> None:
        if self.error is not None:
            raise self.error


async def test_a_process_is_alive_before_it_is_ready() -> None:
    readiness = Readiness()

    assert await ask(readiness, "/healthz") == (200, "alive\n")
    assert await ask(readiness, "/readyz") == (503, "starting\n")


async def test_a_process_is_ready_when_its_queue_is_open_and_not_while_draining() -> None:
    readiness = Readiness()
    readiness.opened(Check())
    ready = await ask(readiness, "/readyz")
    readiness.draining()

    assert ready == (200, "ready\n")
    assert await ask(readiness, "/readyz") == (503, "draining\n")
    assert (await ask(readiness, "/healthz"))[0] == 200


async def test_a_store_that_stopped_makes_the_process_not_ready() -> None:
    readiness, check = Readiness(), Check()
    check.error = StoreFailed("secret path")
    readiness.opened(check)

    assert await ask(readiness, "/readyz") == (503, "StoreFailed\n")
    check.error = None
    assert await ask(readiness, "/readyz") == (200, "ready\n")


async def test_metrics_are_shown_as_prometheus_reads_them() -> None:
    status, body = await ask(Readiness(), "/metrics")

    assert status == 200
    (attempts,) = metrics.ATTEMPTS.describe()
    assert f"# TYPE {attempts.name}_total counter" in body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/healthz", 405), ("GET", "/healthz?full=1", 200)],
)
async def test_other_requests_are_answered_shortly(method: str, path: str, status: int) -> None:
    assert (await ask(Readiness(), path, method))[0] == status


async def test_a_second_process_on_one_machine_reads_how_to_get_a_port_of_its_own() -> None:
    first, second = HealthServer(Readiness()), HealthServer(Readiness())
    await first.listen("127.0.0.1", 0)
    taken = first.port
    try:
        with pytest.raises(InvalidSettings) as refusal:
            await second.listen("127.0.0.1", taken)
    finally:
        await first.close()

    assert str(taken) in refusal.value.explain()
    assert "POSTROAD_HEALTH_PORT" in refusal.value.explain()


async def test_clients_that_send_nothing_are_few_and_keep_no_probe_waiting() -> None:
    server = HealthServer(Readiness())
    await server.listen("127.0.0.1", 0)
    silent = [
        await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2 * MAX_CONNECTIONS)
    ]

    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    response = await reader.read()
    ended = [reader for reader, _ in silent if reader.at_eof() or reader.exception() is not None]

    assert response.startswith(b"HTTP/1.1 200 ")
    assert len(ended) >= MAX_CONNECTIONS
    for _, each in [*silent, (reader, writer)]:
        each.transport.abort()
    await server.close()
