"""Routes of the page, and the files that it needs."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.staticfiles import StaticFiles

from postroad.console.page import delivery_pages, mail_pages, operation_pages, queue_pages

STATIC = "/static"


def add_page(app: FastAPI) -> None:
    """Serve the page beside the API of an application."""
    page = APIRouter()
    for each in (queue_pages, mail_pages, operation_pages, delivery_pages):
        page.include_router(each.router)
    app.include_router(page)
    app.mount(STATIC, StaticFiles(packages=[("postroad.console.page", "static")]))
