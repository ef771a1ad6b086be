"""Access tokens of an OpenID Connect issuer: signed JWTs, verified with the keys it publishes.

Source: RFC 7519, 7517; OpenID Connect Discovery 1.0; RFC 8725 (no algorithm but those below, and
never `none` or a symmetric one)."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import jwt

from postroad.domain.values.networks import is_secured
from postroad.http_responses import parsed_json, read_body
from postroad.intake.logins.exchanges import MAX_NAME
from postroad.intake.logins.results import LoginFailed, UsersUnavailable
from postroad.intake_settings.senders import Oidc
from postroad.tls import verifying_context

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")

MAX_TOKEN = 16 * 1024
MAX_DOCUMENT = 512 * 1024
"""Octets of the issuer's keys, and of its configuration."""

KEYS_LAST = 3600.0
"""Seconds until the keys are fetched again."""

MIN_INTERVAL = 60.0
"""Seconds between two fetches for keys that are not known: tokens of strangers name any key."""

FETCH_SECONDS = 5.0
FAILURE_SECONDS = 5.0
"""For which no fetch follows one that failed: logins would else wait for theirs one behind another.
"""

LEEWAY_SECONDS = 30


class Tokens:
    """Verifies the tokens of one issuer."""

    def __init__(self, issuer: Oidc, ca_file: Path | None = None) -> None:
        self._issuer, self._ca_file = issuer, ca_file
        self._keys: dict[str, Any] = {}
        self._fetched_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._away_until = float("-inf")

    async def user_of(self, token: str) -> str:
        """Return the user that a token names. Raises: LoginFailed, UsersUnavailable."""
        if len(token) > MAX_TOKEN:
            raise LoginFailed
        try:
            kid = jwt.get_unverified_header(token).get("kid", "")
        except jwt.PyJWTError:
            raise LoginFailed from None
        key = await self._key(kid)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._issuer.audience,
                issuer=self._issuer.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError):
            raise LoginFailed from None
        return self._named(claims)

    def _named(self, claims: Mapping[str, object]) -> str:
        name = claims.get(self._issuer.claim)
        # An address that the issuer has not verified is one that the user has chosen.
        if self._issuer.claim == "email" and claims.get("email_verified") is False:
            raise LoginFailed
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise LoginFailed
        return name

    async def _key(self, kid: object) -> Any:
        now = asyncio.get_running_loop().time()
        if now - self._fetched_at < KEYS_LAST and kid in self._keys:
            return self._keys[str(kid)]
        async with self._fetching:
            now = asyncio.get_running_loop().time()
            if now < self._away_until:
                raise UsersUnavailable("the issuer did not answer just now")
            age = now - self._fetched_at
            if age >= KEYS_LAST or (kid not in self._keys and age >= MIN_INTERVAL):
                await self._fetch(now)
        try:
            return self._keys[str(kid)]
        except KeyError:
            raise LoginFailed from None

    async def _fetch(self, now: float) -> None:
        """Fetch the keys; those that are known stay while the issuer does not answer. Raises:
        UsersUnavailable, where none is known."""
        self._fetched_at = now - KEYS_LAST + MIN_INTERVAL  # when it fails, next in a minute
        try:
            found = await self._published()
        except UsersUnavailable:
            if self._keys:
                return
            self._fetched_at, self._away_until = float("-inf"), now + FAILURE_SECONDS
            raise
        self._keys = {str(each.key_id or ""): each.key for each in found.keys}
        self._fetched_at = now

    async def _published(self) -> jwt.PyJWKSet:
        issuer = self._issuer.issuer.rstrip("/")
        connector = aiohttp.TCPConnector(ssl=verifying_context(self._ca_file))
        try:
            async with (
                asyncio.timeout(FETCH_SECONDS),
                aiohttp.ClientSession(connector=connector, trust_env=True) as session,
            ):
                found = await _document(session, f"{issuer}/.well-known/openid-configuration")
                if found["issuer"] != self._issuer.issuer:  # Discovery 4.3: another one's keys
                    raise UsersUnavailable("the issuer names itself otherwise than `issuer` does")
                uri = str(found["jwks_uri"])
                if not is_secured(uri):
                    raise UsersUnavailable("the issuer publishes its keys in clear")
                return jwt.PyJWKSet.from_dict(await _document(session, uri))
        except (OSError, TimeoutError, aiohttp.ClientError, jwt.PyJWTError) as error:
            raise UsersUnavailable(f"the issuer's keys: {type(error).__name__}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsersUnavailable("the issuer publishes no keys that can be read") from error


async def _document(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url, allow_redirects=False) as response:
        response.raise_for_status()
        if response.status != 200:  # a redirect, which leads to another server
            raise UsersUnavailable(f"the issuer answers with {response.status}")
        return parsed_json(await read_body(response, MAX_DOCUMENT))
