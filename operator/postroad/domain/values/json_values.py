"""Values written as JSON, and checked when they are read."""

from __future__ import annotations

import json
from typing import Any

from postroad.errors import InvalidInput

_compact = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` with separators makes an encoder for each call."""


def to_json(content: object) -> bytes:
    """Return compact JSON in ASCII: it holds any string, lone surrogates included."""
    return _compact(content).encode("ascii")


def typed(value: Any, kind: type) -> Any:
    """Return a value of a type. Raises: InvalidInput."""
    if not isinstance(value, kind):
        raise InvalidInput(f"a value is no {kind.__name__}")
    return value


def natural(value: Any) -> int:
    """Return a whole number from 0 on. Raises: InvalidInput."""
    number: int = typed(value, int)
    if number < 0 or isinstance(value, bool):
        raise InvalidInput("a number is negative")
    return number


def optional_text(value: Any) -> str | None:
    """Return a text or None. Raises: InvalidInput."""
    if value is None:
        return None
    text: str = typed(value, str)
    return text


def texts(values: Any) -> list[str]:
    """Return a list of texts. Raises: InvalidInput."""
    return [typed(each, str) for each in typed(values, list)]
