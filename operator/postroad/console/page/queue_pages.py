"""Pages about queues: all of them, and one with the ages of its mail."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from postroad.console.page.api_calls import Api
from postroad.console.page.rendering import render

router = APIRouter(include_in_schema=False)

MAX_DOMAINS = 50
"""Domains whose ages are shown, those with most mail."""


@router.get("/")
async def show_queues(request: Request, live: bool = False) -> Response:
    """Show all queues."""
    api = Api(request)
    queues = (await api.get("queues"))["items"]
    asked = [api.get("queues", each["namespace"], each["name"], "ages") for each in queues]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    pictures = [None if isinstance(each, BaseException) else _bars(each) for each in answers]
    return render("queues", rows=list(zip(queues, pictures, strict=True)), live=live)


def _bars(ages: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return name, mails and height of each class of age, for a picture of 20 units."""
    totals: dict[str, int] = {}
    for row in ages["items"]:
        for limit, count in row["ages"].items():
            totals[limit] = totals.get(limit, 0) + count
    most = max(totals.values(), default=0)
    return [
        (limit, count, round(20 * count / most) or 1 if count else 0)
        for limit, count in totals.items()
    ]


@router.get("/queues/{namespace}/{name}")
async def show_queue(request: Request, namespace: str, name: str, live: bool = False) -> Response:
    """Show a queue: how much waits, comes and goes, and how old it is."""
    api, at = Api(request), ("queues", namespace, name)
    queue, ages = await asyncio.gather(api.get(*at), api.get(*at, "ages"))
    rows = [_older(each) for each in ages["items"][:MAX_DOMAINS]]
    limits = [limit for limit, _, _ in rows[0]["cells"]] if rows else []
    more = max(0, len(ages["items"]) - MAX_DOMAINS)
    shown: dict[str, Any] = {"rows": rows, "limits": limits, "more": more}
    return render("queue", queue=queue, tab="queue", live=live, **shown)


def _older(row: dict[str, Any]) -> dict[str, Any]:
    """Return for each age the mails of a domain that are older, so that a search finds just these;
    and how much of the domain's mail that is, from 0 to 5."""
    cells, left = [], row["total"]
    for limit, count in row["ages"].items():
        if limit == "older":
            break
        left -= count
        cells.append((limit, left, -(-5 * left // row["total"]) if row["total"] else 0))
    return {"domain": row["domain"], "total": row["total"], "cells": cells}
