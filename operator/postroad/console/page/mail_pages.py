"""Pages about mail: a search, one mail, dead letters by their reasons."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from postroad.console.page.api_calls import Api
from postroad.console.page.rendering import query, render
from postroad.problems import Problem

router = APIRouter(prefix="/queues/{namespace}/{name}", include_in_schema=False)

SELECTOR = ("sender", "recipient", "domain", "olderThan")
"""Fields of a search that select mail for an operation, too."""

FILTERS = (*SELECTOR, "state", "q")

MAX_GROUPED = 500
"""Dead letters of a page, in groups by reason."""

MAX_REASON = 200
"""Characters by which reasons are compared: a server chooses them, and the time grows by their
square."""


@router.get("/mails")
async def search_mails(request: Request, namespace: str, name: str) -> Response:
    """Search mail that waits."""
    return await _listing(request, namespace, name, "mails", "mails", 50)


@router.get("/dead-letters")
async def show_dead_letters(request: Request, namespace: str, name: str) -> Response:
    """Show dead letters by their reasons."""
    return await _listing(request, namespace, name, "dead-letters", "dead_letters", MAX_GROUPED)


async def _listing(
    request: Request, namespace: str, name: str, path: str, template: str, limit: int
) -> Response:
    api, at = Api(request), ("queues", namespace, name)
    given = {each: request.query_params.get(each, "").strip() for each in FILTERS}
    cursor = request.query_params.get("cursor")
    asked: list[tuple[str, Any]] = [*given.items(), ("cursor", cursor), ("limit", limit)]
    queue = await api.get(*at)
    problem: str | None = None
    found: dict[str, Any] = {"items": [], "next": None}
    try:
        found = await api.get(*at, path, query=asked)
    except Problem as refused:
        if refused.status != 422:
            raise
        problem = refused.detail
    return render(
        template,
        422 if problem else 200,
        queue=queue,
        tab=path,
        given=given,
        is_selector=not given["state"] and not given["q"],
        is_filtered=any(given.values()),
        problem_text=problem,
        mails=found["items"],
        groups=by_reason(found["items"]),
        next=found["next"] and query(*given.items(), ("cursor", found["next"])),
        cursor=cursor,
    )


def by_reason(mails: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return mails by what their reasons have in common beside addresses, most first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in mails:
        reason = re.sub(r"<?[^\s<>]+@[^\s<>]+>?", "…", (each["reason"] or "")[:MAX_REASON])
        groups.setdefault(reason, []).append(each)
    return sorted(groups.items(), key=lambda each: -len(each[1]))


@router.get("/mails/{mail}")
async def show_mail(request: Request, namespace: str, name: str, mail: str) -> Response:
    """Show one mail: its path through time, and why it waits."""
    api, at = Api(request), ("queues", namespace, name)
    queue, found = await asyncio.gather(api.get(*at), api.get(*at, "mails", mail))
    tab = "dead-letters" if found["state"] == "dead" else "mails"
    did = request.query_params.get("did")
    return render("mail", queue=queue, tab=tab, mail=found, did=did)
