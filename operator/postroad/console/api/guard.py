"""Guard before every request: the host it is for, the session, the origin of a change, rates and
sizes; and the headers of every response.

Source: RFC 6265 4.1.2; RFC 6454 7; RFC 6750 3."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroad.console.api.sessions import LIFETIME, Sessions
from postroad.console.rights import ConsoleUser
from postroad.problems import Problem
from postroad.telemetry.logs import logger

_log = logger("console")

MAX_BODY = 64 * 1024
"""Octets of a request's body."""

MAX_COOKIES = 4096
"""Octets of the cookies of a request."""

COOKIE = "postroad-console"

PROBES = frozenset(("/healthz", "/readyz", "/metrics"))
"""Paths that need no session."""

SAFE = frozenset(("GET", "HEAD", "OPTIONS"))

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class RequestRate:
    """Requests of one user: `burst` at once, then so many a second."""

    per_second: float = 50.0
    burst: int = 400


class Buckets:
    """Token buckets by user."""

    MAX_USERS = 1000

    def __init__(self, rate: RequestRate, elapsed: Callable[[], timedelta]) -> None:
        self._rate, self._elapsed = rate, elapsed
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, user: str) -> bool:
        """Return whether a user may send one more request."""
        now = self._elapsed().total_seconds()
        left, at = self._left.pop(user, (float(self._rate.burst), now))
        left = min(float(self._rate.burst), left + (now - at) * self._rate.per_second)
        self._left[user] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > self.MAX_USERS:
            self._left.popitem(last=False)
        return left >= 1


@dataclass(frozen=True, slots=True)
class RequestGuard:
    """ASGI: lets through to `app` what may pass. `hosts`: the values of Host that are this console,
    in lower case; a name that an attacker's DNS points here is none of them."""

    app: ASGIApp
    sessions: Sessions
    hosts: Collection[str]
    buckets: Buckets
    home: str = "/"
    """The page that a link leads to."""

    max_body: int = field(default=MAX_BODY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are neither WebSockets nor a lifespan
        sending = _Sending(send)
        try:
            response = self._admit(scope)
            if response is not None:
                await response(scope, receive, sending)
            else:
                await self.app(scope, _Receiving(receive, self.max_body), sending)
        except Problem as problem:
            await problem_response(problem)(scope, receive, sending)

    def _admit(self, scope: Scope) -> Response | None:
        """Return the response to what needs no more; else let it pass. Raises: Problem."""
        headers = Headers(scope=scope)
        self._check_host(headers)
        if scope["path"] in PROBES:
            return None
        if (response := self._redeemed(scope)) is not None:
            return response
        who = self._user(headers)
        if not self.buckets.take("" if who is None else who.name):
            raise Problem(429, "too many requests, come again")
        if who is None:
            raise Problem(
                401,
                "there is no session: open the link that `postroad console` printed",
                headers=[("WWW-Authenticate", 'Bearer realm="postroad console"')],
            )
        if scope["method"] not in SAFE and who.is_by_cookie:
            _check_origin(headers)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self.max_body:
            raise _too_large(self.max_body)
        scope.setdefault("state", {})["who"] = who
        return None

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1 or given[0].lower() not in self.hosts:
            raise Problem(421, "this console is not reached under that host")

    def _redeemed(self, scope: Scope) -> Response | None:
        """Return the response to a link: a session, and the page without the token; None for what
        is no link. Raises: Problem."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return None
        try:
            fields = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
        except ValueError:
            raise Problem(400, "the query has too many fields") from None
        tokens = fields.get("token")
        if tokens is None:
            return None
        if not self.buckets.take("links"):
            raise Problem(429, "too many requests, come again")
        secret = self.sessions.redeem(tokens[0])
        if secret is None:
            raise Problem(
                401,
                "this link was used, or is over: send SIGHUP to `postroad console`, which prints"
                " another one",
                headers=[("WWW-Authenticate", 'Bearer realm="postroad console"')],
            )
        response = RedirectResponse(self.home, status_code=303)
        response.set_cookie(
            COOKIE,
            secret,
            max_age=int(LIFETIME.total_seconds()),
            path="/",
            httponly=True,
            samesite="strict",
        )
        _log.info("a session began")
        return response

    def _user(self, headers: Headers) -> ConsoleUser | None:
        """Return who sends a request, by a bearer token or by the cookie."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_by_cookie = scheme.lower() != "bearer"
        secret = _cookie(headers) if is_by_cookie else token.strip()
        session = None if secret is None else self.sessions.find(secret)
        return None if session is None else ConsoleUser(session.name, is_by_cookie)


def _cookie(headers: Headers) -> str | None:
    text = "; ".join(headers.getlist("cookie"))
    if len(text) > MAX_COOKIES:
        return None
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value


def _check_origin(headers: Headers) -> None:
    """Raises: Problem for a change that a page elsewhere, or no page, asked for."""
    own = f"http://{headers['host'].lower()}"
    origins = headers.getlist("origin")
    if [each.lower() for each in origins] != [own]:
        raise Problem(403, f"a change by the cookie needs the header Origin: {own}")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Problem(403, "a page of another site asked for this change")


def _too_large(limit: int) -> Problem:
    return Problem(413, f"a body has at most {limit} octets")


class _Receiving:
    """Receives a body up to a bound."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._left = receive, limit, limit

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:  # FastAPI makes of other errors, while it reads a body, a 400
                raise HTTPException(413, _too_large(self._limit).detail)
        return message


class _Sending:
    """Sends responses with the headers that all of them have."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def problem_response(problem: Problem) -> Response:
    """Return the response to a request that is refused."""
    return Response(
        json.dumps(problem.document()),
        status_code=problem.status,
        headers=dict(problem.headers),
        media_type="application/problem+json",
    )
