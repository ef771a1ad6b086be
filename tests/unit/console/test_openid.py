"""Logins of browsers at an issuer: what it is asked, which of its answers begin a session, and that
others do not. The issuer is one of this test, which answers as each test wants.

Source: OpenID Connect Core 1.0 3.1; RFC 7636 4; RFC 9700 2.1, 4."""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from postroad.console import openid
from postroad.console.api.guard import MAX_COOKIES, RequestRate
from postroad.console.openid import (
    DOCUMENT_LIFETIME,
    LOGIN_LIFETIME,
    MAX_EXCHANGES,
    OpenIdClient,
)
from postroad.console.reviewed_rights import ANSWER_LIFETIME
from support.consoles import NO_LIMIT
from support.issuing import issue
from support.memory.clock import ManualClock
from support.reviewed_users import (
    VIEWER,
    MemoryAccessReviews,
    ReviewedConsole,
    a_reviewed_console,
)

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ORIGIN = "http://127.0.0.1:8600"
PROXIED = {"Host": "console.example.org"}
BROWSER = {"Accept": "text/html"}
CLIENT = "console of mail"


class Issuer:
    """Answers each code once, with tokens of alice. `claims` replace those of a token, or leave
    them out (None); `configuration` those of its document; `answer`: another one than a token;
    `seconds`: how long an answer takes; `peak`: exchanges that were under way together."""

    def __init__(self, reviews: MemoryAccessReviews) -> None:
        self.reviews, self.url = reviews, ""
        self.claims: dict[str, Any] = {}
        self.configuration: dict[str, Any] = {}
        self.answer: Any = None
        self.nonce = ""
        self.asked: list[tuple[dict[str, str], str]] = []
        self.seconds, self.under_way, self.peak = 0.0, 0, 0

    async def publish(self, _: web.Request) -> web.Response:
        usual = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "scopes_supported": ["openid", "groups", "offline_access"],
        }
        return web.json_response(usual | self.configuration)

    async def redirect(self, _: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"{self.url}/token")

    async def hang(self, _: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def exchange(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        is_known = any(form["code"] == each["code"] for each, _ in self.asked)
        self.asked.append((form, request.headers.get("Authorization", "")))
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        await asyncio.sleep(self.seconds)
        self.under_way -= 1
        if is_known or form["code"] == "made up":
            return web.json_response({"error": "invalid_grant"}, status=400)
        if self.answer is not None:
            return web.json_response(self.answer)
        usual = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "alice",
            "exp": int(time.time()) + 600,
            "nonce": self.nonce,
        }
        claims = {name: each for name, each in (usual | self.claims).items() if each is not None}
        token = jwt.encode(claims, KEY, "RS256")
        if claims["sub"] == "alice":
            self.reviews.tokens[token] = "alice", ""
        return web.json_response({"id_token": token, "token_type": "Bearer"})


@asynccontextmanager
async def logins_at_an_issuer(
    folder: Path, clock: ManualClock | None = None, secret: str = "", rate: RequestRate = NO_LIMIT
) -> AsyncIterator[tuple[Issuer, ReviewedConsole]]:
    reviews = MemoryAccessReviews()
    reviews.give("alice", "a", *VIEWER)
    issuer, app, issued = Issuer(reviews), web.Application(), issue("localhost")
    app.router.add_get("/.well-known/openid-configuration", issuer.publish)
    app.router.add_post("/token", issuer.exchange)
    app.router.add_post("/redirecting", issuer.redirect)
    app.router.add_post("/hanging", issuer.hang)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issued.write(folder))
    (folder / "ca.crt").write_bytes(issued.certificate.public_bytes(Encoding.PEM))
    if secret:
        (folder / "clientSecret").write_text(f"{secret}\n")
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # the request that hangs
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    issuer.url = f"https://localhost:{port}"
    client = OpenIdClient(issuer.url, CLIENT, folder)
    try:
        async with a_reviewed_console(reviews, clock=clock, rate=rate, issuer=client) as console:
            yield issuer, console
    finally:
        await runner.cleanup()


async def begin(
    issuer: Issuer, console: ReviewedConsole, to: str = "", headers: dict[str, str] | None = None
) -> dict[str, str]:
    """Begin a login in the browser, and return what the issuer is asked."""
    sent = await console.client.get("/login", params={"to": to}, headers=headers)
    assert sent.status_code == 303, sent.text
    place = urlsplit(sent.headers["location"])
    assert f"{place.scheme}://{place.netloc}{place.path}" == f"{issuer.url}/authorize"
    asked = {name: each for name, (each,) in parse_qs(place.query).items()}
    issuer.nonce = asked["nonce"]
    return asked


