"""Routes about the configuration of a queue's view: the accepted one, its history, a plan."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from postroad.administration.configuration import (
    ConfigurationOf,
    planned,
    present_document,
    state_of,
)
from postroad.console.api.access import QueueAccess, ReadQueue
from postroad.console.api.models import ConfigurationDocument, PlanDocument, PlanQuery
from postroad.domain.configuration.documents import to_document
from postroad.problems import Problem

router = APIRouter(
    prefix="/queues/{namespace}/{name}/configuration",
    tags=["configuration"],
)


def _of(at: QueueAccess) -> ConfigurationOf:
    if at.on.configuration is None:
        raise Problem(404, "this queue has no view whose configuration could change")
    return at.on.configuration


@router.get("")
async def get_configuration(at: ReadQueue) -> ConfigurationDocument:
    """Return the accepted configuration and its history."""
    opened = _of(at)
    recorded = await opened.history.load()
    present = present_document(opened, recorded, await state_of(opened, recorded))
    return ConfigurationDocument.model_validate(
        present | {"history": [to_document(each) for each in recorded.events]}
    )


@router.get("/plan")
async def plan_configuration(at: ReadQueue, query: Annotated[PlanQuery, Query()]) -> PlanDocument:
    """Return what a change would lead to, and which configuration suits the mail. Nothing is
    recorded: a MailQueue is changed by its resource."""
    outcome, _ = await planned(_of(at), query.given())
    return PlanDocument.model_validate(outcome)
