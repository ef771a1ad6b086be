"""The owner's side of mails that other processes store: what it queues, and what it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from contract.queue_harness import letter
from crash.lossy import LossyFiles
from crash.world import start
from postroad.errors import InvalidInput, PostroadError, StoreFailed
from postroad.spool.queue import OwnedQueue
from postroad.spool.records import (
    Waiting,
    decode_waiting,
    domains_of,
    encode,
    encode_new,
    envelope_json,
    to_json,
)


@pytest.fixture
async def files() -> LossyFiles:
    return LossyFiles()


@pytest.fixture
async def queue(files: LossyFiles) -> AsyncIterator[OwnedQueue]:
    queue = await start(files)
    await queue.keeper.recovering
    yield queue
    await queue.close()


def waiting(slot: int) -> Waiting:
    return Waiting(bytes(15) + b"m", bytes(16), slot, 0, letter().envelope, (0,), 1, 1, 5)


async def test_a_stored_mail_is_queued_under_an_id_of_the_owner(queue: OwnedQueue) -> None:
    lent = {7}

    enqueue_id, queued = queue.accept_stored(encode(waiting(7))[1], lent)

    assert not queued.done(), "its record is not durable yet"
    assert (await queue.size()).size == 0
    await queued
    (view,) = [each async for each in queue.browse()]
    assert view.enqueue_id == enqueue_id
    assert view.mail.recipients == letter().recipients
    assert lent == set()


@pytest.mark.parametrize(
    "wrong",
    [
        waiting(8),
        replace(waiting(7), turn=1),
        replace(waiting(7), held=True),
        replace(waiting(7), dead=True),
        replace(waiting(7), due_us=1),
        replace(waiting(7), predecessor=(0, 1)),
    ],
    ids=["a slot that was not lent", "a later turn", "held", "dead", "delayed", "a replacement"],
)
async def test_what_is_no_new_mail_in_a_slot_that_was_lent_is_refused(
    queue: OwnedQueue, wrong: Waiting
) -> None:
    lent = {7}

    with pytest.raises(InvalidInput):
        queue.accept_stored(encode(wrong)[1], lent)

    assert lent == {7}
    assert (await queue.size()).size == 0


async def test_a_slot_takes_one_mail(queue: OwnedQueue) -> None:
    lent = {7}
    await queue.accept_stored(encode(waiting(7))[1], lent)[1]

    with pytest.raises(InvalidInput):
        queue.accept_stored(encode(waiting(7))[1], lent)


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


def test_a_mail_of_a_receiver_has_the_record_that_the_owner_would_write() -> None:

    mail = letter()
    envelope = to_json(envelope_json(mail.envelope))

    record = encode_new(bytes(15) + b"m", 7, 1, 5, domains_of(mail.envelope), envelope)

    assert decode_waiting(record) == waiting(7)
    assert record == encode(waiting(7))[1]