async def come_back(console: ReviewedConsole, **answer: str) -> httpx.Response:
    return await console.client.get("/login/callback", params=answer, headers=BROWSER)


def has_session(console: ReviewedConsole) -> bool:
    return "postroad-console" in console.client.cookies


async def test_a_browser_that_comes_back_from_the_issuer_has_the_rights_of_its_user(
    tmp_path: Path,
) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        asked = await begin(issuer, console, "/queues/a/outgoing/mails?domain=x.example")
        challenge, state = asked.pop("code_challenge"), asked.pop("state")
        assert len(state) >= 43
        assert len(asked.pop("nonce")) >= 43
        assert asked == {
            "response_type": "code",
            "client_id": CLIENT,
            "redirect_uri": f"{ORIGIN}/login/callback",
            "scope": "openid groups",
            "code_challenge_method": "S256",
        }
        page = await come_back(console, code="c0de", state=state)

        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert 'content="0;url=/queues/a/outgoing/mails?domain=x.example"' in page.text
        ((form, authorization),) = issuer.asked
        digest = sha256(form.pop("code_verifier").encode()).digest()
        assert urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
        assert authorization == ""
        assert form == {
            "grant_type": "authorization_code",
            "code": "c0de",
            "redirect_uri": f"{ORIGIN}/login/callback",
            "client_id": CLIENT,
        }
        found = await console.client.get("/api/v1/queues/a/outgoing")
        assert found.status_code == 200
        assert (await console.client.get("/api/v1/queues/b/outgoing")).status_code == 404


@pytest.mark.parametrize(("headers", "is_secured"), [({}, False), (PROXIED, True)])
async def test_cookies_of_a_login_are_short_and_for_the_console_alone(
    tmp_path: Path, headers: dict[str, str], is_secured: bool
) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        sent = await console.client.get("/login", headers=headers)
        asked = parse_qs(urlsplit(sent.headers["location"]).query)
        issuer.nonce = asked["nonce"][0]
        own = "https://console.example.org" if is_secured else ORIGIN
        assert asked["redirect_uri"] == [f"{own}/login/callback"]
        login = sent.headers["set-cookie"]
        cookie = login.partition(";")[0]
        answer = {"code": "c0de", "state": asked["state"][0]}
        console.client.cookies.clear()
        page = await console.client.get(
            "/login/callback", params=answer, headers={**headers, "Cookie": cookie}
        )
        ended, session = page.headers.get_list("set-cookie")

        for each, site, seconds in (
            (login, "lax", 600),
            (ended, "strict", 0),
            (session, "strict", 3600),
        ):
            parts = each.lower().split("; ")
            assert {"httponly", f"samesite={site}", f"max-age={seconds}", "path=/"} <= set(parts)
            assert ("secure" in parts) == is_secured
            assert not any(part.startswith("domain=") for part in parts)
            assert each.startswith("__Host-") == is_secured
        console.client.cookies.clear()
        pair = session.partition(";")[0]
        for given, status in ((pair, 200), (pair.removeprefix("__Host-"), 401)):
            found = await console.client.get("/", headers={**headers, "Cookie": given})
            assert found.status_code == (status if is_secured else 200), given


async def test_a_client_with_a_secret_sends_it_as_the_issuer_wants(tmp_path: Path) -> None:
    async with logins_at_an_issuer(tmp_path, secret="s:c r%t") as (issuer, console):
        asked = await begin(issuer, console)
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 200
        form, authorization = issuer.asked.pop()
        assert b64decode(authorization.removeprefix("Basic ")) == b"console+of+mail:s%3Ac+r%25t"
        assert "client_secret" not in form

    async with logins_at_an_issuer(tmp_path, secret="s:c r%t") as (issuer, console):
        issuer.configuration = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        asked = await begin(issuer, console)
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 200
        form, authorization = issuer.asked.pop()
        assert (form["client_secret"], authorization) == ("s:c r%t", "")


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": None},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"nonce": "of another login"},
        {"nonce": None},
        {"nonce": "\ud800"},
        {"iss": "https://issuer.example"},
        {"exp": 1},
        {"exp": None},
        {"sub": "mallory"},  # whose signature the API server refuses
    ],
)
async def test_a_token_that_does_not_answer_the_login_begins_no_session(
    tmp_path: Path, claims: dict[str, Any]
) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        issuer.claims = claims
        asked = await begin(issuer, console)
        refused = await come_back(console, code="c", state=asked["state"])
        assert refused.status_code == 401
        assert 'href="/login' in refused.text
        assert len(issuer.asked) == 1
        assert not has_session(console)


