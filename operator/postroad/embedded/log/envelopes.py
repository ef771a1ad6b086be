"""The ENVELOPE, the record of a mail that waits, and the JSON in it and in spool files. Pure.

Source: FORMAT.md 4 and 6; LQ-2; SP-14; SP-20; AMB-7."""

import json
import struct
from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from postroad.domain.mail.envelope_documents import envelope_of, envelope_value
from postroad.domain.mail.mail import Envelope, check_address
from postroad.domain.queues.documents import UNREADABLE
from postroad.domain.values.text import to_json
from postroad.embedded.log.layout import NEW, Lane
from postroad.errors import InvalidInput, StoreDamaged

MAX_DOMAINS = 65_535
"""Bytes; the format counts them in 16 bits."""

NUMBERS = 1 << 32
"""Recipients have numbers below this."""

UNDECODED = (ValueError, LookupError, TypeError, AttributeError, InvalidInput, RecursionError)
"""Errors of decoding, where the checksum is right: another program wrote these bytes."""


def domains_of(envelope: Envelope) -> str:
    """Return the destination domains, space separated, as many as MAX_DOMAINS allows."""
    domains = " ".join(filter(None, envelope.domains))
    if len(domains.encode()) <= MAX_DOMAINS:
        return domains
    return domains.encode()[:MAX_DOMAINS].rpartition(b" ")[0].decode()


class Unreadable(StoreDamaged):
    """The checksum is right and the record cannot be decoded: another program wrote it."""


def read_envelope(data: bytes) -> tuple[Envelope, dict[str, Any]]:
    """Read an envelope, and return all keys of its JSON too, because records keep more in it.
    Both can be written again. Raises: Unreadable."""
    try:
        found = json.loads(data)
        return envelope_of(found), found
    except UNDECODED as error:
        raise Unreadable("an envelope cannot be read") from error


def numbers_in(rest: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Return the numbers of `count` recipients. Raises: ValueError, TypeError."""
    if rest.get("numbers") is None:
        return tuple(range(count))
    numbers = tuple(rest["numbers"])
    if not all(type(each) is int and 0 <= each < NUMBERS for each in numbers):
        raise TypeError("`numbers` must be recipient numbers")
    if len(numbers) != count or len(set(numbers)) != count:
        raise ValueError("`numbers` must differ, one for each recipient")
    return numbers


def failures_in(rest: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return failed recipients and reasons. Raises: ValueError, TypeError, InvalidMail."""
    failures: dict[int, tuple[str, str]] = {}
    for number, (to, text) in rest.get("failures", {}).items():
        check_address(to)
        if not isinstance(text, str):
            raise TypeError("a reason must be text")
        failures[int(number)] = (to, text)
    return failures


NOWHERE = 0
"""No position: 0 lies in no segment, as sequence numbers begin with 1."""

_ENVELOPE = Struct("<16s16sQIIQQQQQIBBH")
ENVELOPE_BYTES = _ENVELOPE.size
"""Of an ENVELOPE, before its domains."""

NO_RECORD = (struct.error, *UNDECODED)
"""Errors of decoding, where the checksum is right: another program wrote these bytes."""


_NO_FAILURES: Mapping[int, tuple[str, str]] = MappingProxyType({})


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


class EnvelopeRecord(NamedTuple):
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
    failures: Mapping[int, tuple[str, str]] = _NO_FAILURES
    unreadable: bytes | None = None
    """The JSON of a record that is set aside: it is written again as it is."""


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
    except (Unreadable, *NO_RECORD) as error:
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
    except NO_RECORD as error:
        raise Unreadable("an ENVELOPE cannot be read") from error


def set_aside(payload: bytes, error: Unreadable) -> EnvelopeRecord:
    """Return what stands for an ENVELOPE whose fixed part alone can be read: administrators see it
    and remove it, and no consumer gets it. Raises: Unreadable."""
    head = read_head(payload)
    return _of_head(
        head,
        UNREADABLE,
        (NUMBERS - 1,),  # no recipient of its own has this number, so none counts as finished
        error=str(error),
        reason=str(error) if head.dead else None,
        unreadable=payload[_ENVELOPE.size + head.domains_length :],
    )


def _decode_envelope(payload: bytes) -> EnvelopeRecord:
    head = read_head(payload)
    domains_in(payload, head)  # checked, though they stand in the JSON, too
    envelope, rest = read_envelope(payload[_ENVELOPE.size + head.domains_length :])
    return _of_head(
        head,
        envelope,
        numbers_in(rest, len(envelope.recipients)),
        error=rest.get("error"),
        reason=rest.get("reason"),
        failures=failures_in(rest),
    )


def _of_head(
    head: EnvelopeHead, envelope: Envelope, numbers: tuple[int, ...], **rest: Any
) -> EnvelopeRecord:
    return EnvelopeRecord(
        mail_id=head.mail_id,
        enqueue_id=head.enqueue_id,
        slot=head.slot,
        entry_number=head.entry_number,
        envelope=envelope,
        numbers=numbers,
        accepted_us=head.accepted_us,
        enqueued_us=head.enqueued_us,
        size_bytes=head.size_bytes,
        due_us=head.due_us,
        attempt=head.attempt,
        held=head.held,
        dead=head.dead,
        predecessor=(head.predecessor_lane, head.predecessor),
        **rest,
    )


def encode_envelope(record: EnvelopeRecord, json: bytes | None = None) -> bytes:
    """Return the payload of an ENVELOPE. `json`: of a new mail, its envelope in JSON, where that
    was made for the spool file."""
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
    return head + domains + (json or record.unreadable or to_json(_document_of(record)))


def _document_of(record: EnvelopeRecord) -> dict[str, Any]:
    rest = envelope_value(record.envelope)
    if record.numbers != tuple(range(len(record.numbers))):
        rest["numbers"] = record.numbers
    for name in ("error", "reason", "failures"):
        if found := getattr(record, name):
            rest[name] = found
    return rest
