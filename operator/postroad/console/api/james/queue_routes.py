"""James' paths on mail queues. A namespace of the console stands before them, as
`/james/local/mailQueues`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from postroad.console.api.access import (
    ChangeQueue,
    ListMails,
    QueueAccess,
    ReadQueue,
    audited,
    console_of,
    require_right,
)
from postroad.console.api.james.answers import JamesError, duration_of, refused_with, whole_number
from postroad.console.api.james.tasks import Details, JamesTask, JamesTasks
from postroad.console.api.streams import stream_of, while_allowed
from postroad.console.rights import QUEUES
from postroad.domain.mail.mail import check_mailbox
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Selector
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidMail

router = APIRouter(prefix="/{namespace}/mailQueues")

REPUBLISH, BROWSE_START = "RepublishNotProcessedMails", "updateBrowseStart"
ACTIONS = f"Supported values are [{REPUBLISH}, {BROWSE_START}]"


@router.get("")
async def list_queues(request: Request, namespace: str) -> Response:
    """List the names of queues."""
    await require_right(request, "list", QUEUES, namespace)
    names = console_of(request).queues.names()
    return JSONResponse([each.name for each in names if each.namespace == namespace])


@router.get("/{name}")
async def get_queue(at: ReadQueue) -> Response:
    """Return how many mails a queue has."""
    return JSONResponse({"name": at.on.name.name, "size": (await at.on.queue.size()).size})


@router.get("/{name}/mails")
async def list_mails(request: Request, at: ListMails) -> Response:
    """List waiting mail, the oldest first; `limit` counts before `delayed` leaves mail out, as at
    James."""
    delayed = request.query_params.get("delayed")
    limit = _limit(request.query_params.get("limit") or None)
    lines = _lines(at, None if delayed is None else _is_true(delayed), limit)
    return await stream_of(while_allowed(at, lines), "application/json")


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() == "true"


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    with refused_with("Can not parse limit"):
        limit = whole_number(text)
    if limit <= 0:
        raise JamesError(400, f"limit can not be {'negative' if limit else 'equal to zero'}")
    return limit


async def _lines(
    at: QueueAccess, delayed: bool | None, limit: int | None
) -> AsyncGenerator[str, None]:
    """Yield the array in parts."""
    before, number = "[", 0
    now = at.console.clock.now()
    async for view in at.on.queue.browse():
        is_delayed = view.due_at is not None and view.due_at > now
        if delayed is None or delayed is is_delayed:
            yield before + json.dumps(_item(view))
            before = ","
        number += 1
        if number == limit:
            break
    yield "[]" if before == "[" else "]"


def _item(view: MailView) -> dict[str, Any]:
    return {
        "name": view.mail.name,
        "sender": view.mail.sender,
        "recipients": list(view.mail.recipients),
        "nextDelivery": rfc3339(view.due_at),
    }


@router.delete("/{name}/mails")
async def delete_mails(request: Request, at: ChangeQueue) -> Response:
    """Begin to remove the mails of a sender, a recipient or a name, or all of them."""
    asked = {name: request.query_params.get(name) for name in ("sender", "name", "recipient")}
    for what in ("sender", "recipient"):
        if (address := asked[what]) is not None:
            _check_address(what, address)
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) > 1:
        raise JamesError(
            400,
            "You should provide only one of the query parameters 'sender', 'name', 'recipient' for"
            " deleting mails by condition or no parameter for deleting all mails in the mail"
            " queue.",
        )
    # Mail that comes during the task stays.
    selector = Selector(
        sender=asked["sender"],
        name=asked["name"],
        recipient=asked["recipient"],
        everything=not given,
        accepted_before=at.console.clock.now(),
    )

    async def work(task: JamesTask) -> Details:
        before = (await at.on.queue.size()).size
        task.details = {
            "type": task.type,
            "mailQueueName": at.on.name.name,
            "initialCount": before,
            "remainingCount": before,
            **(asked if given else {}),
        }
        await at.on.queue.remove(selector)
        return {**task.details, "remainingCount": (await at.on.queue.size()).size}

    kind = "delete-mails-from-mail-queue" if given else "clear-mail-queue"
    return _begun(request, tasks_of(request).begin(at, kind, work))


def _check_address(what: str, address: str) -> None:
    try:
        check_mailbox(address)
    except InvalidMail as error:
        message = f"'{what}' should be a mail address (i.e. {what}@james.org)"
        raise JamesError(400, message, error.explain()) from None


@router.patch("/{name}/mails")
async def flush(request: Request, at: ChangeQueue) -> Response:
    """Make delayed mails due now."""
    if not _is_true(request.query_params.get("delayed")):
        raise JamesError(400, "This request requires delayed param to be set to true")
    try:
        wanted = json.loads(await request.body())
        if not isinstance(wanted, dict) or not wanted.keys() <= {"delayed"}:
            raise ValueError("an object with the field delayed alone is expected")
        delayed = wanted.get("delayed")
        if delayed not in (None, True, False, "true", "false"):
            raise ValueError("delayed is true or false")
    except (ValueError, RecursionError) as error:
        raise JamesError(400, f"Invalid JSON document: {error}", str(error)) from None
    if delayed not in (False, "false"):
        message = "This request requires payload to contain delayed attribute set to false"
        raise JamesError(400, message)
    audited(at, "flush")
    await at.on.queue.flush(Selector.all())
    return Response(status_code=204)


@router.post("/{name}")
async def begin_action(request: Request, at: ChangeQueue) -> Response:
    """Begin to republish mail, or a round of maintenance, which advances browse start."""
    action = request.query_params.get("action")
    if action not in (REPUBLISH, BROWSE_START):
        raise JamesError(400, "Invalid arguments supplied in the user request", _wrong(action))
    about = {"mailQueue": at.on.name.name}
    if action == BROWSE_START:

        async def maintain(task: JamesTask) -> Details:
            await at.on.queue.maintain()
            return {"type": task.type, **about}

        return _begun(request, tasks_of(request).begin(at, "browse-start-update", maintain))
    if not (text := request.query_params.get("olderThan")):
        raise JamesError(400, "Missing olderThan")
    with refused_with("Invalid olderThan"):
        older_than = duration_of(text, timedelta(days=1))
        since = rfc3339(at.console.clock.now() - older_than)

    async def republish(task: JamesTask) -> Details:
        task.details = {"type": task.type, **about, "olderThan": since, "nbRequeuedMails": 0}
        return {**task.details, "nbRequeuedMails": await at.on.queue.republish(older_than)}

    return _begun(request, tasks_of(request).begin(at, "republish-not-processed-mails", republish))


def _wrong(action: str | None) -> str:
    if action is None or not action.strip():
        wrong = "is compulsory" if action is None else "cannot be empty or blank"
        return f"'action' query parameter {wrong}. {ACTIONS}"
    return f"Invalid value supplied for query parameter 'action': {action}. {ACTIONS}"


def tasks_of(request: Request) -> JamesTasks:
    tasks: JamesTasks = request.app.state.tasks
    return tasks


def _begun(request: Request, task: JamesTask) -> Response:
    location = f"{request.scope['root_path']}/{task.namespace}/tasks/{task.id}"
    return JSONResponse({"taskId": str(task.id)}, 201, {"Location": location})
