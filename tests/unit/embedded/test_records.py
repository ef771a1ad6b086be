"""Records: what comes back of what was written, and what is no record."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from contract.queue_harness import plain_mail
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.envelope_documents import envelope_value
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.documents import outcomes_of, outcomes_value
from postroad.domain.values.text import to_json
from postroad.embedded.log import frames
from postroad.embedded.log.envelopes import (
    ENVELOPE_BYTES,
    EnvelopeRecord,
    decode_envelope,
    encode_envelope,
)
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.records import (
    ENVELOPE,
    KEY,
    OUTCOMES,
    KeyRecord,
    OutcomesRecord,
    cut,
    decode,
    encode,
)
from postroad.embedded.log.segments import Segment
from postroad.embedded.log.slots import Checkpoint
from postroad.embedded.offline_tools import log_salvage, verification
from postroad.embedded.offline_tools.log_salvage import MailHistory
from postroad.embedded.store.recovery import Replay, Work, resumed
from postroad.errors import StoreDamaged

WAITING = EnvelopeRecord(
    *(bytes(15) + b"m", bytes(16), 7, 0, plain_mail().envelope, (3,), 1, 1, 5),
    failures={1: ("c@example.net", "550 no")},
)
PAYLOAD = encode(WAITING)[1]
JSON_AT = PAYLOAD.index(b"{")


def changed(**changes: object) -> bytes:
    """Return the ENVELOPE with other JSON."""
    fields: dict[str, Any] = json.loads(PAYLOAD[JSON_AT:])
    return PAYLOAD[:JSON_AT] + to_json(fields | changes)


def test_the_reserved_octet_of_a_frame_is_zero() -> None:
    """A later release may give it a meaning (FORMAT.md 5)."""
    frame = frames.encode(7, ENVELOPE, ordinal=3, durable=5, payload=PAYLOAD)

    assert (frame[12], frame[13]) == (ENVELOPE, 0)


def test_an_envelope_in_json_is_that_of_a_new_mail() -> None:
    """The spool file and the log have the same octets of it."""
    new = EnvelopeRecord(bytes(15) + b"m", bytes(16), 7, 0, plain_mail().envelope, (0,), 1, 1, 5)

    assert encode_envelope(new, to_json(envelope_value(new.envelope))) == encode_envelope(new)


def test_a_key_is_read_as_it_was_written() -> None:
    record = KeyRecord(bytes(15) + b"m", 0, bytes(16), b"t" * 32, b"d" * 32, 5, is_accepted=True)
    record_type, payload = encode(record)

    assert (record_type, len(payload)) == (KEY, 109)
    assert decode(record_type, payload) == record
    described = verification._described(Frame(0, 0, KEY, 0, 0, payload), b"")
    assert (described["record"], described["accepted"]) == ("key", True)


def test_a_rebuild_takes_no_mail_from_a_key() -> None:
    record = KeyRecord(bytes(15) + b"m", 0, bytes(16), b"t" * 32, b"d" * 32, 5)
    histories: dict[bytes, MailHistory] = {}

    log_salvage._add(histories, Frame(0, 0, KEY, 0, 0, encode(record)[1]), is_garbage=False)

    assert histories == {}


OTHER_PROGRAM = (
    b"",
    b"short",
    bytes(20) + b"\xff",
    bytes(20) + b"[]",
    bytes(20) + b'{"counts": 3}',
)
"""OUTCOMES that this release cannot have written."""


@pytest.mark.parametrize("payload", OTHER_PROGRAM)
def test_nothing_in_a_record_of_outcomes_keeps_a_store_from_opening(payload: bytes) -> None:
    replay, frame = Replay(Checkpoint(1)), Frame(0, 0, OUTCOMES, 0, 0, payload)
    histories: dict[bytes, MailHistory] = {}

    replay.feed_frame(cast("Segment", None), frame)
    log_salvage._add(histories, frame, is_garbage=False)

    assert (replay.working, replay.garbage, histories) == ({}, set(), {})
    described = verification._described(frame, b"")
    assert described["record"] == "outcomes" or "unreadable" in described["record"]
    assert "counts" not in described


def test_outcomes_come_back() -> None:
    heard = AttemptOutcomes.of({"b@example.net": Outcome.failed("550 5.1.1 no")}, 0.5)
    record = OutcomesRecord(bytes(15) + b"m", 3, to_json(outcomes_value(heard)))

    decoded = decode(*encode(record))

    assert decoded == record
    assert outcomes_of(json.loads(record.document)) == heard


@pytest.mark.parametrize(
    ("text", "kept"),
    [("x" * 512, "x" * 512), ("x" * 513, "x" * 512), ("x" + "ü" * 256, "x" + "ü" * 255)],
)
def test_of_a_reply_512_octets_are_kept_in_whole_characters(text: str, kept: str) -> None:
    assert cut(text).decode() == kept


@pytest.mark.parametrize(
    ("was", "change", "held"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_a_mail_that_was_in_flight_is_held_as_its_last_record_has_it(
    was: bool, change: bool | None, held: bool
) -> None:
    record = WAITING._replace(held=was, due_us=7, entry_number=4)

    found = resumed(record, Work(5, 60, 1234, held=change))

    assert found == record._replace(held=held, due_us=0, entry_number=6, predecessor=(60, 1234))


@pytest.mark.parametrize(
    ("finished", "failures", "numbers", "is_dead"),
    [
        ({3}, {}, (1,), True),
        ({3}, {3: "550 full"}, (1, 3), True),
        ({9}, {9: "550 of no recipient"}, (3,), False),
    ],
)
def test_outcomes_of_a_mail_that_was_in_flight_are_kept(
    finished: set[int], failures: dict[int, str], numbers: tuple[int, ...], is_dead: bool
) -> None:
    found = resumed(WAITING, Work(0, 0, 1234, finished, failures))

    assert found is not None
    assert (found.numbers, found.dead) == (numbers, is_dead)
    assert found.failures.keys() == {1} | (failures.keys() & {3})


def test_a_mail_that_was_delivered_while_in_flight_is_over() -> None:
    assert resumed(WAITING._replace(failures={}), Work(0, 0, 1234, {3})) is None


def test_an_envelope_comes_back() -> None:
    assert decode_envelope(PAYLOAD) == WAITING
    assert decode_envelope(changed()) == WAITING


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PAYLOAD[: ENVELOPE_BYTES - 1],
        PAYLOAD[:ENVELOPE_BYTES] + b"\xff" + PAYLOAD[ENVELOPE_BYTES + 1 :],
        PAYLOAD[:JSON_AT],
        PAYLOAD[:JSON_AT] + b"[]",
        PAYLOAD[:JSON_AT] + b"[" * 100_000,
        changed(to=[]),
        changed(to="b@example.net"),
        changed(to=[3]),
        changed(to={"b@example.net": 1}),
        changed(sender=3),
        changed(name=3),
        changed(attributes=[1]),
        changed(origin=[1, 2, 3, 4]),
        changed(numbers=[]),
        changed(numbers=[0, 1]),
        changed(to=["b@example.net", "c@example.net"], numbers=[1, 1]),
        changed(numbers=["0"]),
        changed(numbers=[True]),
        changed(numbers=[-1]),
        changed(numbers=[1 << 32]),
        changed(numbers=3),
        changed(failures={"x": ["c@example.net", "550 no"]}),
        changed(failures={"1": [5, "550 no"]}),
        changed(failures={"1": ["nowhere", "550 no"]}),
        changed(failures={"1": ["c@example.net", 550]}),
        changed(failures=[1]),
    ],
)
def test_what_is_no_envelope_is_damage(payload: bytes) -> None:
    with pytest.raises(StoreDamaged):
        decode_envelope(payload)
    with pytest.raises(StoreDamaged):
        decode(ENVELOPE, payload)
