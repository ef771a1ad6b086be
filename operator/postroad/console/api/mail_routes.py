"""Routes about mail: listings, one mail, its content."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from postroad.administration.tracing import search_attempts
from postroad.console.api.access import ListMails, QueueAccess, ReadContent, ReadMails
from postroad.console.api.models import MailDetail, MailDocument, MailQuery, Page
from postroad.console.api.streams import stream_of
from postroad.console.reading import Views, find_mail, find_page
from postroad.domain.delivery.attempts import AttemptSelector, to_document
from postroad.domain.queues.documents import MailView

router = APIRouter(prefix="/queues/{namespace}/{name}", tags=["mails"])


MAX_ATTEMPTS = 1000
"""Attempts that are shown of one mail, the last ones."""


@router.get("/mails")
async def list_mails(at: ListMails, query: Annotated[MailQuery, Query()]) -> Page[MailDocument]:
    """Search waiting mail, the oldest first."""
    return await _page(at, at.on.queue.browse, query)


@router.get("/dead-letters")
async def list_dead_letters(
    at: ReadMails, query: Annotated[MailQuery, Query()]
) -> Page[MailDocument]:
    """Search dead letters, the oldest first."""
    return await _page(at, at.on.queue.dead_letters, query)


async def _page(at: QueueAccess, views: Views, query: MailQuery) -> Page[MailDocument]:
    found = await find_page(views, query.search(), query.cursor, query.limit, at.console.clock)
    items = [MailDocument.of(each) for each in found.views]
    return Page(items=items, next=None if found.next is None else str(found.next))


@router.get("/mails/{id}")
async def get_mail(at: ReadMails, id: UUID) -> MailDetail:  # noqa: A002
    """Return a mail, waiting or dead, with its attempts and why it waits."""
    view = await find_mail(at.on.queue, id)
    return MailDetail.detail(view, await _attempts(at, view))


async def _attempts(at: QueueAccess, view: MailView) -> list[dict[str, Any]]:
    if at.on.attempt_log is None:
        return []
    wanted = AttemptSelector(identifier=view.mail_id, since=view.accepted_at)
    found = (await asyncio.to_thread(search_attempts, at.on.attempt_log, wanted)).found
    return [to_document(each) for each in found[-MAX_ATTEMPTS:]]


_RFC822: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The message, as it was accepted.",
        "content": {"message/rfc822": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/mails/{id}/content", response_class=StreamingResponse, responses=_RFC822)
async def get_content(at: ReadContent, id: UUID) -> StreamingResponse:  # noqa: A002
    """Return the content of a mail, waiting or dead, to be saved: no browser shows it here."""
    headers = {"Content-Disposition": f'attachment; filename="{id}.eml"'}
    return await stream_of(at.on.queue.content(id), "message/rfc822", headers)
