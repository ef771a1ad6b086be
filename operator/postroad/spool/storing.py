"""A mail that is whole in memory, into its spool file. FORMAT.md 4."""

from __future__ import annotations

from postroad.spool.contents import Contents
from postroad.spool.records import to_json
from postroad.spool.shape import shape_of


def store_whole(
    contents: Contents, slot: int, mail_id: bytes, content: bytes, envelope: dict[str, object],
    accepted_us: int,
) -> None:  # fmt: skip
    """Store a mail that is whole in memory: its content, its envelope and what is known of its
    shape. Durable when it returns. Blocking."""
    shape = shape_of(content)
    kept = to_json(envelope | {"shape": shape.as_json()})
    contents.store(slot, mail_id, content, kept, shape.header_size, accepted_us)
