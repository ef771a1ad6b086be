"""The owner's side of mails that other processes store: what it queues, and what it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from unittest.mock import patch

import pytest
from prometheus_client import REGISTRY

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import start
from postroad.domain.mail.envelope_documents import envelope_value
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.values.text import to_json
from postroad.embedded.log.envelopes import (
    MAX_DOMAINS,
    EnvelopeRecord,
    decode_envelope,
    domains_of,
    encode_new,
)
from postroad.embedded.log.layout import NEW, OWN_FILE
from postroad.embedded.log.records import encode
from postroad.embedded.log.slots import BATCH
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import InvalidInput, PostroadError, StoreFailed, StoreFull
from postroad.ports.files import DiskSpace


@pytest.fixture
async def files() -> LossyFiles:
    return LossyFiles()


@pytest.fixture
async def queue(files: LossyFiles) -> AsyncIterator[OwnedQueue]:
    queue = await start(files)
    await queue.maintenance.recovering
    yield queue
    await queue.close()


def waiting(slot: int) -> EnvelopeRecord:
    return EnvelopeRecord(
        bytes(15) + b"m", bytes(16), slot, 0, plain_mail().envelope, (0,), 1, 1, 5
    )


async def test_a_stored_mail_is_queued_under_an_id_of_the_owner(queue: OwnedQueue) -> None:
    leased = {7}

    enqueue_id, queued = queue.accept_stored(encode(waiting(7))[1], leased)

    assert not queued.done(), "its record is not durable yet"
    assert (await queue.size()).size == 0
    await queued
    (view,) = [each async for each in queue.browse()]
    assert view.enqueue_id == enqueue_id
    assert view.mail.recipients == plain_mail().recipients
    assert leased == set()


@pytest.mark.parametrize(
    "wrong",
    [
        waiting(8),
        waiting(7)._replace(entry_number=1),
        waiting(7)._replace(held=True),
        waiting(7)._replace(dead=True),
        waiting(7)._replace(due_us=1),
        waiting(7)._replace(predecessor=(0, 1)),
    ],
    ids=["a slot that was not leased", "a later entry", "held", "dead", "delayed", "a replacement"],
)
async def test_what_is_no_new_mail_in_a_slot_that_was_lent_is_refused(
    queue: OwnedQueue, wrong: EnvelopeRecord
) -> None:
    leased = {7}

    with pytest.raises(InvalidInput):
        queue.accept_stored(encode(wrong)[1], leased)

    assert leased == {7}
    assert (await queue.size()).size == 0


def garbled(**changes: object) -> bytes:
    payload = encode(waiting(7))[1]
    head, envelope = payload[: -len(JSON)], json.loads(JSON)
    return head + to_json(envelope | changes)


JSON = to_json(envelope_value(plain_mail().envelope))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"abc",
        encode(waiting(7))[1][:-1],
        encode(waiting(7))[1][: -len(JSON)] + b"{}",
        encode(waiting(7))[1].replace(b"example.net", b"example.n\xff\xfe"),
        garbled(to=[]),
        garbled(to=3),
        garbled(to=["b@elsewhere.example"]),
        garbled(numbers=[1]),
        garbled(failures={"0": ["a", "b"]}),
        garbled(reason="because"),
        garbled(origin=7),
        garbled(priority=101),
        garbled(priority="high"),
    ],
)
async def test_what_cannot_be_understood_comes_into_no_log(
    queue: OwnedQueue, files: LossyFiles, payload: bytes
) -> None:
    """It would stand in the way of every later start."""
    leased, calls = {7}, files.calls

    with pytest.raises(PostroadError) as found:
        queue.accept_stored(payload, leased)

    assert not found.value.transient
    assert leased == {7}
    assert queue.engine.lane(NEW).end == 0
    assert files.calls == calls


async def test_an_envelope_that_no_record_may_hold_is_refused(queue: OwnedQueue) -> None:
    mail = replace(plain_mail().envelope, attributes={"x": "y" * (5 << 20)})
    payload = encode(waiting(7)._replace(envelope=mail))[1]

    with pytest.raises(InvalidInput, match="too large"):
        queue.accept_stored(payload, {7})


async def test_slots_are_lent_as_far_as_there_are_some_and_none_is_lost_when_there_are_none(
    queue: OwnedQueue, files: LossyFiles
) -> None:
    first = await queue.lease_slots(8, OWN_FILE)
    assert len(set(first)) == 8
    rest = await queue.lease_slots(10**9, OWN_FILE)
    assert len(set(first + rest)) == BATCH, "none is made beyond the one that is needed"

    error: PostroadError = StoreFull("no inodes")
    files.fail = dict.fromkeys(range(files.calls, files.calls + 100), error)
    with pytest.raises(StoreFull):
        await queue.lease_slots(8, OWN_FILE)
    files.fail = {}
    assert len(await queue.lease_slots(8, OWN_FILE)) == 8


async def test_with_too_little_room_nothing_is_lent(queue: OwnedQueue, files: LossyFiles) -> None:
    files.free = DiskSpace(1000, None)

    with pytest.raises(StoreFull):
        await queue.lease_slots(8, OWN_FILE)


async def test_a_slot_takes_one_mail(queue: OwnedQueue) -> None:
    leased = {7}
    await queue.accept_stored(encode(waiting(7))[1], leased)[1]

    with pytest.raises(InvalidInput):
        queue.accept_stored(encode(waiting(7))[1], leased)


async def test_when_the_log_fails_the_mail_is_not_queued(
    files: LossyFiles, queue: OwnedQueue
) -> None:
    error: PostroadError = StoreFailed("an error of the disk")
    files.fail = dict.fromkeys(range(files.calls, files.calls + 100), error)

    _, queued = queue.accept_stored(encode(waiting(7))[1], {7})

    with pytest.raises(StoreFailed):
        await queued
    with pytest.raises(StoreFailed):
        queue.accept_stored(encode(waiting(7))[1], {7})


async def test_stored_mails_are_counted_when_they_are_durable(
    files: LossyFiles, queue: OwnedQueue
) -> None:
    def counted(name: str, **labels: str) -> float:
        return (
            REGISTRY.get_sample_value(name, {"namespace": "", "name": queue._name, **labels}) or 0
        )

    stored, failed = "postroad_enqueued_mails_total", "postroad_enqueue_failures_total"
    before, failures = counted(stored), counted(failed, reason="other")
    await queue.accept_stored(encode(waiting(7))[1], {7})[1]
    assert counted(stored) == before + 1

    error: PostroadError = StoreFailed("an error of the disk")
    files.fail = dict.fromkeys(range(files.calls, files.calls + 100), error)
    with pytest.raises(StoreFailed):
        await queue.accept_stored(encode(waiting(8))[1], {8})[1]
    assert counted(stored) == before + 1
    assert counted(failed, reason="other") == failures + 1


async def test_the_owner_reads_the_envelope_of_a_stored_mail_once(queue: OwnedQueue) -> None:
    await queue.accept_stored(encode(waiting(7))[1], {7})[1]

    with patch.object(queue.engine.reader, "read") as read:
        item = await queue.consumer(1).next()

    assert item.mail == plain_mail().envelope
    assert not read.called


@pytest.mark.parametrize("beyond", [0, 1])
def test_of_the_domains_as_many_are_kept_as_the_record_counts(beyond: int) -> None:
    first, last = "a" * 255, "b" * (MAX_DOMAINS % 256 + beyond)
    domains = [f"{number:03}." + first[4:] for number in range(MAX_DOMAINS // 256)]
    envelope = Envelope(None, tuple(f"x@{each}" for each in (*domains, last)))

    assert domains_of(envelope).split() == [*domains, last][: len(domains) + 1 - beyond]


def test_a_mail_of_a_receiver_has_the_record_that_the_owner_would_write() -> None:

    mail = plain_mail()
    envelope = to_json(envelope_value(mail.envelope))

    record = encode_new(bytes(15) + b"m", 7, 1, 5, domains_of(mail.envelope), envelope)

    assert decode_envelope(record) == waiting(7)
    assert record == encode(waiting(7))[1]


async def test_a_mail_that_is_rejected_when_all_have_it_leaves_no_dead_letter(
    queue: OwnedQueue,
) -> None:
    await queue.enqueue(plain_mail())
    item = await queue.consumer(1).next()
    await item.record(dict.fromkeys(item.mail.recipients, Outcome.delivered("250 ok")))

    await item.reject("no")

    sizes = await queue.size()
    assert (sizes.size, sizes.dead_letters) == (0, 0)


async def test_a_consumer_that_was_cancelled_while_it_waited_has_its_place_again(
    queue: OwnedQueue,
) -> None:
    consumer = queue.consumer(1)
    waiting = asyncio.ensure_future(consumer.next())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])

    await queue.enqueue(plain_mail())

    assert await asyncio.wait_for(consumer.next(), 60)
