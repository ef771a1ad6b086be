"""James' paths on tasks: listed, looked at, awaited, cancelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from postroad.console.api.access import console_of, require_right, still_proven, user_of
from postroad.console.api.james.answers import JamesError, duration_of, refused_with, whole_number
from postroad.console.api.james.queue_routes import tasks_of
from postroad.console.api.james.tasks import JamesTask, TaskStatus
from postroad.console.api.streams import CHECK_EVERY
from postroad.console.rights import MAILS, OPERATIONS

router = APIRouter(prefix="/{namespace}/tasks")

MAX_AWAIT = timedelta(days=365)

_BOUND = re.compile(r"(submitted|started|completed|failed)(Before|After)")


@router.get("")
async def list_tasks(request: Request, namespace: str) -> Response:
    """List tasks, the last ones first."""
    await require_right(request, "get", OPERATIONS, namespace)
    with refused_with("Invalid status query parameter"):
        found = _chosen(tasks_of(request).of(namespace), dict(request.query_params))
    return JSONResponse(await _documents(request, namespace, found))


async def _documents(
    request: Request, namespace: str, tasks: Iterable[JamesTask]
) -> list[dict[str, Any]]:
    """Return tasks with the addresses that selected mail, to a user who may see addresses."""
    rights, who = console_of(request).rights, user_of(request)
    may_see = await rights.may(who, "get", MAILS, namespace)
    return [each.document(has_addresses=may_see) for each in tasks]


def _chosen(tasks: Iterable[JamesTask], asked: Mapping[str, str]) -> list[JamesTask]:
    """Raises: ValueError, with the texts of James where he has one."""
    found = list(tasks)
    if (status := asked.get("status")) is not None:
        if status.lower() not in {each.lower() for each in TaskStatus}:
            raise ValueError(f"Unknown status value '{status}'")
        found = [each for each in found if each.status.lower() == status.lower()]
    if (kind := asked.get("type")) is not None:
        found = [each for each in found if each.type == kind]
    for name, value in asked.items():
        if (bound := _BOUND.fullmatch(name)) is not None:
            found = [each for each in found if _is_within(each, bound, value)]
    offset, limit = (_number(name, asked.get(name)) for name in ("offset", "limit"))
    return found[offset or 0 :][:limit]


def _is_within(task: JamesTask, bound: re.Match[str], value: str) -> bool:
    moment, limit = task.dates().get(bound[1]), datetime.fromisoformat(value)
    if limit.tzinfo is None:
        raise ValueError(f"{value} has no offset from UTC")
    if moment is None:
        return False
    return moment < limit if bound[2] == "Before" else moment > limit


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if (number := whole_number(text)) < 0:
        raise ValueError(f"'{name}' should be positive")
    return number


@router.get("/{id}")
async def get_task(request: Request, namespace: str, id: str) -> Response:  # noqa: A002
    """Return how far a task is."""
    task = await _found(request, "get", namespace, id)
    if task is None:
        raise JamesError(404, f"{id} can not be found")
    return JSONResponse((await _documents(request, namespace, [task]))[0])


@router.get("/{id}/await")
async def await_task(request: Request, namespace: str, id: str) -> Response:  # noqa: A002
    """Return a task once it has ended, or an error after `timeout`, by default in a year."""
    task = await _found(request, "get", namespace, id)
    with refused_with("Invalid timeout"):
        timeout = _timeout(request.query_params.get("timeout"))
    if task is None:
        raise JamesError(404, "The taskId is not found", kind="ServerError")
    streams, who = console_of(request).streams, user_of(request).name
    streams.check_room(who)
    elapsed = console_of(request).clock.elapsed
    until = elapsed() + timeout
    with streams.one(who):  # it holds a connection as a stream does
        while not await _has_ended(task, min(until - elapsed(), CHECK_EVERY)):
            if elapsed() >= until:
                raise JamesError(408, "The timeout has been reached")
            if not await still_proven(request):
                raise JamesError(401, "The session is over")
            await require_right(request, "get", OPERATIONS, namespace)
    return JSONResponse((await _documents(request, namespace, [task]))[0])


async def _has_ended(task: JamesTask, within: timedelta) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(task.ended.wait(), within.total_seconds())
    return task.ended.is_set()


def _timeout(text: str | None) -> timedelta:
    found = duration_of(text, timedelta(seconds=1)) if text else MAX_AWAIT
    if found > MAX_AWAIT:
        raise ValueError("Timeout should not exceed 365 days")
    return found


@router.delete("/{id}")
async def cancel_task(request: Request, namespace: str, id: str) -> Response:  # noqa: A002
    """Cancel a task, if it is there and works."""
    task = await _found(request, "create", namespace, id)
    if task is not None:
        tasks_of(request).cancel(task)
    return Response(status_code=204)


async def _found(request: Request, verb: str, namespace: str, text: str) -> JamesTask | None:
    """Return a task of a namespace to whose operations the user has a right. Raises: Problem."""
    await require_right(request, verb, OPERATIONS, namespace)
    try:
        task_id = UUID(text)
    except ValueError:
        raise JamesError(400, "Invalid task id", f"Invalid UUID string: {text}") from None
    return tasks_of(request).find(namespace, task_id)