@pytest.mark.parametrize("answer", [{"error": "invalid_grant"}, {"id_token": 7}, [], "x" * 600_000])
async def test_an_answer_without_a_token_begins_no_session(tmp_path: Path, answer: Any) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        issuer.answer = answer
        asked = await begin(issuer, console)
        refused = await come_back(console, code="c", state=asked["state"])
        assert refused.status_code in (401, 503)
        assert not has_session(console)


async def test_an_answer_is_that_to_the_login_of_its_browser_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with logins_at_an_issuer(tmp_path, clock) as (issuer, console):
        client = console.client
        asked = await begin(issuer, console)
        cookie = client.cookies["postroad-login"]
        client.cookies.clear()  # as in the browser of a victim who was given the link
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 401
        client.cookies.set("postroad-login", cookie)
        assert (await come_back(console, code="c", state="x" * 43)).status_code == 401
        changed = f"{cookie[:99]}{'AB'[cookie[99] == 'A']}{cookie[100:]}"
        for other in (changed, cookie[:99], r'"\351"'):
            client.cookies.set("postroad-login", other)
            assert (await come_back(console, code="c", state=asked["state"])).status_code == 401
        client.cookies.clear()
        assert issuer.asked == [], "no code of theirs was redeemed"

        client.cookies.set("postroad-login", cookie)
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 200
        client.cookies.clear()
        client.cookies.set("postroad-login", cookie)
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 401
        assert (await come_back(console, code="d", state=asked["state"])).status_code == 200
        client.cookies.clear()

        await begin(issuer, console)
        issuer.nonce = asked["nonce"]
        asked = await begin(issuer, console)
        clock.jump(LOGIN_LIFETIME + timedelta(seconds=1))
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 401
        asked = await begin(issuer, console)
        refused = await come_back(console, state=asked["state"], error="<b>access_denied</b>")
        assert refused.status_code == 401
        assert "&lt;b&gt;access_denied" in refused.text
        assert not has_session(console)


@pytest.mark.parametrize(
    "to",
    [
        "//evil.example",
        "https://evil.example/queues/",
        "/queues/a;url=//x",
        "/queues/a\r\nX: y",
        "/queues/..?token=x",  # which a browser takes for another user's link, `/?token=x`
        "/queues/a/.%2E/%2e./?token=x",
    ],
)
async def test_a_login_leads_to_pages_of_the_console_alone(tmp_path: Path, to: str) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        asked = await begin(issuer, console, to)
        page = await come_back(console, code="c", state=asked["state"])
        assert 'content="0;url=/"' in page.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "https://issuer.example"},
        {"authorization_endpoint": "http://issuer.example/"},
        {"authorization_endpoint": "https://\ud800/"},
        {"authorization_endpoint": "https://issuer.example/\r\nSet-Cookie: a=b"},
        {"token_endpoint": None},
        {"token_endpoint_auth_methods_supported": 5},
        {"scopes_supported": 5},
    ],
)
async def test_an_issuer_whose_configuration_is_not_its_own_is_not_used(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        issuer.configuration = wrong
        assert (await console.client.get("/login")).status_code == 503
        issuer.configuration = {}
        await begin(issuer, console)


async def test_a_redirect_of_the_issuer_gets_neither_code_nor_secret(tmp_path: Path) -> None:
    async with logins_at_an_issuer(tmp_path, secret="s") as (issuer, console):
        issuer.configuration = {"token_endpoint": f"{issuer.url}/redirecting"}
        asked = await begin(issuer, console)
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 503
        assert issuer.asked == []
        assert not has_session(console)


async def test_an_issuer_that_hangs_is_waited_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openid, "REQUEST_SECONDS", 0.5)
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        issuer.configuration = {"token_endpoint": f"{issuer.url}/hanging"}
        asked = await begin(issuer, console)
        async with asyncio.timeout(20):
            assert (await come_back(console, code="c", state=asked["state"])).status_code == 503


