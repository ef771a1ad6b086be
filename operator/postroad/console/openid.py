"""Logins of browsers at an OpenID Connect issuer: the authorization code flow with PKCE.

Source: OpenID Connect Core 1.0 3.1; OpenID Connect Discovery 1.0 4; RFC 7636; RFC 9700 2.1."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote_plus, urlencode

import aiohttp
import jwt
from cryptography.fernet import Fernet, InvalidToken
from pydantic import BaseModel, Field, ValidationError

from postroad.http_responses import parsed_json, read_body
from postroad.problems import Problem
from postroad.telemetry.logs import logger
from postroad.tls import verifying_context

_log = logger("console")

LOGIN_LIFETIME = timedelta(minutes=10)
"""Time that a user has at the issuer."""

MAX_EXCHANGES = 16
"""Codes that are exchanged at the issuer at a time; more wait, strangers' among them."""

DOCUMENT_LIFETIME = timedelta(hours=1)
REQUEST_SECONDS = 10.0
MAX_DOCUMENT = 512 * 1024

SCOPES = ("email", "profile", "groups")
"""Asked for where the issuer lists them: claims of users and groups of Kubernetes are among them.
"""

CA_FILE, SECRET_FILE = "ca.crt", "clientSecret"


@dataclass(frozen=True, slots=True)
class OpenIdClient:
    """The console as a client of its issuer. `files`: a folder that may have `ca.crt`, the
    authorities that vouch for the issuer, and `clientSecret`; both are read at each request."""

    issuer: str
    client_id: str
    files: Path | None = None

    def authorities(self) -> Path | None:
        found = None if self.files is None else self.files / CA_FILE
        return found if found is not None and found.exists() else None

    def secret(self) -> str | None:
        found = None if self.files is None else self.files / SECRET_FILE
        return found.read_text().strip() if found is not None and found.exists() else None


_Endpoint = Annotated[str, Field(pattern=r"^https://[!-~]+$")]


class _Configuration(BaseModel):
    """Document that an issuer publishes about itself."""

    issuer: str
    authorization_endpoint: _Endpoint
    token_endpoint: _Endpoint
    scopes_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Login:
    """A login under way, which its browser keeps as a cookie that the console alone reads."""

    state: str
    nonce: str
    verifier: str
    redirect: str
    to: str
    until: float
    """Seconds."""


