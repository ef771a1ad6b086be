"""The console as an ASGI application."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from postroad.console.api import (
    configuration_routes,
    delivery_routes,
    mail_routes,
    operation_routes,
    queue_routes,
    site_routes,
)
from postroad.console.api.access import Console, refuse_repeated
from postroad.console.api.errors import add_handlers, documented
from postroad.console.api.guard import (
    COOKIE,
    Buckets,
    Hosts,
    RequestGuard,
    RequestRate,
    problem_response,
)
from postroad.console.api.james.app import james_app
from postroad.console.api.sessions import Identities
from postroad.console.page.refusals import PageRefusals
from postroad.console.page.routes import add_page
from postroad.problems import ProblemDocument
from postroad.telemetry.health import Readiness

BASE = "/api/v1"


def console_app(console: Console, readiness: Readiness | None) -> FastAPI:
    """Return the application without its guard. Without `readiness`, it has no probes: these, and
    metrics, are no user's of a queue."""
    app = FastAPI(
        title="postroad console",
        version="1",
        description="Queues read and changed over HTTP. Errors are problems (RFC 9457).",
        openapi_url=f"{BASE}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.console = console
    once = [Depends(refuse_repeated)]
    api = APIRouter(prefix=BASE, responses=documented(), dependencies=once)
    for each in (
        configuration_routes,
        queue_routes,
        mail_routes,
        operation_routes,
        site_routes,
        delivery_routes,
    ):
        api.include_router(each.router)
    app.include_router(api)
    app.mount("/james", james_app(console))
    add_page(app)
    if readiness is not None:
        _add_probes(app, readiness)
    add_handlers(app, lambda _, problem: problem_response(problem))
    _describe(app)
    return app


def guarded(
    app: ASGIApp,
    identities: Identities,
    hosts: Hosts,
    console: Console,
    rate: RequestRate | None,
) -> ASGIApp:
    """Return the application as it is served."""
    buckets = Buckets(rate or RequestRate(), console.clock.elapsed)
    guard = RequestGuard(app, identities, hosts, buckets)
    by_token, logins = identities.by_token is not None, identities.logins is not None
    return PageRefusals(guard, takes_tokens=by_token, logs_in=logins)


def _add_probes(app: FastAPI, readiness: Readiness) -> None:
    async def alive(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def ready(_: Request) -> Response:
        obstacle = readiness.obstacle()
        return PlainTextResponse(f"{obstacle or 'ready'}\n", 503 if obstacle else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    for path, endpoint in (("/healthz", alive), ("/readyz", ready), ("/metrics", metrics)):
        app.add_route(path, endpoint, include_in_schema=False)


def _describe(app: FastAPI) -> None:
    """Add to the description what FastAPI does not know: how users log in, and problems."""
    made = app.openapi()
    components: dict[str, Any] = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {})
    schemas[ProblemDocument.__name__] = problem
    components["securitySchemes"] = {
        "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
    made["security"] = [{"cookie": []}, {"bearer": []}]
