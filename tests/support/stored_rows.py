"""Rows as Cassandra's driver gives them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from postroad.adapters.cassandra.session import UNSET


def stored(columns: Sequence[str], values: Sequence[object]) -> dict[str, object]:
    """Return bound values as they are read: no unset values, instants without a zone."""
    return dict(zip(columns, map(_read, values), strict=True))


def _read(value: object) -> object:
    if value is UNSET:
        return None
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_read(each) for each in value)
    return value
