"""Histories of a view configuration for tests, and their size as a status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from postroad.domain.configuration.documents import Document, to_document
from postroad.domain.configuration.history import ConfigurationEvent, decide
from postroad.domain.configuration.rules import ViewConfiguration

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
STATUS_BYTES = 64 * 1024
"""What `status.history` may take of the object, which etcd bounds at 1.5 MiB."""


def transitions(count: int) -> tuple[ConfigurationEvent, ...]:
    """A history of changes and refusals, each a minute after the one before."""
    history: tuple[ConfigurationEvent, ...] = ()
    buckets, index = 1, 0
    while len(history) < count:
        index += 1
        buckets += index % 3 != 0
        wanted = ViewConfiguration(
            timedelta(hours=1) if index % 3 else timedelta(hours=1, seconds=index),
            buckets,
            1000 + index,
        )
        event = decide(
            history, wanted, at=NOON + index * timedelta(minutes=1), by="test", generation=index
        ).event
        history += (event,) if event else ()
    return history


def documents(history: Sequence[ConfigurationEvent]) -> list[Document]:
    return [to_document(each) for each in history]


def size_of(history: Sequence[ConfigurationEvent]) -> int:
    """Return the bytes of a status' history as JSON."""
    return len(json.dumps(documents(history)).encode())
