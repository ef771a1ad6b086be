"""Guard before every request: the host it is for, the user, the origin of a change, rates and
sizes; and the headers of every response.

Source: RFC 6265 4.1.2; RFC 6454 7; RFC 6750 3."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroad.console.api.sessions import Identities
from postroad.console.page.rendering import render
from postroad.console.rights import ConsoleUser
from postroad.errors import PostroadError
from postroad.problems import Problem
from postroad.telemetry.logs import logger

if TYPE_CHECKING:
    from postroad.console.openid import OpenIdLogins

_log = logger("console")

MAX_BODY = 64 * 1024
"""Octets of a request's body."""

MAX_COOKIES = 4096
"""Octets of the cookies of a request."""

COOKIE, LOGIN_COOKIE = "postroad-console", "postroad-login"
"""Names of cookies; with TLS, they begin with `__Host-`."""

PROBES = frozenset(("/healthz", "/readyz", "/metrics"))
"""Paths that need no session."""

FILES = "/static/"
"""Paths of the page's own files, which need none either: without a session, there is a page to log
in by."""

SESSION = "/session"
"""Path at which a token of Kubernetes is exchanged for a session."""

LOGIN, CALLBACK, LOGOUT = "/login", "/login/callback", "/logout"
"""Paths that send a browser to the issuer, take it back from there, and end its session."""

_OWN_PATH = re.compile(r"/queues/(?!.*(?:\.|%2[Ee]){2})[-A-Za-z0-9._~/?&=%:@+]{0,1000}")
"""Pages that a login or a link may lead to: none elsewhere, and nothing that ends the field of a
header. Browsers make `/` of `/queues/..`, and with `?token=` that is another user's link."""

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))

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


