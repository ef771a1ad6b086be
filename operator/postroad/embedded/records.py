"""Encodes and decodes the records of the log. FORMAT.md 6. Pure.

Source: LQ-2..8; SP-14; AMB-7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from postroad.domain.documents import brief_envelope, to_json
from postroad.domain.mail import Envelope
from postroad.embedded.envelopes import (
    UNREADABLE,
    Unreadable,
    domains_of,
    failures_in,
    numbers_in,
    read_envelope,
)
from postroad.embedded.layout import NEW, Lane
from postroad.errors import InvalidInput

ENVELOPE, START, DELIVERY, FINISH, HOLD = range(1, 6)
NOWHERE = 0
"""No position: 0 lies in no segment, as sequence numbers begin with 1."""

LONGEST_TEXT = 512
"""Bytes of a next hop's reply that are kept in a record."""

_ENVELOPE = Struct("<16s16sQIIQQQQQIBBH")
ENVELOPE_BYTES = _ENVELOPE.size
"""Of an ENVELOPE, before its domains."""

_NO_RECORD = (struct.error, *UNREADABLE)
"""What decoding raises where the checksum is right: another program wrote these bytes."""

_START = Struct("<16sIIQ")
_DELIVERY = Struct("<16sIBBHI")
_FINISH = Struct("<16sIIQB")
_HOLD = Struct("<16sIB")


class DeliveryKind(IntEnum):
    """The outcome in a DELIVERY. Only deferred recipients are attempted again."""

    DELIVERED = 1
    FAILED = 2
    DEFERRED = 3
    DROPPED = 4


class FinishKind(IntEnum):
    """Why a mail has no recipients left."""

    DONE = 1
    REMOVED = 2


class EnvelopeHead(NamedTuple):
    """The fixed part of an ENVELOPE: all that the index needs, decoded without the JSON."""

    mail_id: bytes
    enqueue_id: bytes
    slot: int
    entry_number: int
    attempt: int
    accepted_us: int
    enqueued_us: int
    due_us: int
    size_bytes: int
    predecessor: int
    predecessor_lane: Lane
    flags: int
    reserved: int
    domains_length: int

    @property
    def held(self) -> bool:
        return bool(self.flags & 1)

    @property
    def dead(self) -> bool:
        return bool(self.flags & 2)


@dataclass(frozen=True, slots=True)
class EnvelopeRecord:
    """An ENVELOPE: a mail that waits. `numbers` are the recipients' places in the original list;
    `failures` maps the number of a failed recipient to (address, text)."""

    mail_id: bytes
    enqueue_id: bytes
    slot: int
    entry_number: int
    envelope: Envelope
    numbers: tuple[int, ...]
    accepted_us: int
    enqueued_us: int
    size_bytes: int
    due_us: int = 0
    attempt: int = 0
    held: bool = False
    dead: bool = False
    predecessor: tuple[Lane, int] = (0, NOWHERE)
    error: str | None = None
    reason: str | None = None
    failures: Mapping[int, tuple[str, str]] = field(default_factory=dict)


class StartRecord(NamedTuple):
    """A consumer leased the entry whose ENVELOPE lies at `position`."""

    mail_id: bytes
    entry_number: int
    lane: Lane
    position: int


class DeliveryRecord(NamedTuple):
    """The outcome of some recipients, by number."""

    mail_id: bytes
    entry_number: int
    kind: DeliveryKind
    numbers: tuple[int, ...]
    text: str


class FinishRecord(NamedTuple):
    """The mail whose last ENVELOPE lies at `position` has no recipients left."""

    mail_id: bytes
    entry_number: int
    lane: Lane
    position: int
    kind: FinishKind


class HoldRecord(NamedTuple):
    """An administrator holds a working entry, or releases it: it counts when a retry ends it."""

    mail_id: bytes
    entry_number: int
    held: bool


Record: TypeAlias = EnvelopeRecord | StartRecord | DeliveryRecord | FinishRecord | HoldRecord


def encode(record: Record) -> tuple[int, bytes]:
    """Return a record's type and payload."""
    match record:
        case EnvelopeRecord():
            return ENVELOPE, _encode_envelope(record)
        case StartRecord():
            return START, _START.pack(*record)
        case DeliveryRecord(mail_id, entry_number, kind, numbers, text):
            words = cut(text)
            head = _DELIVERY.pack(mail_id, entry_number, kind, 0, len(words), len(numbers))
            return DELIVERY, head + Struct(f"<{len(numbers)}I").pack(*numbers) + words
        case FinishRecord():
            return FINISH, _FINISH.pack(*record)
        case HoldRecord():
            return HOLD, _HOLD.pack(*record)


def decode(record_type: int, payload: bytes) -> Record | None:
    """Read a record; None for a type of a later format. Raises: Unreadable."""
    decoder = _DECODERS.get(record_type)
    try:
        return None if decoder is None else decoder(payload)
    except _NO_RECORD as error:
        raise Unreadable(f"a record of type {record_type} cannot be read") from error


def _decode_start(payload: bytes) -> StartRecord:
    return StartRecord(*_START.unpack(payload))


def _decode_delivery(payload: bytes) -> DeliveryRecord:
    mail_id, entry_number, kind, _, _, count = _DELIVERY.unpack_from(payload)
    numbers = Struct(f"<{count}I").unpack_from(payload, _DELIVERY.size)
    text = payload[_DELIVERY.size + 4 * count :].decode(errors="replace")
    return DeliveryRecord(mail_id, entry_number, DeliveryKind(kind), numbers, text)


