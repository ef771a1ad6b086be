"""The client of API servers: before they serve, when they are away, and as which user."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from kubernetes.config import ConfigException
from prometheus_client import REGISTRY

from postroad.adapters.kubernetes import api_requests
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.errors import KubernetesRefused, KubernetesUnavailable
from postroad.ports.kubernetes import Object
from support.access_to_kubernetes import access_to
from support.api_over_http import HttpKubernetes, api_over_http
from support.memory.clock import ManualClock
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import mail_queue

NEW = mail_queue("mail")


def busy(seconds: int) -> web.Response:
    headers = {"Retry-After": str(seconds)}
    body = {"message": "storage is (re)initializing"}
    return web.json_response(body, status=429, headers=headers)


@pytest.fixture
async def served() -> AsyncIterator[tuple[ApiServer, HttpKubernetes]]:
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, server):
        api = ApiServer(access_to(url, "t0ken"), "postroad")
        yield api, server
        await api.close()


@pytest.fixture
def api(served: tuple[ApiServer, HttpKubernetes]) -> ApiServer:
    return served[0]


@pytest.fixture
def server(served: tuple[ApiServer, HttpKubernetes]) -> HttpKubernetes:
    return served[1]


def methods(server: HttpKubernetes) -> list[str]:
    return [each.split()[0] for each in server.requests]


async def test_a_server_that_is_still_starting_is_asked_again(
    server: HttpKubernetes, api: ApiServer
) -> None:
    server.answers = [busy(0), busy(0)]

    assert await api.create(MAIL_QUEUE, NEW)

    assert methods(server) == ["POST"] * 3


async def test_a_server_that_never_has_time_is_unavailable(
    server: HttpKubernetes, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_requests, "RETRY_SECONDS", 0.3)
    server.answers = [busy(0) for _ in range(50)]

    with pytest.raises(KubernetesUnavailable, match="429 storage is"):
        await api.get(MAIL_QUEUE, "mail", "outgoing")


async def test_a_caller_that_leaves_while_the_server_is_busy_asks_no_more(
    server: HttpKubernetes, api: ApiServer
) -> None:
    server.answers = [busy(0)]

    creation = asyncio.create_task(api.create(MAIL_QUEUE, NEW))
    while not server.requests:
        await asyncio.sleep(0.01)
    creation.cancel()
    await asyncio.sleep(0.2)  # twice the least time until a repetition

    assert methods(server) == ["POST"]


async def test_a_watch_that_its_reader_left_open_ends_with_the_client(
    server: HttpKubernetes, api: ApiServer, recwarn: pytest.WarningsRecorder
) -> None:
    """As Kopf leaves a watch that it stops between two events."""
    session = api.open_session()
    url = f"{api.access.address}{MAIL_QUEUE.prefix}/{MAIL_QUEUE.plural}?watch=true"
    ended = await session.get(f"{api.access.address}/api")
    await ended.read()
    was_ended = weakref.ref(ended)
    watch = await session.get(url)
    del ended
    kept: list[object] = [watch]
    kept.append(kept)  # a cycle, as a task and its traceback are: the collector decides the order
    gc.collect()
    assert was_ended() is None, "only open ones are kept"
    assert not watch.closed

    await session.close()
    await api.close()
    del watch, kept
    gc.collect()

    assert not recwarn.list


async def test_a_failure_that_may_have_had_its_effect_is_left_to_the_next_reconcile(
    server: HttpKubernetes, api: ApiServer
) -> None:
    server.answers = [web.json_response({"message": "etcd has no leader"}, status=500)]

    with pytest.raises(KubernetesUnavailable):
        await api.create(MAIL_QUEUE, NEW)

    assert methods(server) == ["POST"]


async def test_an_apply_that_can_never_succeed_is_refused(
    server: HttpKubernetes, api: ApiServer
) -> None:
    message = "failed to create typed patch object: .spec.sizes: field not declared in schema"
    server.answers = [web.json_response({"message": message}, status=500)]

    with pytest.raises(KubernetesRefused, match="field not declared"):
        await api.apply(MAIL_QUEUE, NEW)


@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("body", ["<html>busy</html>", "null", '["busy"]', '{"items":', "\xff"])
async def test_what_is_no_answer_of_an_api_server_is_taken_for_none(
    server: HttpKubernetes, api: ApiServer, status: int, body: str
) -> None:
    """A load balancer answers for the API servers behind it, which are away."""
    server.answers = [
        web.Response(status=status, body=body.encode("latin-1"), content_type="application/json")
    ]

    with pytest.raises(KubernetesUnavailable):
        await api.list(MAIL_QUEUE)


OTHER_ANSWERS: tuple[Object, ...] = (
    {},
    {"status": "ok"},
    {"kind": "Status", "status": "Failure"},
    {"kind": "MailQueueList", "items": 5},
    {"kind": "MailQueueList", "items": [{}]},
    {"kind": "MailQueueList", "items": ["x"]},
    {"kind": "MailQueueList", "items": [{"metadata": None}]},
    {"kind": "Status", "items": None, "resources": [{}]},
    {"metadata": {"name": "outgoing"}, "status": "ok", "resources": ["x"]},
)
"""JSON that an API server does not answer with."""


@pytest.mark.parametrize("answer", OTHER_ANSWERS, ids=str)
@pytest.mark.parametrize("what", ["get", "list", "uids", "serves", "may", "create", "apply"])
async def test_json_of_another_server_is_an_error_with_a_name(
    server: HttpKubernetes, api: ApiServer, what: str, answer: Object
) -> None:
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: api.get(MAIL_QUEUE, "mail", "outgoing"),
        "list": lambda: api.list(MAIL_QUEUE),
        "uids": lambda: api.uids(MAIL_QUEUE),
        "serves": lambda: api.serves(MAIL_QUEUE),
        "may": lambda: api.may("list", MAIL_QUEUE),
        "create": lambda: api.create(MAIL_QUEUE, NEW),
        "apply": lambda: api.apply(MAIL_QUEUE, NEW),
    }
    server.answers = [web.json_response(answer)]

    with pytest.raises(KubernetesUnavailable, match="none of a Kubernetes API server"):
        await requests[what]()


async def test_a_pod_without_a_token_for_a_moment_asks_again_later(api: ApiServer) -> None:
    """The kubelet writes a new file."""

    def renew(_: object) -> None:
        raise ConfigException("Token file exists but empty.")

    api.access._configuration.refresh_api_key_hook = renew  # type: ignore[assignment]

    with pytest.raises(KubernetesUnavailable, match="no token now"):
        await api.get(MAIL_QUEUE, "mail", "outgoing")


async def test_a_server_that_is_away_is_unavailable() -> None:
    api = ApiServer(access_to("http://127.0.0.1:9"), "postroad")

    with pytest.raises(KubernetesUnavailable, match="does not answer"):
        await api.get(MAIL_QUEUE, "mail", "outgoing")
    await api.close()


async def test_a_server_that_takes_too_long_is_unavailable(
    server: HttpKubernetes, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_requests, "TIMEOUT_SECONDS", 0.1)
    watch = {"watch": "true"}

    with pytest.raises(KubernetesUnavailable, match="TimeoutError"):
        await api.call("GET", f"{MAIL_QUEUE.prefix}/mailqueues", query=watch)


async def test_every_request_proves_who_the_operator_is(
    server: HttpKubernetes, api: ApiServer
) -> None:
    """Those of Kopf too, which has a session of its own over the same connections."""
    await api.get(MAIL_QUEUE, "mail", "outgoing")
    async with api.open_session() as session:
        await session.get(f"{api.access.address}/apis")
    await api.get(MAIL_QUEUE, "mail", "outgoing")

    assert server.authorizations == {"Bearer t0ken"}
    assert len(server.requests) == 3


async def test_every_request_is_counted_by_its_resource(
    server: HttpKubernetes, api: ApiServer
) -> None:
    """Those of Kopf too, and each that a busy server refused."""

    def counted(method: str, resource: str) -> float:
        labels = {"method": method, "resource": resource}
        return REGISTRY.get_sample_value("postroad_kubernetes_requests_total", labels) or 0.0

    before = counted("POST", "mailqueues"), counted("PUT", "mailqueues/status"), counted("GET", "")
    server.answers = [busy(0)]
    created = await api.create(MAIL_QUEUE, NEW)
    await api.replace_status(MAIL_QUEUE, {**created, "status": {"size": 0}})
    async with api.open_session() as session:
        await session.get(f"{api.access.address}/apis")

    after = counted("POST", "mailqueues"), counted("PUT", "mailqueues/status"), counted("GET", "")
    assert [now - was for now, was in zip(after, before, strict=True)] == [2, 1, 1]


@pytest.mark.parametrize("status", [200, 409, 429, 500])
@pytest.mark.parametrize("is_compressed", [False, True], ids=["as it is", "compressed"])
async def test_an_answer_that_is_too_large_is_not_kept(
    server: HttpKubernetes, api: ApiServer, status: int, *, is_compressed: bool
) -> None:
    answer = web.Response(status=status, body=b" " * (api_requests.MAX_ANSWER + 1))
    if is_compressed:
        answer.enable_compression(web.ContentCoding.gzip)
    server.answers = [answer]

    with pytest.raises(KubernetesUnavailable, match="more than 16777216 octets"):
        await api.get(MAIL_QUEUE, "mail", "outgoing")

    assert await api.get(MAIL_QUEUE, "mail", "outgoing") is None


async def test_objects_too_large_for_one_answer_come_in_several(
    server: HttpKubernetes, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who makes objects as large as they may be holds up no list of others."""
    names = [f"queue-{number:02}" for number in range(25)]
    large = {"annotations": {"text": "x" * 1000}}
    for name in names:
        queue = mail_queue("mail", name)
        await api.create(MAIL_QUEUE, {**queue, "metadata": {**queue["metadata"], **large}})
    monkeypatch.setattr(api_requests, "MAX_ANSWER", 20_000)
    server.requests.clear()

    found = await api.list(MAIL_QUEUE)

    assert [each["metadata"]["name"] for each in found] == names
    assert methods(server) == ["GET"] * 4
    assert len(await api.uids(MAIL_QUEUE)) == 25

    monkeypatch.setattr(api_requests, "MAX_ANSWER", 5_000)
    with pytest.raises(KubernetesUnavailable, match="more than 5000 octets"):
        await api.list(MAIL_QUEUE)


async def test_an_answer_that_nests_too_deeply_is_no_object(
    server: HttpKubernetes, api: ApiServer
) -> None:
    server.answers = [web.Response(text="[" * 200_000)]

    with pytest.raises(KubernetesUnavailable, match="200, and no object"):
        await api.get(MAIL_QUEUE, "mail", "outgoing")
