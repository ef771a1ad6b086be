"""Answers in the form of James' WebAdmin: errors, instants, and the values of his parameters.

Source: Apache James, Web Administration."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from postroad.console.api.errors import problem_of
from postroad.errors import PostroadError
from postroad.problems import Problem
from postroad.telemetry.logs import logger

_log = logger("console")

MAX_DURATION = 100
"""Characters of a duration."""

_DURATION = re.compile(r"\s*([0-9]+)\s*([a-zA-Z]*)\s*")
_UNITS = {
    timedelta(milliseconds=1): "ms msec msecs",
    timedelta(seconds=1): "s sec secs second seconds",
    timedelta(minutes=1): "m min mins minute minutes",
    timedelta(hours=1): "h hour hours",
    timedelta(days=1): "d day days",
    timedelta(weeks=1): "w week weeks",
    timedelta(seconds=31556952 // 12): "month months",
    timedelta(seconds=31556952): "y year years",
}
_BY_NAME = {name: unit for unit, names in _UNITS.items() for name in names.split()}


class JamesError(Exception):
    """A request that James' WebAdmin would refuse."""

    def __init__(
        self, status: int, message: str, details: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.details = status, message, details
        usual = {400: "InvalidArgument", 404: "notFound"}
        self.kind = kind or usual.get(status, "ServerError")

    def response(self) -> Response:
        shown = {"type": self.kind, "message": self.message, "details": self.details}
        return JSONResponse({"statusCode": self.status, **shown}, self.status)


def duration_of(text: str, unit: timedelta) -> timedelta:
    """Read a number with a unit, or of `unit`. Raises: ValueError, OverflowError."""
    if len(text) > MAX_DURATION:  # the pattern takes a time quadratic in spaces
        raise ValueError(f"a duration has at most {MAX_DURATION} characters")
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("a duration is a number, and a unit behind it")
    if found[2] and found[2].lower() not in _BY_NAME:
        raise ValueError(f"Unknown unit: {found[2]}")
    return int(found[1]) * (_BY_NAME[found[2].lower()] if found[2] else unit)


def date_of(moment: datetime) -> str:
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "+0000")


def add_handlers(app: FastAPI) -> None:
    """Let every error be one of James' WebAdmin."""
    app.add_exception_handler(JamesError, _refused)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(PostroadError, _failed)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _unexpected)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, JamesError)
    return error.response()


def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    name = request.path_params.get("name")
    if error.status == 404 and name is not None:
        return JamesError(404, f"MailQueueName{{value={name}}} can not be found").response()
    status = 400 if error.status == 422 else error.status
    response = JamesError(status, error.detail).response()
    response.headers.update(dict(error.headers))
    return response


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, PostroadError)
    return _problem(request, problem_of(error))


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code not in (404, 405):
        return JamesError(error.status_code, str(error.detail)).response()
    path = request.scope["path"].removeprefix(request.scope["root_path"])
    _, _, rest = path.removeprefix("/").partition("/")
    return JamesError(404, f"{request.method} /{rest} can not be found").response()


def _unexpected(_: Request, error: Exception) -> Response:
    _log.error("a request met an error of the console itself", exc_info=error)
    return JamesError(500, "WebAdmin encountered an unexpected internal error").response()
