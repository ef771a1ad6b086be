"""Probes get the present state, and do not probe the servers more often than every few seconds."""

from unittest.mock import patch

import pytest

from postroad.errors import InvalidSettings, ViewUnavailable
from postroad.telemetry import health, metrics
from postroad.telemetry.health import HealthServer, Readiness


async def ask(readiness: Readiness, path: str, method: str = "GET") -> tuple[int, str]:
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    head, _, body = (await HealthServer(readiness).respond(request)).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


class Probe:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


async def test_a_process_is_alive_before_it_is_ready() -> None:
    readiness = Readiness()

    assert await ask(readiness, "/healthz") == (200, "alive\n")
    assert await ask(readiness, "/readyz") == (503, "starting\n")


async def test_a_process_is_ready_when_its_queue_answers_and_not_while_draining() -> None:
    readiness = Readiness()
    readiness.opened(Probe())
    ready = await ask(readiness, "/readyz")
    readiness.draining()

    assert ready == (200, "ready\n")
    assert await ask(readiness, "/readyz") == (503, "draining\n")
    assert (await ask(readiness, "/healthz"))[0] == 200


async def test_an_error_of_the_queue_makes_the_process_not_ready_until_it_is_over() -> None:
    readiness, probe = Readiness(), Probe()
    probe.error = ViewUnavailable("secret host")
    readiness.opened(probe)

    assert await ask(readiness, "/readyz") == (503, "ViewUnavailable\n")
    probe.error = None
    with patch.object(health, "PROBE_EVERY_SECONDS", 0):
        assert await ask(readiness, "/readyz") == (200, "ready\n")


async def test_many_probes_make_one_question() -> None:
    readiness, probe = Readiness(), Probe()
    readiness.opened(probe)

    for _ in range(10):
        await ask(readiness, "/readyz")

    assert probe.calls == 1


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
    await first.listen(0)
    taken = first.port
    try:
        with pytest.raises(InvalidSettings) as refusal:
            await second.listen(taken)
    finally:
        await first.close()

    assert str(taken) in refusal.value.explain()
    assert "POSTROAD_HEALTH_PORT" in refusal.value.explain()
