"""Errors of requests, as responses of `application/problem+json`.

Source: RFC 9457; RFC 9110 15.5, 15.6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from postroad.domain.error_codes import TOO_LARGE
from postroad.domain.smtp.replies import Reply
from postroad.intake.clients import TOO_MANY_MAILS
from postroad.intake.dialogue import WRONG_SENDER
from postroad.intake.reply_texts import LARGE_HEADER
from postroad.intake.submission import TOO_MANY_OF_USER
from postroad.intake.submitted_header import WRONG_AUTHOR

RETRY_SECONDS: Mapping[int, int] = {429: 60, 503: 30}
"""Seconds of Retry-After, by status: a rate of a minute is there again; a server may have come
back."""

MAX_FIELDS = 20
"""Wrong fields that a response names."""

_STATUSES = {
    TOO_LARGE: 413,
    LARGE_HEADER: 413,
    WRONG_AUTHOR: 403,
    WRONG_SENDER: 403,
    TOO_MANY_OF_USER: 429,
    TOO_MANY_MAILS: 429,
}


class FieldError(BaseModel):
    """One field that is wrong."""

    field: str = Field(examples=["to[0]"])
    message: str


class ProblemDocument(BaseModel):
    """An error. Source: RFC 9457."""

    type: str = "about:blank"
    title: str = Field(examples=["Too Many Requests"])
    status: int = Field(examples=[429])
    detail: str = Field(examples=["too many mails from this user, come again"])
    errors: tuple[FieldError, ...] = ()
    """Fields that are wrong, at most 20; with status 422."""


class Problem(Exception):
    """A request, or a mail of one, is refused."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Iterable[FieldError] = (),
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, tuple(errors)
        retry = RETRY_SECONDS.get(status)
        self.headers = [*headers, *([("Retry-After", str(retry))] if retry else [])]

    def document(self) -> dict[str, Any]:
        found = ProblemDocument(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            errors=self.errors,
        )
        return {"type": found.type, **found.model_dump(exclude_defaults=True)}


def problem_of(reply: Reply) -> Problem:
    """Return the problem for which SMTP has this reply: 422 and 503 where no other status says
    more."""
    status = _STATUSES.get(reply) or (422 if reply.is_permanent else 503)
    return Problem(status, reply.lines[0].partition(" ")[2])


def malformed(error: ValidationError) -> Problem:
    """Return the problem of a body that does not fit its schema; it quotes nothing of the body."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return Problem(400, f"the body is not JSON: {errors[0]['msg'].partition(': ')[2]}")
    named = [FieldError(field=_place(each["loc"]), message=_said(each["msg"])) for each in errors]
    first = named[0]
    return Problem(422, f"{first.field}: {first.message}", errors=named[:MAX_FIELDS])


def _place(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return text.removeprefix(".")[:200] or "body"


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")
