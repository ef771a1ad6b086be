"""Errors as problems, and the responses that routes document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from postroad.errors import BlobMissing, InvalidInput, MailNotFound, PostroadError, QueueNotFound
from postroad.problems import RETRY_SECONDS, Problem, ProblemDocument, malformed_fields
from postroad.telemetry.logs import logger

_log = logger("console")

TEXTS = {
    400: "The request, or its JSON, is malformed.",
    401: "There is no session, or it is over.",
    403: "The user may not do this, or a change by cookie has another Origin.",
    404: "There is no such queue, mail or entry.",
    405: "The path has no such method.",
    409: "The operation needs the number of mails that it is for now, as `confirm`; or its key "
    "stands for another one.",
    413: "The body is larger than accepted.",
    421: "The header Host names another server.",
    422: "A parameter or a field is refused.",
    429: "Too many requests, or too many at a time.",
    503: "A server or the store does not answer now.",
}
"""Problems that routes document."""


def documented(*more: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route for its description: those of every route, and `more`."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({400, 401, 403, 404, 405, 413, 421, 422, 429, 503, *more}):
        example = Problem(status, TEXTS[status]).document()
        content = {"application/problem+json": {"schema": _SCHEMA, "example": example}}
        found[status] = {"description": TEXTS[status], "content": content}
        if status in RETRY_SECONDS:
            found[status]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return found


_SCHEMA = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}


def problem_of(error: PostroadError) -> Problem:
    """Return the problem of an error of a queue. Servers that are away, and stores that stopped,
    are one status: the same request can succeed later."""
    match error:
        case MailNotFound() | QueueNotFound() | BlobMissing():
            return Problem(404, error.explain())
        case InvalidInput():
            return Problem(422, error.explain())
    _log.warning("a request failed", error=f"{type(error).__name__}: {error.explain()}")
    return Problem(503, error.explain())


def add_handlers(app: FastAPI, respond: Callable[[Request, Problem], Response]) -> None:
    """Let every error be a problem, of which `respond` makes the response."""

    def handle(kind: type[Exception], problem: Callable[[Any], Problem]) -> None:
        async def handler(request: Request, error: Exception) -> Response:
            return respond(request, problem(error))

        app.add_exception_handler(kind, handler)

    handle(Problem, lambda error: error)
    handle(PostroadError, problem_of)
    handle(RequestValidationError, lambda error: malformed_fields(error.errors()))
    handle(HTTPException, _of_http)
    handle(Exception, _unexpected)


def _of_http(error: HTTPException) -> Problem:
    return Problem(error.status_code, str(error.detail), headers=(error.headers or {}).items())


def _unexpected(error: Exception) -> Problem:
    _log.error("a request met an error of the console itself", exc_info=error)
    return Problem(500, "the console failed; its log has the error")
