"""Routes about operations on selected mails: begun, watched; and what was changed by whom."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header
from starlette.responses import StreamingResponse

from postroad.console.api.access import ChangeQueue, QueueAccess, ReadOperations
from postroad.console.api.errors import documented
from postroad.console.api.models import (
    AuditDocument,
    OperationBegun,
    OperationDocument,
    OperationRequest,
    Page,
)
from postroad.console.api.streams import events_response, progress_events
from postroad.console.operations import Running
from postroad.problems import Problem

router = APIRouter(prefix="/queues/{namespace}/{name}", tags=["operations"])


IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=255, pattern="^[!-~]+$"),
]


@router.post("/operations", status_code=202, responses=documented(409))
async def begin_operation(
    at: ChangeQueue, wanted: OperationRequest, key: IdempotencyKey = None
) -> OperationBegun:
    """Begin an operation, or count the mails that it is for. Repeating it changes nothing twice;
    with the same key, it answers with what was begun before, while the console remembers that."""
    begun = await at.console.operations.begin(
        at.on,
        wanted.operation,
        wanted.selector.selector(),
        at.who.name,
        is_dry=wanted.dry_run,
        confirm=wanted.confirm,
        key=key,
    )
    return OperationBegun(id=begun.id, matched=begun.matched)


@router.get("/operations/{id}")
async def get_operation(at: ReadOperations, id: UUID) -> OperationDocument:  # noqa: A002
    """Return how far an operation is, and its result."""
    return OperationDocument.of(_found(at, id))


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `progress`, each with the operation as JSON, until it has ended.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/operations/{id}/events", response_class=StreamingResponse, responses=_EVENTS)
async def watch_operation(at: ReadOperations, id: UUID) -> StreamingResponse:  # noqa: A002
    """Watch how an operation goes on."""
    return events_response(at, progress_events(_found(at, id)))


@router.get("/audit")
async def list_changes(at: ReadOperations) -> Page[AuditDocument]:
    """List the last changes that this console made, the newest first. It forgets them at its end;
    its log does not."""
    entries = at.console.audit.entries(at.on.name)
    return Page(items=[AuditDocument.of(each) for each in entries], next=None)


def _found(at: QueueAccess, operation_id: UUID) -> Running:
    found = at.console.operations.find(at.on, operation_id)
    if found is None:
        raise Problem(
            404, "the console knows no such operation: it forgets the oldest, and all at its end"
        )
    return found
