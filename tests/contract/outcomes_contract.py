"""What every mail queue keeps of attempts. A subclass provides the fixture `harness`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Protocol
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, Harness, plain_mail
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Outcome
from postroad.ports.mail_queue import MailQueue

HERE, THERE = "recipient@example.net", "other@example.org"
GREYLISTED = Outcome.deferred("450 4.7.1 greylisted, come back in 60 s")
HEARD = AttemptOutcomes.of({HERE: GREYLISTED}, 0.5)
REFUSED = AttemptOutcomes.of({HERE: Outcome.failed("550 5.1.1 'péter' unknown")}, 0.25)
DELIVERED = AttemptOutcomes.of({HERE: Outcome.delivered("250 2.0.0 queued as 4XyZ")}, 2.0)


class KeepingHarness(Harness, Protocol):
    """A harness that reads what is stored."""

    async def kept(self) -> Mapping[UUID, AttemptOutcomes]:
        """Return what is kept of attempts, by the ids of the entries that they ended. No handle is
        used behind it."""
        ...


class OutcomesContract:
    """Each ending keeps the outcomes that it is handed."""

    @pytest.fixture
    async def queue(self, harness: KeepingHarness) -> MailQueue:
        return await harness.open()

    @pytest.fixture
    async def consumer(self, harness: KeepingHarness, queue: MailQueue) -> AsyncIterator[Consumer]:
        consumer = Consumer(harness, queue)
        yield consumer
        await consumer.close()

    async def test_each_attempt_of_a_mail_is_kept_with_its_entry(
        self, harness: KeepingHarness, queue: MailQueue, consumer: Consumer
    ) -> None:
        first = await queue.enqueue(plain_mail())
        await (await consumer.next()).retry(timedelta(0), None, "450 greylisted", HEARD)
        again = await consumer.next()

        await again.done(DELIVERED)
        await consumer.close()

        assert await harness.kept() == {first: HEARD, again.enqueue_id: DELIVERED}

    async def test_mail_that_is_deferred_keeps_the_outcomes_of_those_attempted(
        self, harness: KeepingHarness, queue: MailQueue, consumer: Consumer
    ) -> None:
        first = await queue.enqueue(plain_mail(recipients=(HERE, THERE)))

        await (await consumer.next()).defer(timedelta(0), (THERE,), "451 backs off", DELIVERED)

        assert (await consumer.next()).mail.recipients == (THERE,)
        await consumer.close()
        assert await harness.kept() == {first: DELIVERED}

    async def test_a_rejection_is_kept_and_the_dead_letter_is_as_without_it(
        self, harness: KeepingHarness, queue: MailQueue, consumer: Consumer
    ) -> None:
        dead = await queue.enqueue(plain_mail())

        await (await consumer.next()).reject("550 5.1.1 unknown", REFUSED)

        assert [view.reason async for view in queue.dead_letters()] == ["550 5.1.1 unknown"]
        assert (await queue.size()).size == 0
        await consumer.close()
        assert await harness.kept() == {dead: REFUSED}

    async def test_endings_without_outcomes_keep_none(
        self, harness: KeepingHarness, queue: MailQueue, consumer: Consumer
    ) -> None:
        for name in ("done", "rejected", "retried"):
            await queue.enqueue(plain_mail(name))
        for _ in range(3):
            item = await consumer.next()
            if item.mail.name == "done":
                await item.done()
            elif item.mail.name == "rejected":
                await item.reject("no")
            else:
                await item.retry(timedelta(hours=1))
        await consumer.close()

        assert await harness.kept() == {}

    @pytest.mark.parametrize("ends_by", ["done", "retry"])
    async def test_outcomes_are_kept_once_when_all_recipients_were_recorded_before(
        self, harness: KeepingHarness, queue: MailQueue, consumer: Consumer, ends_by: str
    ) -> None:
        recorded = await queue.enqueue(plain_mail(recipients=(HERE, THERE)))
        item = await consumer.next()
        await item.record({HERE: Outcome.delivered("250 ok")})
        await item.record({THERE: Outcome.delivered("250 ok")})

        if ends_by == "done":
            await item.done(DELIVERED)
        else:
            await item.retry(timedelta(0), outcomes=DELIVERED)

        assert (await queue.size()).size == 0
        await consumer.close()
        assert await harness.kept() == {recorded: DELIVERED}
