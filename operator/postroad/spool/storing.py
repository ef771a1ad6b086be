"""A mail that is whole in memory, into its spool file. FORMAT.md 4."""

from __future__ import annotations

from postroad.spool.contents import Contents
from postroad.spool.envelopes import to_json
from postroad.spool.shape import Shape, shape_of


def store_whole(
    contents: Contents, slot: int, mail_id: bytes, content: bytes, envelope: bytes, accepted_us: int
) -> None:
    """Store a mail: its content, its envelope in JSON, and what is known of its shape. Durable when
    it returns. Blocking."""
    shape = shape_of(content)
    kept = with_shape(envelope, shape)
    contents.store(slot, mail_id, content, kept, shape.header_size, accepted_us)


def with_shape(envelope: bytes, shape: Shape) -> bytes:
    """Return an envelope in JSON as a spool file keeps it."""
    return b'%s,"shape":%s}' % (envelope[:-1], to_json(shape.as_json()))