@dataclass(frozen=True, slots=True)
class Hosts:
    """The values of Host that are this console, in lower case; a name that an attacker's DNS points
    here is none of them. `secured`: those that a proxy with TLS answers. `is_forwarded`: ports of
    loopback, whichever, are forwarded to it."""

    plain: Collection[str]
    secured: Collection[str] = ()
    is_forwarded: bool = False

    def origin(self, host: str) -> str | None:
        """Return the console's own origin under a host; None for a host that is not its own."""
        if host in self.secured:
            return f"https://{host}"
        return f"http://{host}" if host in self.plain or self._is_loopback(host) else None

    def _is_loopback(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            is_own = parts.netloc == host and parts.port is not None
            return self.is_forwarded and is_own and parts.hostname in LOOPBACK
        except ValueError:
            return False


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
    """ASGI: lets through to `app` what may pass."""

    app: ASGIApp
    identities: Identities
    hosts: Hosts
    buckets: Buckets
    max_body: int = field(default=MAX_BODY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are neither WebSockets nor a lifespan
        sending, bounded = _Sending(send), _Receiving(receive, self.max_body)
        try:
            response = await self._admit(scope, bounded)
            if response is not None:
                await response(scope, receive, sending)
            else:
                await self.app(scope, bounded, sending)
        except Problem as problem:
            await problem_response(problem)(scope, receive, sending)
        except HTTPException as error:  # of a body, which a form of login reads here
            refused = Problem(error.status_code, error.detail)
            await problem_response(refused)(scope, receive, sending)
        except ClientDisconnect:  # amid that body; uvicorn would log it as an error of the console
            _log.debug("a client has left")

    async def _admit(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the response to what needs no more; else let it pass. Raises: Problem."""
        headers = Headers(scope=scope)
        origin = self._origin(headers)
        if scope["path"] in PROBES and not self.identities.by_token:
            return None
        if scope["path"].startswith(FILES) and scope["method"] in SAFE:
            return None
        if (response := self._redeemed(scope, origin)) is not None:
            return response
        self._check_length(headers)
        if (scope["path"], scope["method"]) == (SESSION, "POST") and self.identities.by_token:
            return await self._begun(Request(scope, receive), origin)
        logins = self.identities.logins
        if logins and scope["method"] == "GET" and scope["path"] in (LOGIN, CALLBACK):
            return await self._logged_in(logins, scope, headers, origin)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_cookie = scheme.lower() != "bearer"
        secret = _cookie(headers, COOKIE, origin) if is_cookie else token.strip()
        who = await self._user(secret, "there is no session", is_cookie=is_cookie)
        if scope["method"] not in SAFE and who.is_by_cookie:
            _check_origin(headers, origin)
        if (scope["path"], scope["method"]) == (LOGOUT, "POST"):
            self.identities.sessions.end(secret or "")
            return self._cookie_set(RedirectResponse("/", 303), COOKIE, "", origin)

        async def proves() -> bool:
            found = await self.identities.find(secret or "", is_cookie=is_cookie, is_used=False)
            return found is not None

        scope.setdefault("state", {}).update(who=who, proves=proves)
        return None

    def _origin(self, headers: Headers) -> str:
        given = headers.getlist("host")
        own = self.hosts.origin(given[0].lower()) if len(given) == 1 else None
        if own is None:
            raise Problem(421, "this console is not reached under that host")
        return own

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self.max_body:
            raise _too_large(self.max_body)

    def _redeemed(self, scope: Scope, origin: str) -> Response | None:
        """Return the response to a link: a session, and the page without the token; None for what
        is no link. Raises: Problem."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return None
        fields = _fields(scope["query_string"])
        tokens = fields.get("token")
        if tokens is None:
            return None
        # Before it is used: another user's page would log this browser in as that user.
        site = Headers(scope=scope).get("sec-fetch-site", "none")
        if self.identities.by_token and site not in ("none", "same-origin"):
            raise Problem(403, "a page of another site opened this link: copy it to a new window")
        secret = self.identities.sessions.redeem(tokens[0])
        if secret is None:
            self._count("links")
            raise self._without_session("this link was used, or is over")
        return self._with_session(RedirectResponse(_own_page(fields), 303), secret, origin)

    async def _begun(self, request: Request, origin: str) -> Response:
        """Return the response to a token: a session, to the form of a browser; a link that leads to
        one, to a program that sent it as a bearer token. Raises: Problem."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_form = scheme.lower() != "bearer"
        if is_form:  # another site's form would begin a session of its own user in this browser
            _check_origin(request.headers, origin)
            token = _fields(await request.body()).get("token", [""])[0]
        token = token.strip()
        unknown = "this token is not good, or for another console"
        who = await self._user(token, unknown, is_cookie=False)
        sessions = self.identities.sessions
        if is_form:
            response = RedirectResponse("/", 303)
            return self._with_session(response, sessions.begin(token, who.name), origin)
        return JSONResponse({"link": f"/?token={sessions.new_link(token, who.name)}"}, 201)

    async def _logged_in(
        self, logins: OpenIdLogins, scope: Scope, headers: Headers, origin: str
    ) -> Response:
        """Return the response that sends a browser to the issuer, or that begins the session of
        one that comes from there. Raises: Problem."""
        fields = _fields(scope["query_string"])
        if scope["path"] == LOGIN:
            login, url = await logins.begin(f"{origin}{CALLBACK}", _own_page(fields))
            sent = RedirectResponse(url, 303)
            return self._cookie_set(sent, LOGIN_COOKIE, login, origin, logins.lifetime, "lax")
        token, to = await logins.end(_cookie(headers, LOGIN_COOKIE, origin) or "", fields)
        unknown = "the API server does not take the issuer's token"
        who = await self._user(token, unknown, is_cookie=False, is_vouched=True)
        # A page that goes on by itself: to what a redirect from the issuer's site leads to, a
        # browser sends no cookie that is SameSite=Strict.
        response = self._cookie_set(render("logged_in", to=to), LOGIN_COOKIE, "", origin)
        session = self.identities.sessions.begin(token, who.name)
        return self._with_session(response, session, origin)

    def _with_session(self, response: Response, secret: str, origin: str) -> Response:
        _log.info("a session began")
        lifetime = self.identities.sessions.lifetime
        return self._cookie_set(response, COOKIE, secret, origin, lifetime)

    def _cookie_set(
        self,
        response: Response,
        name: str,
        secret: str,
        origin: str,
        lifetime: timedelta = timedelta(0),
        site: Literal["lax", "strict"] = "strict",
    ) -> Response:
        """Return the response with a cookie for this console alone; without a lifetime, the
        browser forgets the one that it has."""
        response.set_cookie(
            _named(name, origin),
            secret,
            max_age=int(lifetime.total_seconds()),
            path="/",
            secure=origin.startswith("https:"),
            httponly=True,
            samesite=site,
        )
        return response

    async def _user(
        self, secret: str | None, unknown: str, *, is_cookie: bool, is_vouched: bool = False
    ) -> ConsoleUser:
        """Return who sends a request, which counts; `is_vouched`: the issuer gave the token.
        Raises: Problem, of an `unknown` one by that text."""
        who = None
        # Else strangers could let the API server review any number of tokens.
        is_asked = secret is not None and self.identities.asks(secret, is_cookie=is_cookie)
        if is_asked and not is_vouched:
            self._count("tokens")
        try:
            if secret is not None:
                who = await self.identities.find(secret, is_cookie=is_cookie)
        except PostroadError as error:
            _log.warning("a token could not be reviewed", error=error.explain())
            raise Problem(503, "the API server of Kubernetes does not review tokens now") from error
        self._count("" if who is None else who.name)
        if who is None:
            raise self._without_session(unknown)
        return who

    def _count(self, user: str) -> None:
        """Count a request. Raises: Problem where they come too fast."""
        if not self.buckets.take(user):
            raise Problem(429, "too many requests, come again")

    def _without_session(self, what: str) -> Problem:
        advice = "open the link that `postroad console` printed; SIGHUP lets it print another one"
        if self.identities.by_token:
            advice = "send a token of Kubernetes, as `kubectl mailqueue console` does"
        if self.identities.logins:
            advice = f"log in, or {advice}"
        challenge = ("WWW-Authenticate", 'Bearer realm="postroad console"')
        return Problem(401, f"{what}: {advice}", headers=[challenge])


def _fields(form: bytes) -> dict[str, list[str]]:
    """Return the fields of a query or a form. Raises: Problem."""
    try:
        return parse_qs(form.decode("latin-1"), max_num_fields=20)
    except ValueError:
        raise Problem(400, "there are too many fields") from None


def _own_page(fields: Mapping[str, list[str]]) -> str:
    """Return the page of the console that a query names, else the first one."""
    to = fields.get("to", [""])[0]
    return to if _OWN_PATH.fullmatch(to) else "/"


def _named(cookie: str, origin: str) -> str:
    """Return the name that a cookie has at an origin. Browsers take this prefix from the host
    itself alone: without it, another host of the domain could begin a session of its own user."""
    return f"__Host-{cookie}" if origin.startswith("https:") else cookie


def _cookie(headers: Headers, cookie: str, origin: str) -> str | None:
    text = "; ".join(headers.getlist("cookie"))
    if len(text) > MAX_COOKIES:
        return None
    try:
        found = SimpleCookie(text).get(_named(cookie, origin))
    except CookieError:
        return None
    return None if found is None else found.value


def _check_origin(headers: Headers, own: str) -> None:
    """Raises: Problem for a change that a page elsewhere, or no page, asked for."""
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
