"""Proof that the checker finds what it is for: each bite undoes one precaution of the engine inside
the processes of a run. A run with a bite has to fail.

Some wrap a port, and so stand whatever the engine looks like; the others replace a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from chaos.checker import Kind
from postroad.adapters.cassandra import view as cassandra_view
from postroad.adapters.memory import blobs as memory_blobs
from postroad.adapters.memory import view as memory_view
from postroad.adapters.s3 import blobs as s3_blobs


@dataclass(frozen=True, slots=True)
class Bite:
    """What is undone, by replacing attributes: (owner, name, replacement)."""

    says: str
    finds: Kind
    """The violation by which it must be found."""
    changes: Callable[[], list[tuple[Any, str, Any]]]


async def _granted(self: Any, *arguments: Any) -> bool:
    return True


async def _nothing(self: Any, *arguments: Any) -> None:
    return None


BITES: Mapping[str, Bite] = {
    "claims": Bite(
        "every claim is granted",
        Kind.DUPLICATE,
        lambda: [
            (memory_view.MemoryView, "claim", _granted),
            (cassandra_view.CassandraView, "claim", _granted),
        ],
    ),
    "bytes": Bite(
        "bytes are not deleted",
        Kind.LEFT,
        lambda: [
            (memory_blobs.MemoryBlobs, "delete", _nothing),
            (s3_blobs.S3Blobs, "delete", _nothing),
        ],
    ),
}


@contextmanager
def undone(name: str | None) -> Iterator[None]:
    """Undo a precaution in this process, for as long as the context lasts; None: nothing."""
    if name is None:
        yield
        return
    patches = [patch.object(*change) for change in BITES[name].changes()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
