"""Errors of requests of HTTP, as documents of `application/problem+json`.

Source: RFC 9457; RFC 9110 15.5, 15.6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field, ValidationError

RETRY_SECONDS: Mapping[int, int] = {429: 60, 503: 30}
"""Seconds of Retry-After, by status: a rate of a minute is there again; a server may have come
back."""

MAX_FIELDS = 20
"""Wrong fields that a response names."""


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


def malformed(error: ValidationError) -> Problem:
    """Return the problem of a body that does not fit its schema; it quotes nothing of the body."""
    return malformed_fields(
        error.errors(include_url=False, include_input=False, include_context=False)
    )


def malformed_fields(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the problem of the errors of a validation by pydantic."""
    if errors[0]["type"] == "json_invalid":
        said = errors[0]["msg"].partition(": ")[2] or errors[0]["ctx"]["error"]
        return Problem(400, f"the body is not JSON: {said}")
    if errors[0]["type"] == "model_attributes_type":
        return Problem(422, "the body is no JSON object with `Content-Type: application/json`")
    named = [FieldError(field=_place(each["loc"]), message=_said(each["msg"])) for each in errors]
    first = named[0]
    return Problem(422, f"{first.field}: {first.message}", errors=named[:MAX_FIELDS])


def _place(location: Sequence[int | str]) -> str:
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return text.removeprefix(".")[:200] or "body"


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")
