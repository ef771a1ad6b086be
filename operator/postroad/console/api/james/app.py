"""The paths of James as an application of their own, so that their errors have his form."""

from __future__ import annotations

from fastapi import FastAPI

from postroad.console.api.access import Console
from postroad.console.api.errors import add_handlers
from postroad.console.api.james import queue_routes, task_routes
from postroad.console.api.james.answers import james_response
from postroad.console.api.james.tasks import JamesTasks


def james_app(console: Console) -> FastAPI:
    """Return the application, for `/james`."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.console, app.state.tasks = console, JamesTasks(console.clock)
    app.include_router(queue_routes.router)
    app.include_router(task_routes.router)
    add_handlers(app, james_response)
    return app
