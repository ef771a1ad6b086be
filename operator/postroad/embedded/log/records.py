"""Encodes and decodes the records of the log. FORMAT.md 6. Pure.

Source: LQ-2..8; SP-14; AMB-7."""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from postroad.embedded.log.envelopes import (
    NO_RECORD,
    EnvelopeRecord,
    Unreadable,
    decode_envelope,
    encode_envelope,
)
from postroad.embedded.log.layout import Lane

ENVELOPE, START, DELIVERY, FINISH, HOLD, OUTCOMES, KEY = range(1, 8)
MAX_TEXT = 512
"""Bytes of a next hop's reply that are kept in a record."""

_START = Struct("<16sIIQ")
_DELIVERY = Struct("<16sIBBHI")
_FINISH = Struct("<16sIIQB")
_HOLD = Struct("<16sIB")
_OUTCOMES = Struct("<16sI")
_KEY = Struct("<16sI16s32s32sQB")


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


class OutcomesRecord(NamedTuple):
    """Facts kept of the attempt that ended an entry, as JSON. Recovery passes over it."""

    mail_id: bytes
    entry_number: int
    document: bytes


class KeyRecord(NamedTuple):
    """A mail is about to be queued with an enqueue key, or was. `token` and `digest` are those of
    domain/queues/references.py."""

    mail_id: bytes
    entry_number: int
    enqueue_id: bytes
    token: bytes
    digest: bytes
    accepted_us: int
    is_accepted: bool = False


Record: TypeAlias = (
    EnvelopeRecord
    | StartRecord
    | DeliveryRecord
    | FinishRecord
    | HoldRecord
    | OutcomesRecord
    | KeyRecord
)


def encode(record: Record) -> tuple[int, bytes]:
    """Return a record's type and payload."""
    record_type, encoder = _ENCODERS[type(record)]
    return record_type, encoder(record)


def _encode_delivery(record: DeliveryRecord) -> bytes:
    words, numbers = cut(record.text), record.numbers
    head = _DELIVERY.pack(
        record.mail_id, record.entry_number, record.kind, 0, len(words), len(numbers)
    )
    return head + Struct(f"<{len(numbers)}I").pack(*numbers) + words


def _encode_outcomes(record: OutcomesRecord) -> bytes:
    return _OUTCOMES.pack(record.mail_id, record.entry_number) + record.document


_ENCODERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    EnvelopeRecord: (ENVELOPE, encode_envelope),
    StartRecord: (START, lambda record: _START.pack(*record)),
    DeliveryRecord: (DELIVERY, _encode_delivery),
    FinishRecord: (FINISH, lambda record: _FINISH.pack(*record)),
    HoldRecord: (HOLD, lambda record: _HOLD.pack(*record)),
    OutcomesRecord: (OUTCOMES, _encode_outcomes),
    KeyRecord: (KEY, lambda record: _KEY.pack(*record)),
}


def decode(record_type: int, payload: bytes) -> Record | None:
    """Read a record; None for a type of a later format. Raises: Unreadable."""
    decoder = _DECODERS.get(record_type)
    try:
        return None if decoder is None else decoder(payload)
    except NO_RECORD as error:
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


def _decode_outcomes(payload: bytes) -> OutcomesRecord:
    mail_id, entry_number = _OUTCOMES.unpack_from(payload)
    return OutcomesRecord(mail_id, entry_number, payload[_OUTCOMES.size :])


def _decode_key(payload: bytes) -> KeyRecord:
    record = KeyRecord(*_KEY.unpack(payload))
    return record._replace(is_accepted=bool(record.is_accepted))


_DECODERS: dict[int, Callable[[bytes], Record]] = {
    ENVELOPE: decode_envelope,
    START: _decode_start,
    DELIVERY: _decode_delivery,
    FINISH: _decode_finish,
    HOLD: _decode_hold,
    OUTCOMES: _decode_outcomes,
    KEY: _decode_key,
}


def cut(text: str) -> bytes:
    """Return a text in UTF-8, cut to MAX_TEXT bytes at a character."""
    return text.encode(errors="replace")[:MAX_TEXT].decode(errors="ignore").encode()
