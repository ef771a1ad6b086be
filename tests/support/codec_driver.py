"""A program that reads bodies, rows, marks and dead letters and writes them again, with the codecs
of the release that `support.releases` names, by their names there. Standard types, pickled."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from support.stored_rows import stored

wire: Any = import_module("postroad.domain.wire")
turns: Any = import_module("postroad.domain.turns")
dispatch: Any = import_module("postroad.domain.dispatch")
rows: Any = import_module("postroad.adapters.cassandra.rows")
statements: Any = import_module("postroad.adapters.cassandra.statements")


def body_again(body: bytes) -> bytes:
    """Return the body of a reference that goes through the delay queues once more."""
    again: bytes = wire.encode(wire.decode(body).again())
    return again


def body_of_its_own(body: bytes) -> bytes:
    """Return the body of the same mail as this release writes it, with attributes of a user."""
    reference = wire.decode(body)
    envelope = replace(reference.envelope, attributes={"key": "value"})
    own: bytes = wire.encode(replace(reference, envelope=envelope, header_size=9))
    return own


def row_of_a_successor(row: dict[str, Any]) -> dict[str, object]:
    """Return the row of the entry that follows this one unchanged, under the same key."""
    turn = rows.turn_of(row)
    change = turns.Change.nothing(turn)
    return stored(statements.ROW_COLUMNS, rows.turn_values(turn.with_change(turn.key, change)))


def mark(row: dict[str, Any]) -> tuple[str, bool]:
    """Return the ending of a mark, and whether a consumer deletes the bytes of its mail."""
    found = rows.mark_of(row)
    return found.ending.kind.value, dispatch.deletes_bytes(found)


def letter(row: dict[str, Any]) -> dict[str, object]:
    """Return the row of a dead letter as it is written again."""
    values = rows.letter_values("mail.outgoing", rows.letter_of(row))
    return stored(statements.LETTER_COLUMNS, values)


READ: Mapping[str, Callable[[Any], object]] = {
    "body again": body_again,
    "body of its own": body_of_its_own,
    "row": row_of_a_successor,
    "mark": mark,
    "letter": letter,
}

if __name__ == "__main__":
    asked = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps([READ[kind](value) for kind, value in asked]))
