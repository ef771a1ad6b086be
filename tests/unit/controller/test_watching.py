"""Kopf watches without end: what the API server refuses, it may allow later."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from itertools import islice

import pytest
from aiohttp import web

from postroad.adapters.kubernetes import kopf_watch
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.kubernetes.kopf_watch import MAX_BACKOFF, watching_settings
from postroad.controller.kubernetes.api import MAIL_QUEUE, Key
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.reads import Indexes
from postroad.errors import KubernetesUnavailable
from support.access_to_kubernetes import access_to
from support.api_over_http import HttpKubernetes, api_over_http
from support.memory.clock import ManualClock
from support.memory.kubernetes.world import KubernetesWorld


def test_no_error_of_the_api_server_ends_the_operator() -> None:
    backoffs = watching_settings(MAIL_QUEUE, "").networking.error_backoffs
    assert isinstance(backoffs, Iterable)

    for _ in range(2):
        seconds = list(islice(backoffs, 1000))
        assert len(seconds) == 1000
        assert (seconds[0], max(seconds), seconds[-1]) == (1.0, MAX_BACKOFF, MAX_BACKOFF)


def test_the_api_server_ends_a_watch_before_the_operator_gives_it_up() -> None:
    settings = watching_settings(MAIL_QUEUE, "")

    assert (settings.watching.server_timeout, settings.watching.client_timeout) == (290, 300)
    assert (settings.watching.connect_timeout, settings.networking.connect_timeout) == (15, 15)
    assert settings.networking.request_timeout == 30


async def followed(api: ApiServer) -> None:
    async with aclosing(api.watch(MAIL_QUEUE)) as events:
        async for _ in events:
            pass


GONE = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}) + "\n"


@pytest.mark.parametrize("line", ["", GONE], ids=["ends", "gone"])
async def test_watches_that_end_at_once_are_spread(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    asked = 0

    async def end_at_once(*_: object) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=line)

    monkeypatch.setattr(HttpKubernetes, "_watched", end_at_once)
    monkeypatch.setattr(kopf_watch, "WATCH_INTERVAL", 3600.0)
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, _):
        api = ApiServer(access_to(url, "t0ken"), "postroad")
        following = asyncio.create_task(followed(api))
        while not asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.4)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()
    assert asked == 1


async def test_lists_that_break_off_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def break_off(_: object, request: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        response = web.StreamResponse(headers={"Content-Length": "10"})
        await response.prepare(request)
        assert request.transport
        request.transport.close()
        return response

    monkeypatch.setattr(HttpKubernetes, "handle", break_off)
    monkeypatch.setattr(kopf_watch, "WATCH_INTERVAL", 3600.0)
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, _):
        api = ApiServer(access_to(url, "t0ken"), "postroad")
        following = asyncio.create_task(followed(api))
        while not asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.4)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()
    assert asked == 1


ITEM = {"metadata": {"name": "x", "namespace": "mail", "uid": "u", "resourceVersion": "7"}}


@pytest.mark.parametrize("endless", ["pages", "list", "line"])
async def test_a_watch_whose_answer_has_no_end_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, endless: str
) -> None:
    async def answered(server: HttpKubernetes, request: web.BaseRequest) -> web.StreamResponse:
        server.requests.append(request.path)
        if "watch" not in request.query and endless != "list":
            more = {"continue": "more"} if endless == "pages" else {}
            metadata = {"resourceVersion": "7", **more}
            return web.json_response({"kind": "L", "metadata": metadata, "items": [ITEM]})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" " * 65536)
        return response

    monkeypatch.setattr(HttpKubernetes, "handle", answered)
    monkeypatch.setattr(kopf_watch, "MAX_PAGES", 20)
    monkeypatch.setattr(kopf_watch, "MAX_LIST", 10**6)
    monkeypatch.setattr(kopf_watch, "MAX_ANSWER", 10**6)
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, server):
        api = ApiServer(access_to(url, "t0ken"), "postroad")
        following = asyncio.create_task(followed(api))
        while "begins anew" not in caplog.text:
            await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()
    assert len(server.requests) <= 21


async def test_a_list_whose_pages_have_no_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    page = {"kind": "MailQueueList", "metadata": {"continue": "more"}, "items": [ITEM]}

    async def answered(*_: object) -> web.Response:
        return web.json_response(page)

    monkeypatch.setattr(HttpKubernetes, "handle", answered)
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, _):
        api = ApiServer(access_to(url, "t0ken"), "postroad")
        with pytest.raises(KubernetesUnavailable, match="more than 1000 pages"):
            await api.list(MAIL_QUEUE)
        await api.close()


@pytest.fixture
def nested_objects() -> Iterator[None]:
    before = sys.getrecursionlimit()
    kopf_watch.read_nested_objects()
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("nested_objects")
@pytest.mark.parametrize(("begin", "end"), [('{"a":', "}"), ("[", "]")])
async def test_an_object_that_nests_as_deeply_as_it_may_breaks_no_watch(
    begin: str, end: str
) -> None:
    levels = kopf_watch.MAX_NESTING - 10
    template = begin * levels + "{}" + end * levels
    metadata = '{"name": "deep", "namespace": "mail", "uid": "u", "resourceVersion": "7"}'
    spec = f'{{"clusterRef": {{"name": "main"}}, "workers": {{"template": {template}}}}}'
    item = f'{{"metadata": {{"generation": 1, {metadata[1:]}, "spec": {spec}}}'
    text = f'{{"kind": "MailQueueList", "apiVersion": "postroad.dev/v1beta1", "items": [{item}]}}'
    indexes = Indexes()
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, server):
        api = ApiServer(access_to(url, "t0ken"), "postroad")
        server.answers = [web.Response(text=text, content_type="application/json")]
        async with aclosing(api.watch(MAIL_QUEUE)) as events:
            event = await anext(events)
        indexes.put(event.object)
        await api.close()

    assert indexes.at(Key("MailQueue", "mail", "deep"))
    assert hash_of(event.object)
