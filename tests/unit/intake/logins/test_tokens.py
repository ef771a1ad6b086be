"""Tokens of an issuer, by a small issuer of this test: those that are accepted, and the others.
Source: RFC 8725."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from postroad.intake.logins.results import LoginFailed, UsersUnavailable
from postroad.intake.logins.tokens import Tokens
from postroad.intake_settings.senders import Oidc

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """Publishes keys, and counts how often they are fetched."""

    def __init__(self) -> None:
        self.url = self.named = ""
        self.fetched = 0
        self.status = 200
        self.keys: list[dict[str, Any]] = [
            jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "rsa"},
            jwt.algorithms.ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True) | {"kid": "ec"},
        ]

    async def configuration(self, _: web.Request) -> web.Response:
        return web.json_response({"issuer": self.named or self.url, "jwks_uri": f"{self.url}/keys"})

    async def published(self, _: web.Request) -> web.Response:
        self.fetched += 1
        return web.json_response({"keys": self.keys}, status=self.status)

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": "postroad",
            "exp": now + 600,
            "email": "alice@example.org",
        } | changed
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, **changed: Any) -> str:
        return jwt.encode(self.claims(**changed), KEY, "RS256", headers={"kid": "rsa"})


@asynccontextmanager
async def an_issuer(**more: str) -> AsyncIterator[tuple[Issuer, Tokens]]:
    issuer, app = Issuer(), web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.configuration)
    app.router.add_get("/keys", issuer.published)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    issuer.url = f"http://127.0.0.1:{port}"
    try:
        yield issuer, Tokens(Oidc(issuer=issuer.url, audience="postroad", **more))
    finally:
        await runner.cleanup()


async def test_a_token_of_the_issuer_names_its_user() -> None:
    async with an_issuer() as (issuer, tokens):
        by_curve = jwt.encode(issuer.claims(), CURVE, "ES256", headers={"kid": "ec"})

        assert await tokens.user_of(issuer.token()) == "alice@example.org"
        assert await tokens.user_of(by_curve) == "alice@example.org"
        assert issuer.fetched == 1


def unsigned(issuer: Issuer) -> str:
    parts = {"alg": "none", "kid": "rsa"}, issuer.claims()
    return ".".join(_url64(json.dumps(each).encode()) for each in parts) + "."


def signed_by_the_public_key(issuer: Issuer) -> str:
    """HS256 with the octets of the public key as the secret, which a careless verifier takes."""
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    parts = {"alg": "HS256", "kid": "rsa"}, issuer.claims()
    signed = ".".join(_url64(json.dumps(each).encode()) for each in parts)
    return f"{signed}.{_url64(hmac.digest(public, signed.encode(), 'sha256'))}"


def _url64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "made",
    [
        unsigned,
        signed_by_the_public_key,
        lambda issuer: jwt.encode(issuer.claims(), OTHER, "RS256", headers={"kid": "rsa"}),
        lambda issuer: jwt.encode(issuer.claims(), KEY, "RS256", headers={"kid": "unknown"}),
        lambda issuer: issuer.token(aud="another"),
        lambda issuer: issuer.token(aud=None),
        lambda issuer: issuer.token(iss="https://other.example"),
        lambda issuer: issuer.token(exp=int(time.time()) - 60),
        lambda issuer: issuer.token(exp=None),
        lambda issuer: issuer.token(nbf=int(time.time()) + 600),
        lambda issuer: issuer.token(email=None),
        lambda issuer: issuer.token(email=7),
        lambda issuer: issuer.token(email="a@example.org\r\nX: y"),
        lambda issuer: issuer.token(email="a" * 300),
        lambda issuer: issuer.token(email_verified=False),
        lambda issuer: issuer.token()[:-4],
        lambda issuer: "x" * 20_000,
        lambda issuer: "",
        lambda issuer: "a.b.c",
        lambda issuer: "é.é.é",
    ],
)
async def test_a_token_that_proves_nothing_is_refused(made: Callable[[Issuer], str]) -> None:
    async with an_issuer() as (issuer, tokens):
        with pytest.raises(LoginFailed) as refused:
            await tokens.user_of(made(issuer))

        assert not isinstance(refused.value, UsersUnavailable)


async def test_unknown_keys_are_fetched_once_in_a_minute() -> None:
    async with an_issuer() as (issuer, tokens):
        unknown = jwt.encode(issuer.claims(), OTHER, "RS256", headers={"kid": "new"})
        for _ in range(5):
            with pytest.raises(LoginFailed):
                await tokens.user_of(unknown)

        assert issuer.fetched == 1


async def test_an_issuer_that_is_away_makes_logins_come_again() -> None:
    async with an_issuer() as (issuer, tokens):
        issuer.status = 500
        with pytest.raises(UsersUnavailable):
            await tokens.user_of(issuer.token())

        issuer.status = 200
        with pytest.raises(UsersUnavailable):
            await tokens.user_of(issuer.token())
        assert issuer.fetched == 1, "no fetch follows a failed one at once"
        tokens._away_until = 0.0
        assert await tokens.user_of(issuer.token()) == "alice@example.org"


async def test_keys_of_an_issuer_that_names_itself_otherwise_are_not_taken() -> None:
    async with an_issuer() as (issuer, tokens):
        issuer.named = "https://other.example"

        with pytest.raises(UsersUnavailable) as refused:
            await tokens.user_of(issuer.token())
        assert "names itself otherwise" in refused.value.reason
        assert issuer.fetched == 0
