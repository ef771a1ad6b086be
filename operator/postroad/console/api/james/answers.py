"""Answers in the form of James' WebAdmin: errors, instants, and the values of his parameters.

Source: Apache James, Web Administration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from fastapi import Request
from starlette.responses import JSONResponse, Response

from postroad.problems import Problem

MAX_NUMBER = 2**31 - 1

_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_DURATION = re.compile(r"([0-9]+)\s*([a-zA-Z]*)")  # spaces around would take quadratic time
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


class JamesError(Problem):
    """A request that James' WebAdmin would refuse."""

    def __init__(
        self, status: int, message: str, details: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(status, message)
        usual = {400: "InvalidArgument", 404: "notFound"}
        self.details, self.kind = details, kind or usual.get(status, "ServerError")


@contextmanager
def refused_with(message: str) -> Iterator[None]:
    """Raises: JamesError, for a parameter that cannot be read."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise JamesError(400, message, str(error)) from None


def james_response(request: Request, problem: Problem) -> Response:
    """Return a problem as James' WebAdmin answers it."""
    error = problem if isinstance(problem, JamesError) else _error_of(request, problem)
    shown = {"type": error.kind, "message": error.detail, "details": error.details}
    document = {"statusCode": error.status, **shown}
    return JSONResponse(document, error.status, dict(problem.headers))


def _error_of(request: Request, problem: Problem) -> JamesError:
    status, name = problem.status, request.path_params.get("name")
    if status == 404 and name is not None:
        return JamesError(404, f"MailQueueName{{value={name}}} can not be found")
    if status in (404, 405):  # no route
        path = request.scope["path"].removeprefix(request.scope["root_path"])
        _, _, rest = path.removeprefix("/").partition("/")
        return JamesError(404, f"{request.method} /{rest} can not be found")
    if status == 500:
        return JamesError(500, "WebAdmin encountered an unexpected internal error")
    return JamesError(400 if status == 422 else status, problem.detail)


def duration_of(text: str, unit: timedelta) -> timedelta:
    """Read a number with a unit, or of `unit`. Raises: ValueError, OverflowError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(  # a sentence of his own
            "Supplied value do not follow the unit format (number optionally suffixed with a string"
            " representing the unit"
        )
    if found[2] and found[2].lower() not in _BY_NAME:
        raise ValueError(f"Unknown unit: {found[2]}")
    return int(found[1]) * (_BY_NAME[found[2].lower()] if found[2] else unit)


def whole_number(text: str) -> int:
    """Read a number as James does: digits of ASCII behind a sign, of 32 bits. Raises: ValueError
    with his words."""
    if not _NUMBER.fullmatch(text) or not -MAX_NUMBER <= int(text) <= MAX_NUMBER:
        raise ValueError(f'For input string: "{text}"')
    return int(text)


def date_of(moment: datetime) -> str:
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "+0000")
