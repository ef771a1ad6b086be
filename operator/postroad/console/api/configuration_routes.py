"""Routes about the configuration of a queue's view: the accepted one, its history, a plan."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from postroad.administration.configuration import (
    ConfigurationOf,
    planned,
    present_document,
    state_of,
)
from postroad.console.api.access import QueueAccess, ReadQueue
from postroad.console.api.models import ApiDocument, ApiRequest, MailAge
from postroad.domain.configuration.documents import to_document
from postroad.problems import Problem

router = APIRouter(
    prefix="/queues/{namespace}/{name}/configuration",
    tags=["configuration"],
)


class ConfigurationDocument(ApiDocument):
    """The accepted configuration of a view, how far it has spread, and its history."""

    version: int
    slice_window: str = Field(examples=["1h"])
    bucket_count: int
    update_browse_start_pace: int
    accepted_at: str
    writing_version: int
    """The version that is still written under."""
    oldest_version: int
    """The oldest version that is still read under."""
    history: list[dict[str, Any]]
    """All changes, accepted and refused, the oldest first."""


class PlanQuery(ApiRequest):
    """A change of the configuration; what is not given stays."""

    slice_window: MailAge | None = Field(default=None, examples=["30m"])
    bucket_count: int | None = Field(default=None, ge=1, le=2**31 - 1)
    update_browse_start_pace: int | None = Field(default=None, ge=1, le=2**31 - 1)

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class PlanDocument(ApiDocument):
    """Effect of a change. Nothing is recorded."""

    outcome: str = Field(examples=["changed"])
    """One of created, unchanged, changed, refused."""
    version: int
    reason: str | None = None
    message: str | None = None
    """Why it is refused."""
    allowed: dict[str, Any] | None = None
    changes: list[dict[str, Any]] | None = None
    advice: dict[str, Any] | None
    """The configuration that suits the mail that the view knows of; null: it could not be read."""


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
