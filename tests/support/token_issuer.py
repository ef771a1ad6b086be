"""An OpenID Connect issuer of tests: it publishes one key, and makes tokens by it or otherwise."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from support.ports import free_port

AUDIENCE = "postroad"

KEY, OTHER_KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))


@asynccontextmanager
async def an_issuer() -> AsyncIterator[str]:
    """Publish KEY as an OpenID Connect issuer does; yield the issuer's address."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    public: dict[str, Any] = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)

    async def configuration(_: web.Request) -> web.Response:
        return web.json_response({"issuer": issuer, "jwks_uri": f"{issuer}/keys"})

    async def keys(_: web.Request) -> web.Response:
        return web.json_response({"keys": [public | {"kid": "1", "alg": "ES256", "use": "sig"}]})

    application = web.Application()
    application.router.add_get("/.well-known/openid-configuration", configuration)
    application.router.add_get("/keys", keys)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield issuer
    finally:
        await runner.cleanup()


def token(issuer: str, *, key: Any = KEY, algorithm: str = "ES256", **claims: Any) -> str:
    """Make a token of `a@example.org`; a claim of None is left out."""
    made = {"iss": issuer, "aud": AUDIENCE, "email": "a@example.org", "exp": time.time() + 600}
    kept = {name: each for name, each in (made | claims).items() if each is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": "1"})
