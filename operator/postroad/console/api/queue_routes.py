"""Routes about queues: their sizes, their mail by age, the report of their lake."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from postroad.console.api.access import Console, ReadMails, ReadQueue, console_of, user_of
from postroad.console.api.models import (
    ConditionDocument,
    DomainAges,
    Page,
    QueueDocument,
    RatesDocument,
    SizesDocument,
)
from postroad.console.queues import ConsoleQueue
from postroad.console.rights import QUEUES
from postroad.domain.queues.documents import ages_value
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.selection import age_name
from postroad.errors import PostroadError
from postroad.problems import Problem

router = APIRouter(tags=["queues"])

MAX_REPORT = 32 * 1024 * 1024
"""Octets of a report that is shown."""


@router.get("/queues")
async def list_queues(request: Request) -> Page[QueueDocument]:
    """List the queues of this console that the user may see, with their sizes."""
    console, who = console_of(request), user_of(request)
    names = console.queues.names()
    namespaces = list(dict.fromkeys(each.namespace for each in names))
    may = [console.rights.may(who, "list", QUEUES, each) for each in namespaces]
    seen = dict(zip(namespaces, await asyncio.gather(*may), strict=True))
    items = [_item(console, each) for each in names if seen[each.namespace]]
    return Page(items=list(await asyncio.gather(*items)), next=None)


async def _item(console: Console, name: QueueName) -> QueueDocument:
    try:
        return await _document(console, await console.queues.open(name))
    except PostroadError as error:  # the others are shown all the same
        return QueueDocument(
            namespace=name.namespace,
            name=name.name,
            problem=error.explain(),
            conditions=_conditions(console, name),
        )


async def _document(console: Console, on: ConsoleQueue) -> QueueDocument:
    sizes, ages = await asyncio.gather(on.queue.size(), on.queue.ages())
    rates = await console.rates.observe(on, sizes)
    return QueueDocument(
        namespace=on.name.namespace,
        name=on.name.name,
        sizes=SizesDocument.of(sizes),
        oldest_age=_oldest(ages),
        rates=None if rates is None else RatesDocument.of(rates),
        conditions=_conditions(console, on.name),
        report_at=None if on.report is None else await asyncio.to_thread(_written, on.report),
    )


def _written(report: Path) -> datetime | None:
    try:
        found = report.stat()
        return datetime.fromtimestamp(found.st_mtime, UTC) if _is_page(found) else None
    except OSError:
        return None


def _is_page(found: os.stat_result) -> bool:
    # Of a pipe, a read never ends; threads that wait so are taken from everything else.
    return S_ISREG(found.st_mode) and found.st_size <= MAX_REPORT


def _page(report: Path) -> bytes:
    """Return a report. Raises: OSError, FileNotFoundError for what is none."""
    if not _is_page(report.stat()):
        raise FileNotFoundError(report)
    return report.read_bytes()


def _conditions(console: Console, name: QueueName) -> list[ConditionDocument] | None:
    found = console.queues.conditions(name)
    return None if found is None else [ConditionDocument(**each) for each in found]


def _oldest(ages: Mapping[str, Mapping[timedelta, int]]) -> str | None:
    limits = [limit for counts in ages.values() for limit, count in counts.items() if count]
    return age_name(max(limits)) if limits else None


@router.get("/queues/{namespace}/{name}")
async def get_queue(at: ReadQueue) -> QueueDocument:
    """Return the sizes, the rates and the conditions of a queue."""
    return await _document(at.console, at.on)


@router.get("/queues/{namespace}/{name}/ages")
async def get_ages(at: ReadQueue) -> Page[DomainAges]:
    """Return waiting mails by destination domain and age, the largest domain first."""
    rows = ages_value(await at.on.queue.ages())
    return Page(items=[DomainAges(**each) for each in rows], next=None)


REPORT_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
)
"""Of a report, which has its pictures and its style in itself, and no script."""

_HTML: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/html": {"schema": {"type": "string"}}}}
}


@router.get("/queues/{namespace}/{name}/report", response_class=Response, responses=_HTML)
async def get_report(at: ReadMails) -> Response:
    """Return the last report of the queue's lake, a page, as it was written."""
    try:
        if at.on.report is None:
            raise FileNotFoundError
        page = await asyncio.to_thread(_page, at.on.report)
    except OSError:
        raise Problem(404, "this console has no report of the queue's lake") from None
    return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})