async def test_what_an_issuer_publishes_is_asked_for_again_after_its_lifetime(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with logins_at_an_issuer(tmp_path, clock) as (issuer, console):
        assert (await begin(issuer, console))["scope"] == "openid groups"
        issuer.configuration = {"scopes_supported": ["openid", "email"]}
        assert (await begin(issuer, console))["scope"] == "openid groups"
        clock.jump(DOCUMENT_LIFETIME)
        assert (await begin(issuer, console))["scope"] == "openid email"


async def test_an_issuer_without_a_known_authority_is_not_used(tmp_path: Path) -> None:
    async with logins_at_an_issuer(tmp_path) as (_, console):
        other = issue("localhost").certificate
        (tmp_path / "ca.crt").write_bytes(other.public_bytes(Encoding.PEM))
        assert (await console.client.get("/login")).status_code == 503


async def test_a_session_ends_by_a_logout_of_the_consoles_own_page(tmp_path: Path) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        client = console.client
        asked = await begin(issuer, console)
        await come_back(console, code="c", state=asked["state"])
        secret = client.cookies["postroad-console"]
        assert 'action="/logout"' in (await client.get("/", headers=BROWSER)).text
        elsewhere = await client.post("/logout", headers={"Origin": "https://evil.example"})
        assert (elsewhere.status_code, (await client.get("/")).status_code) == (403, 200)
        ended = await client.post("/logout", headers={"Origin": ORIGIN})
        assert (ended.status_code, ended.headers["location"]) == (303, "/")
        assert not has_session(console)
        client.cookies.set("postroad-console", secret)
        page = await client.get("/queues/a/outgoing?live=true", headers=BROWSER)
        assert page.status_code == 401
        assert 'href="/login?to=%2Fqueues%2Fa%2Foutgoing"' in page.text


async def test_a_session_ends_with_the_token_of_its_login(tmp_path: Path) -> None:
    clock = ManualClock()
    async with logins_at_an_issuer(tmp_path, clock) as (issuer, console):
        asked = await begin(issuer, console)
        await come_back(console, code="c", state=asked["state"])
        path = "/api/v1/queues/a/outgoing"
        assert (await console.client.get(path)).status_code == 200
        issuer.reviews.tokens.clear()
        clock.jump(ANSWER_LIFETIME)
        assert (await console.client.get(path)).status_code == 401


async def test_strangers_without_end_keep_no_user_from_a_login(tmp_path: Path) -> None:
    rate = RequestRate(per_second=0.001, burst=5)
    async with logins_at_an_issuer(tmp_path, rate=rate) as (issuer, console):
        asked = await begin(issuer, console)
        cookie = console.client.cookies["postroad-login"]
        console.client.cookies.clear()
        for _ in range(20):
            theirs = await begin(issuer, console)
            assert (await come_back(console, code="made up", state="x" * 43)).status_code == 401
            await console.get("made up", "/")
        issuer.seconds, issuer.nonce = 0.3, asked["nonce"]
        answer = {"code": "made up", "state": theirs["state"]}
        strangers = [
            asyncio.create_task(come_back(console, **answer)) for _ in range(2 * MAX_EXCHANGES)
        ]
        await asyncio.sleep(0)
        console.client.cookies.clear()
        console.client.cookies.set("postroad-login", cookie)
        assert (await come_back(console, code="c", state=asked["state"])).status_code == 200
        assert {each.status_code for each in await asyncio.gather(*strangers)} <= {401, 503}
        assert 1 < issuer.peak <= MAX_EXCHANGES


async def test_an_exchange_waits_a_bounded_time_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openid, "MAX_EXCHANGES", 0)
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        asked = await begin(issuer, console)
        monkeypatch.setattr(openid, "REQUEST_SECONDS", 0.1)
        async with asyncio.timeout(60):
            waited = await come_back(console, code="c", state=asked["state"])
        assert waited.status_code == 503
        assert issuer.asked == []


@pytest.mark.parametrize(("characters", "is_kept"), [(1000, True), (1001, False)])
async def test_a_cookie_of_a_login_has_room_for_the_page_that_it_leads_to(
    tmp_path: Path, characters: int, is_kept: bool
) -> None:
    async with logins_at_an_issuer(tmp_path) as (issuer, console):
        to = f"/queues/{'a' * characters}"
        asked = await begin(issuer, console, to)
        assert len(console.client.cookies["postroad-login"]) < MAX_COOKIES / 2
        page = await come_back(console, code="c", state=asked["state"])
        assert f'content="0;url={to if is_kept else "/"}"' in page.text
