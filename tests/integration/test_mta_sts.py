"""Policies of MTA-STS: from DNS and a web server with a certificate, kept over restarts.
Source: RFC 8461 3, 5."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from postroad.adapters import mta_sts
from postroad.adapters.mta_sts import (
    MAX_POLICY,
    FetchedPolicies,
    PolicyFetcher,
    PolicyFolder,
    PolicyNotFetched,
)
from postroad.errors import InvalidSettings
from postroad.routing.securing import StsMode, StsPolicy
from support.issuing import issue
from support.memory.clock import ManualClock
from support.memory.connections import MemoryResolver

DOMAIN = "d.example"
HOST = f"mta-sts.{DOMAIN}"
AUTHORITY = issue("authority", is_authority=True)
TEXT = "version: STSv1\nmode: enforce\nmx: mx.d.example\nmax_age: 604800\n"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Serves one policy at a time over TLS, and counts how often it is fetched."""

    def __init__(self, folder: Path, name: str = HOST) -> None:
        self.text = TEXT
        self.status, self.headers = 200, {"Content-Type": "text/plain"}
        self.paths: list[str] = []
        self.port = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*issue(name, AUTHORITY).write(folder))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.paths.append(f"{request.headers['Host'].partition(':')[0]}{request.path}")
        return web.Response(text=None, body=self.text, status=self.status, headers=self.headers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        runner = web.ServerRunner(web.Server(self._answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._context)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WebServer]:
    made = WebServer(tmp_path)
    async with made.running():
        yield made


def dns(record: str | None = "1") -> MemoryResolver:
    made = MemoryResolver()
    made.add(HOST, "127.0.0.1")
    if record is not None:
        made.add_text(f"_mta-sts.{DOMAIN}", f"v=STSv1; id={record};")
    return made


@pytest.fixture
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return AUTHORITY.write(tmp_path_factory.mktemp("authority"))[0]


class World:
    """One process after the other, which share a folder."""

    def __init__(self, server: WebServer, authorities: Path, folder: Path) -> None:
        self.clock = ManualClock()
        self._server, self._authorities, self.folder = server, authorities, folder / "kept"
        self.restart()

    def restart(self) -> None:
        self._process(dns())

    def _process(self, resolver: MemoryResolver) -> None:
        fetcher = PolicyFetcher(resolver, lambda _: True, self._authorities, self._server.port)
        folder = PolicyFolder(self.folder)
        self.policies = FetchedPolicies(resolver, fetcher.fetch, self.clock, folder)

    def publish(self, record: str | None) -> None:
        self.policies._resolver = dns(record)

    async def hosts(self) -> tuple[str, ...] | None:
        found = await self.policies.find(DOMAIN)
        return None if found.policy is None else found.policy.exchangers


@pytest.fixture
def world(server: WebServer, authorities: Path, tmp_path: Path) -> World:
    return World(server, authorities, tmp_path)


OURS = ("mx.d.example",)


async def test_a_policy_is_fetched_once(world: World, server: WebServer) -> None:
    found = await asyncio.gather(*(world.policies.find(DOMAIN) for _ in range(5)))

    assert {each.policy for each in found} == {StsPolicy(StsMode.ENFORCE, OURS, timedelta(days=7))}
    assert server.paths == [f"{HOST}/.well-known/mta-sts.txt"]
    assert "enforce" in found[0].words
    assert await world.hosts() == OURS
    assert len(server.paths) == 1


async def test_a_domain_without_a_record_is_not_asked(world: World, server: WebServer) -> None:
    world.publish(None)

    assert await world.hosts() is None
    assert server.paths == []


async def test_a_policy_survives_a_restart_and_what_hides_it(
    world: World, server: WebServer
) -> None:
    assert await world.hosts() == OURS
    server.status = 404
    world.restart()
    world.publish(None)
    assert await world.hosts() == OURS
    world.publish("2")
    assert await world.hosts() == OURS
    await world.clock.advance(timedelta(days=7) - timedelta(seconds=1))
    assert await world.hosts() == OURS
    await world.clock.advance(timedelta(seconds=1))
    assert await world.hosts() is None
    world.restart()
    assert await world.hosts() is None


async def test_a_new_record_brings_the_new_policy(world: World, server: WebServer) -> None:
    await world.hosts()
    server.text = TEXT.replace("mx.d", "mx2.d")
    assert await world.hosts() == OURS
    world.publish("2")
    assert await world.hosts() == ("mx2.d.example",)
    world.restart()
    world.publish("2")
    server.status = 500
    assert await world.hosts() == ("mx2.d.example",)
    assert len(server.paths) == 2


async def test_a_policy_in_use_is_renewed_every_day(world: World, server: WebServer) -> None:
    for _ in range(10):
        assert await world.hosts() == OURS
        await world.clock.advance(timedelta(hours=25))

    assert len(server.paths) == 10


async def test_a_fetch_that_failed_is_repeated_after_five_minutes(
    world: World, server: WebServer
) -> None:
    server.status = 404
    for seconds in (0, 1, 298):
        await world.clock.advance(timedelta(seconds=seconds))
        assert await world.hosts() is None
    assert len(server.paths) == 1
    server.status = 200
    await world.clock.advance(timedelta(seconds=1))
    assert await world.hosts() == OURS


BAD = {
    "missing": {"status": 404},
    "redirect": {"status": 301, "headers": {"Location": f"https://{HOST}/other"}},
    "no content": {"status": 204},
    "html": {"headers": {"Content-Type": "text/html"}},
    "large": {"text": TEXT + "x: y\n" * MAX_POLICY},
    "no policy": {"text": "hello"},
    "not UTF-8": {"text": b"version: STSv1\n\xff"},
}


@pytest.mark.parametrize("wrong", list(BAD.values()), ids=list(BAD))
async def test_what_is_no_policy_is_none(
    world: World, server: WebServer, wrong: dict[str, object]
) -> None:
    for name, value in wrong.items():
        setattr(server, name, value)

    found = await world.policies.find(DOMAIN)
    assert found.policy is None
    assert found.words.startswith("none: ")
    assert "hello" not in found.words
    assert server.paths == [f"{HOST}/.well-known/mta-sts.txt"]


async def test_authorities_that_replace_others_verify_the_next_fetch(
    server: WebServer, authorities: Path, tmp_path: Path
) -> None:
    file, others = tmp_path / "ca.pem", tmp_path / "others"
    others.mkdir()
    file.write_bytes(issue("others", is_authority=True).write(others)[0].read_bytes())
    fetcher = PolicyFetcher(dns(), lambda _: True, file, server.port)
    with pytest.raises(PolicyNotFetched, match="certificate is not accepted"):
        await fetcher.fetch(DOMAIN)
    file.write_text("none")
    with pytest.raises(PolicyNotFetched, match="cannot be read"):
        await fetcher.fetch(DOMAIN)
    file.write_bytes(authorities.read_bytes())

    await fetcher.fetch(DOMAIN)


async def test_a_web_server_without_the_right_certificate_has_no_policy(
    authorities: Path, tmp_path: Path
) -> None:
    named = WebServer(tmp_path, "www.d.example")
    async with named.running():
        with pytest.raises(PolicyNotFetched, match="certificate is not accepted"):
            await PolicyFetcher(dns(), lambda _: True, authorities, named.port).fetch(DOMAIN)
        with pytest.raises(PolicyNotFetched, match="certificate is not accepted"):
            await PolicyFetcher(dns(), lambda _: True, None, named.port).fetch(DOMAIN)
    assert named.paths == []


async def test_a_web_server_is_asked_where_mail_may_go_alone(
    server: WebServer, authorities: Path
) -> None:
    """The domain chooses the address: it must not lead into this network."""
    fetcher = PolicyFetcher(dns(), lambda address: address != "127.0.0.1", authorities, server.port)
    with pytest.raises(PolicyNotFetched):
        await fetcher.fetch(DOMAIN)
    assert server.paths == []


async def test_a_web_server_that_is_away_or_silent_costs_a_bounded_time(
    authorities: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    monkeypatch.setattr("postroad.adapters.mta_sts.TIMEOUT", timedelta(milliseconds=50))
    with pytest.raises(PolicyNotFetched, match="no answer"):
        await PolicyFetcher(dns(), lambda _: True, authorities, port).fetch(DOMAIN)
    silent.close()
    with pytest.raises(PolicyNotFetched):
        await PolicyFetcher(dns(), lambda _: True, authorities, port).fetch(DOMAIN)


async def test_damaged_files_count_as_absent(world: World, server: WebServer) -> None:
    await world.hosts()
    (kept,) = world.folder.iterdir()
    stored = json.loads(kept.read_text())
    huge = json.dumps(stored | {"max_age_s": 10**30})
    for text in (
        "",
        "{",
        "[]",
        huge,
        json.dumps(stored | {"mode": "x"}),
        json.dumps({"domain": 1}),
    ):
        kept.write_text(text)
        world.restart()
        assert await world.hosts() == OURS
    kept.write_text(json.dumps(stored | {"domain": "other.example"}))
    assert PolicyFolder(world.folder).read(world.clock.now()) == {}
    kept.write_text(json.dumps(stored | {"later": "field"}))
    assert list(PolicyFolder(world.folder).read(world.clock.now())) == [DOMAIN]


async def test_names_of_a_stranger_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mta_sts, "MAX_DOMAINS", 3)
    resolver = MemoryResolver()

    async def fetch(domain: str) -> StsPolicy:
        return StsPolicy(StsMode.ENFORCE, (f"mx.{domain}",), timedelta(days=7))

    clock = ManualClock()
    found = FetchedPolicies(resolver, fetch, clock, PolicyFolder(tmp_path))
    for number in range(8):
        resolver.add_text(f"_mta-sts.d{number}.example", "v=STSv1; id=1;")
        await found.find(f"d{number}.example")

    kept = PolicyFolder(tmp_path).read(clock.now())
    assert set(kept) == {"d5.example", "d6.example", "d7.example"}
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettings):
        PolicyFolder(tmp_path / "file" / "below")