class OpenIdLogins:
    """Logins that their browsers keep: none that strangers begin ends one. An answer that comes
    again has a code that the issuer took before."""

    lifetime = LOGIN_LIFETIME

    def __init__(self, client: OpenIdClient, elapsed: Callable[[], timedelta]) -> None:
        self._client, self._elapsed = client, elapsed
        self._key = Fernet(Fernet.generate_key())
        self._exchanging = asyncio.Semaphore(MAX_EXCHANGES)
        self._asking: asyncio.Task[_Configuration] | None = None
        self._known_until = timedelta(0)

    async def begin(self, redirect: str, to: str) -> tuple[str, str]:
        """Return the login for the browser, and where the user logs in. Raises: Problem."""
        configuration = await self._configuration()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        until = (self._elapsed() + LOGIN_LIFETIME).total_seconds()
        login = _Login(state, nonce, verifier, redirect, to, until)
        kept = self._key.encrypt(json.dumps(astuple(login)).encode()).decode()
        endpoint = configuration.authorization_endpoint
        supported = configuration.scopes_supported or ()
        asked = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(["openid", *(each for each in SCOPES if each in supported)]),
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": _challenge(login.verifier),
            "code_challenge_method": "S256",
        }
        return kept, f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def end(self, kept: str, answer: Mapping[str, Sequence[str]]) -> tuple[str, str]:
        """Return the token of a user whom the issuer sent back, and where to go on. Whether the
        token is good is for the API server to say: it checks its signature. Raises: Problem."""
        over = _refused("this login is over, or was begun in another browser")
        try:
            login = _Login(*json.loads(self._key.decrypt(kept.encode())))
        except InvalidToken:
            raise over from None
        if self._elapsed().total_seconds() > login.until:
            raise over
        if not hmac.compare_digest(_one(answer, "state").encode(), login.state.encode()):
            raise _refused("this answer is that to another login")
        if not (code := _one(answer, "code")):
            error = _one(answer, "error")[:100]
            raise _refused(f"the issuer refused the login ({error or 'without a reason'})")
        try:
            async with asyncio.timeout(REQUEST_SECONDS), self._exchanging:
                token = await self._exchanged(code, login)
        except TimeoutError:
            raise _away() from None
        self._check(token, login)
        return token, login.to

    async def _exchanged(self, code: str, login: _Login) -> str:
        client, configuration = self._client, await self._configuration()
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect,
            "code_verifier": login.verifier,
        }
        headers, secret = {}, client.secret()
        ways = configuration.token_endpoint_auth_methods_supported or ["client_secret_basic"]
        if secret and "client_secret_basic" in ways:  # RFC 6749 2.3.1: both are encoded before
            basic = f"{quote_plus(client.client_id)}:{quote_plus(secret)}".encode()
            headers["Authorization"] = f"Basic {b64encode(basic).decode()}"
        else:
            sent |= {"client_id": client.client_id} | ({"client_secret": secret} if secret else {})
        status, found = await self._ask("POST", configuration.token_endpoint, sent, headers)
        token = found.get("id_token") if status == 200 else None
        if not isinstance(token, str):
            _log.warning(
                "the issuer gave no token", status=status, error=str(found.get("error"))[:100]
            )
            raise _refused("the issuer gave no token")
        return token

    def _check(self, token: str, login: _Login) -> None:
        """Check that a token answers this login, and is for this client. Raises: Problem."""
        try:
            claims = jwt.decode(
                token,
                options={
                    "verify_signature": False,  # the API server does, before there is a session
                    "verify_aud": True,
                    "verify_iss": True,
                    "verify_exp": True,
                    "require": ["aud", "iss", "exp", "nonce"],
                },
                audience=self._client.client_id,
                issuer=self._client.issuer,
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            _log.warning("the issuer's token does not fit", error=type(error).__name__)
            raise _refused("the issuer's token is not for this console") from None
        is_ours = claims.get("azp", self._client.client_id) == self._client.client_id
        if not is_ours or claims["nonce"] != login.nonce:
            _log.warning("the issuer's token does not fit", error="azp or nonce")
            raise _refused("the issuer's token is that of another login")

    async def _configuration(self) -> _Configuration:
        """Return what the issuer has published lately. Raises: Problem."""
        asking = self._asking
        if asking is None or (asking.done() and self._is_old(asking)):
            asking = self._asking = asyncio.create_task(self._fetched())
        return await asyncio.shield(asking)

    def _is_old(self, asked: asyncio.Task[_Configuration]) -> bool:
        failed = asked.cancelled() or asked.exception() is not None
        return failed or self._elapsed() >= self._known_until

    async def _fetched(self) -> _Configuration:
        issuer = self._client.issuer
        place = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        status, found = await self._ask("GET", place)
        configuration: _Configuration | None = None
        with contextlib.suppress(ValidationError):
            configuration = _Configuration.model_validate(found)
        # Discovery 4.3: another issuer's endpoints would get the codes and the client's secret.
        if status != 200 or configuration is None or configuration.issuer != issuer:
            _log.warning("the issuer's configuration cannot be used", status=status)
            raise _away()
        self._known_until = self._elapsed() + DOCUMENT_LIFETIME
        return configuration

    async def _ask(
        self,
        method: str,
        url: str,
        sent: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and document of an answer. Raises: Problem, where the issuer is away."""
        try:
            connector = aiohttp.TCPConnector(ssl=verifying_context(self._client.authorities()))
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                aiohttp.ClientSession(connector=connector, trust_env=True) as session,
                session.request(
                    method, url, data=sent, headers=headers, allow_redirects=False
                ) as answer,
            ):
                found = parsed_json(await read_body(answer, MAX_DOCUMENT))
                return answer.status, found if isinstance(found, dict) else {}
        except (OSError, TimeoutError, aiohttp.ClientError, ValueError) as error:
            _log.warning("the issuer does not answer", error=type(error).__name__)
            raise _away() from error


def _one(answer: Mapping[str, Sequence[str]], name: str) -> str:
    values = answer.get(name, ())
    return values[0] if len(values) == 1 else ""


def _challenge(verifier: str) -> str:
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _refused(why: str) -> Problem:
    return Problem(401, f"{why}: log in again")


def _away() -> Problem:
    return Problem(503, "the issuer that users log in at does not answer: come again")