def _decode_finish(payload: bytes) -> FinishRecord:
    mail_id, entry_number, lane, position, finished = _FINISH.unpack(payload)
    return FinishRecord(mail_id, entry_number, lane, position, FinishKind(finished))


def _decode_hold(payload: bytes) -> HoldRecord:
    mail_id, entry_number, held = _HOLD.unpack(payload)
    return HoldRecord(mail_id, entry_number, bool(held))


def read_head(payload: bytes) -> EnvelopeHead:
    """Read the fixed part of an ENVELOPE. Raises: Unreadable."""
    try:
        return EnvelopeHead(*_ENVELOPE.unpack_from(payload))
    except struct.error as error:
        raise Unreadable("an ENVELOPE is too short") from error


def encode_new(
    mail_id: bytes, slot: int, accepted_us: int, size: int, domains: str, envelope: bytes
) -> bytes:
    """Return the ENVELOPE of a new mail for all its recipients, from its envelope in JSON, without
    an enqueue id: the owner sets it (`with_enqueue_id`)."""
    known = domains.encode()
    enqueue_id, entry_number, attempt, due_us = bytes(16), 0, 0, 0
    predecessor, predecessor_lane, flags, reserved = NOWHERE, NEW, 0, 0
    head = _ENVELOPE.pack(
        mail_id,
        enqueue_id,
        slot,
        entry_number,
        attempt,
        accepted_us,
        accepted_us,
        due_us,
        size,
        predecessor,
        predecessor_lane,
        flags,
        reserved,
        len(known),
    )
    return head + known + envelope


def decode_new(payload: bytes) -> EnvelopeRecord:
    """Read what `encode_new` wrote, in another process. Raises: InvalidInput for anything that is
    not the ENVELOPE of a new mail."""
    try:
        found = decode_envelope(payload)
        is_named = domains_in(payload, read_head(payload)) == domains_of(found.envelope)
    except (Unreadable, *_NO_RECORD) as error:
        raise InvalidInput("this is no ENVELOPE") from error
    new = EnvelopeRecord(
        mail_id=found.mail_id,
        enqueue_id=found.enqueue_id,
        slot=found.slot,
        entry_number=0,
        envelope=found.envelope,
        numbers=tuple(range(len(found.envelope.recipients))),
        accepted_us=found.accepted_us,
        enqueued_us=found.enqueued_us,
        size_bytes=found.size_bytes,
    )
    if found != new or not is_named:
        raise InvalidInput("this is no ENVELOPE of a new mail")
    return found


def with_enqueue_id(payload: bytes, enqueue_id: bytes) -> bytes:
    """Return an ENVELOPE under another enqueue id."""
    return payload[:16] + enqueue_id + payload[32:]


def domains_in(payload: bytes, head: EnvelopeHead) -> str:
    """Return an ENVELOPE's destination domains, space separated. Raises: Unreadable."""
    try:
        return payload[_ENVELOPE.size : _ENVELOPE.size + head.domains_length].decode()
    except UnicodeDecodeError as error:
        raise Unreadable("the domains of an ENVELOPE cannot be read") from error


def decode_envelope(payload: bytes) -> EnvelopeRecord:
    """Read an ENVELOPE. Raises: Unreadable."""
    try:
        return _decode_envelope(payload)
    except _NO_RECORD as error:
        raise Unreadable("an ENVELOPE cannot be read") from error


def _decode_envelope(payload: bytes) -> EnvelopeRecord:
    head = read_head(payload)
    domains_in(payload, head)  # checked: recovery reads them, and would not open the store
    envelope, rest = read_envelope(payload[_ENVELOPE.size + head.domains_length :])
    return EnvelopeRecord(
        mail_id=head.mail_id,
        enqueue_id=head.enqueue_id,
        slot=head.slot,
        entry_number=head.entry_number,
        envelope=envelope,
        numbers=numbers_in(rest, len(envelope.recipients)),
        accepted_us=head.accepted_us,
        enqueued_us=head.enqueued_us,
        size_bytes=head.size_bytes,
        due_us=head.due_us,
        attempt=head.attempt,
        held=head.held,
        dead=head.dead,
        predecessor=(head.predecessor_lane, head.predecessor),
        error=rest.get("error"),
        reason=rest.get("reason"),
        failures=failures_in(rest),
    )


_DECODERS: dict[int, Callable[[bytes], Record]] = {
    ENVELOPE: _decode_envelope,
    START: _decode_start,
    DELIVERY: _decode_delivery,
    FINISH: _decode_finish,
    HOLD: _decode_hold,
}


def _encode_envelope(record: EnvelopeRecord) -> bytes:
    domains = domains_of(record.envelope).encode()
    head = _ENVELOPE.pack(
        record.mail_id,
        record.enqueue_id,
        record.slot,
        record.entry_number,
        record.attempt,
        record.accepted_us,
        record.enqueued_us,
        record.due_us,
        record.size_bytes,
        record.predecessor[1],
        record.predecessor[0],
        record.held | record.dead << 1,
        0,
        len(domains),
    )
    rest = brief_envelope(record.envelope)
    if record.numbers != tuple(range(len(record.numbers))):
        rest["numbers"] = record.numbers
    for name in ("error", "reason", "failures"):
        if found := getattr(record, name):
            rest[name] = found
    return head + domains + to_json(rest)


def cut(text: str) -> bytes:
    """Return a text in UTF-8, cut to LONGEST_TEXT bytes at a character."""
    return text.encode(errors="replace")[:LONGEST_TEXT].decode(errors="ignore").encode()
