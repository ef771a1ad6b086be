"""Routes about delivery: the suppression list, outcomes as they happen, and traces."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response, StreamingResponse

from postroad.administration.suppression import checked_tenant, readmit, suppress
from postroad.administration.tracing import search_attempts
from postroad.console.api.access import ChangeQueue, QueueAccess, ReadMails, audited
from postroad.console.api.models import (
    Page,
    SuppressionDocument,
    SuppressionQuery,
    SuppressRequest,
    TenantQuery,
    TraceQuery,
)
from postroad.console.api.streams import events_response, outcome_events
from postroad.domain.delivery.attempts import AttemptSelector, to_document
from postroad.ports.delivery import SuppressionList
from postroad.problems import Problem

router = APIRouter(prefix="/queues/{namespace}/{name}", tags=["delivery"])

Suppressed = Annotated[str, Path(max_length=320, examples=["b@example.net"])]


def _list_of(at: QueueAccess) -> SuppressionList:
    found = at.on.queue.suppression_list
    if found is None:
        raise Problem(404, "this queue has no suppression list")
    return found


@router.get("/suppressions")
async def list_suppressions(
    at: ReadMails, query: Annotated[SuppressionQuery, Query()]
) -> Page[SuppressionDocument]:
    """List the addresses that are not mailed, in no order that means anything."""
    after, items, last = bytes.fromhex(query.cursor or ""), list[SuppressionDocument](), b""
    async for each in _list_of(at).entries(checked_tenant(query.tenant), after):
        if len(items) >= query.limit and each.token != last:
            return Page(items=items, next=last.hex())
        items.append(SuppressionDocument(**each.printed()))
        last = each.token
    return Page(items=items, next=None)


@router.put("/suppressions/{address:path}", status_code=204)
async def put_suppression(
    at: ChangeQueue,
    address: Suppressed,
    query: Annotated[TenantQuery, Query()],
    wanted: SuppressRequest,
) -> Response:
    """Put an address on the list, or change why and for how long it is on it."""
    await suppress(
        _list_of(at),
        query.tenant,
        [address],
        wanted.reason,
        at.console.clock.now(),
        lifetime=wanted.lifetime,
        is_hashed=at.on.keeps_hashes,
    )
    audited(at, "suppress")
    return Response(status_code=204)


@router.delete("/suppressions/{address:path}", status_code=204)
async def delete_suppression(
    at: ChangeQueue, address: Suppressed, query: Annotated[TenantQuery, Query()]
) -> Response:
    """Take an address, or its hash, off the list."""
    _, missing = await readmit(_list_of(at), query.tenant, [address])
    if missing:
        raise Problem(404, "this address is not on the list")
    audited(at, "no more suppress")
    return Response(status_code=204)


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `outcome`, each a line as the attempt log has it, of one recipient "
        'at one attempt; and `missed`, `{"number": 3}`, where outcomes come faster than they are '
        "shown. A comment shows every 15 s that the stream is there.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/events", response_class=StreamingResponse, responses=_EVENTS)
async def watch_outcomes(at: ReadMails) -> StreamingResponse:
    """Watch what becomes of mail, from now on: workers show it within seconds."""
    if at.on.queue.shared_state is None:
        raise Problem(404, "this queue has no state that its processes share")
    return events_response(at, outcome_events(at))


def _no_log(at: QueueAccess) -> str:
    if at.console.queues.conditions(at.on.name) is None:
        return "there is no attempt log: start the console with --log, its folder"
    # In a cluster, each worker's attempt log is the disk of its pod.
    return (
        "the console of a cluster has no attempt log: attempts are in the view and the lake, which "
        f"`postroad trace --queue distributed://{at.on.name}` asks"
    )


@router.get("/trace")
async def trace(at: ReadMails, query: Annotated[TraceQuery, Query()]) -> Page[dict[str, Any]]:
    """Return the last attempts that fit, the oldest first, also of mail that is gone."""
    folder = at.on.attempt_log
    if folder is None or not await asyncio.to_thread(folder.is_dir):
        raise Problem(404, _no_log(at))
    now = at.console.clock.now()
    wanted = AttemptSelector(
        recipient=query.recipient,
        sender="" if query.sender == "<>" else query.sender,
        domain=query.domain,
        site=query.site,
        identifier=query.id,
        outcome=query.outcome,
        since=None if query.within is None else now - query.within,
    )
    if wanted == AttemptSelector():
        raise Problem(422, "name what to search for, such as `recipient`")
    found = (await asyncio.to_thread(search_attempts, folder, wanted)).found
    return Page(items=[to_document(each) for each in found[-query.limit :]], next=None)
