"""What every mail queue does, whatever its engine: accepting, handing out, ending, delaying.

A subclass provides the fixture `harness`; nothing here knows an engine. Where a test waits for
nothing to happen it waits as short as it can, because real time really passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from contract.queue_harness import (
    Consumer,
    Harness,
    eventually,
    names,
    plain_mail,
)
from postroad.domain.delivery.retries import DeferItem, Done, ItemEnding, Reject, RetryItem
from postroad.domain.mail.mail import (
    QUARANTINE,
    Content,
    DsnOptions,
    Mail,
    Origin,
    Outcome,
    OutcomeKind,
    RecipientDsn,
)
from postroad.domain.mail.shapes import Scanner, shape_of
from postroad.domain.queues.selection import Selector
from postroad.errors import EntryEnded, InvalidInput, QueueClosed
from postroad.ports.mail_queue import EXPIRED, MailQueue
from postroad.telemetry.metrics import of_queue
from support.sink import Sink
from support.smtp_relay import relay_to

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class _Fixtures:
    @pytest.fixture
    async def queue(self, harness: Harness) -> MailQueue:
        return await harness.open()

    @pytest.fixture
    async def consumer(self, harness: Harness, queue: MailQueue) -> AsyncIterator[Consumer]:
        consumer = Consumer(harness, queue)
        yield consumer
        await consumer.close()


def _ended(queue: MailQueue, ending: str) -> float:
    namespace, name = of_queue(queue.name)
    labels = {"namespace": namespace, "name": name, "ending": ending}
    return REGISTRY.get_sample_value("postroad_ended_items_total", labels) or 0.0


class MailQueueContract(_Fixtures):
    """Mail in, mail out."""

    async def test_dequeued_mail_is_the_enqueued_one(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        mail = plain_mail(
            attributes={"priority": "3", "λ": "ü"},
            origin=Origin("client.example.org", "192.0.2.1", "ESMTP"),
            dsn=DsnOptions("HDRS", "id-1", {"recipient@example.net": RecipientDsn(("NEVER",))}),
            priority=-7,
        )

        enqueue_id = await queue.enqueue(mail)
        item = await consumer.next()

        assert item.enqueue_id == enqueue_id
        assert item.mail == mail.envelope
        assert await item.content() == mail.content
        assert item.size_bytes == len(b"Subject: hello\r\n\r\nbody\r\n")
        assert item.attempt == 0
        await item.done()

    async def test_a_small_mail_finds_room(self, queue: MailQueue) -> None:
        assert queue.has_room(1000)

    async def test_an_open_queue_is_open_until_it_is_closed(self, harness: Harness) -> None:
        queue = await harness.open()
        queue.check_open()

        await queue.close()

        with pytest.raises(QueueClosed):
            queue.check_open()

    async def test_content_may_be_any_bytes(self, queue: MailQueue, consumer: Consumer) -> None:
        content = bytes(range(256)) * 5 + b"\r\n.\r\n\x00no final newline"

        await queue.enqueue(plain_mail(content=content))
        item = await consumer.next()

        assert await item.content() == content
        assert b"".join([chunk async for chunk in item.stream()]) == content
        item.forget_content()
        assert b"".join([chunk async for chunk in item.stream()]) == content
        assert item.at_hand() in (None, (content, await item.shape()))
        await item.done()
        assert item.at_hand() is None

    async def test_content_may_be_empty(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail(content=b""))

        assert await (await consumer.next()).content() == b""

    async def test_content_may_be_a_file_or_a_stream(
        self, queue: MailQueue, consumer: Consumer, tmp_path: Path
    ) -> None:
        file = tmp_path / "mail.eml"
        file.write_bytes(b"From: file\r\n\r\n")

        async def stream() -> AsyncIterator[bytes]:
            yield b"From: str"
            yield b"eam\r\n\r\n"

        await queue.enqueue(Mail("a@example.org", ("b@example.net",), file))
        await queue.enqueue(Mail("a@example.org", ("b@example.net",), stream()))

        assert await (await consumer.next()).content() == b"From: file\r\n\r\n"
        assert await (await consumer.next()).content() == b"From: stream\r\n\r\n"

    @pytest.mark.parametrize("handed_over", ["bytes", "file", "stream"])
    @pytest.mark.parametrize("size", [100, 3 << 20])
    async def test_what_a_content_looks_like_is_kept_with_the_mail(
        self, queue: MailQueue, consumer: Consumer, tmp_path: Path, handed_over: str, size: int
    ) -> None:
        body = b"\r\n.\xff" + b"x" * 2000 + b"\n" + b"y" * 76
        content = b"Subject: x\r\n" + body * (1 + size // len(body))

        async def stream() -> AsyncIterator[bytes]:
            for first in range(0, len(content), 100_000):
                yield content[first : first + 100_000]

        file = tmp_path / "mail.eml"
        file.write_bytes(content)
        contents: dict[str, Content] = {"bytes": content, "file": file, "stream": stream()}
        await queue.enqueue(Mail("a@example.org", ("b@example.net",), contents[handed_over]))
        item = await consumer.next()
        first = await item.shape()
        await item.retry(timedelta(0))
        again = await consumer.next()

        assert first == await again.shape() == shape_of((content,))
        assert dict(again.mail.attributes) == {}

    async def test_what_is_no_mail_and_no_selector_is_refused(self, queue: MailQueue) -> None:
        wrong: Any = "a@example.org"

        with pytest.raises(InvalidInput, match="a mail is a Mail, not str"):
            await queue.enqueue(wrong)
        with pytest.raises(InvalidInput, match="selected by a Selector, not str"):
            await queue.remove(wrong)
        for listing in (queue.browse, queue.dead_letters):
            with pytest.raises(InvalidInput, match="selected by a Selector, not str"):
                async for _ in listing(wrong):
                    pass
        assert (await queue.size()).size == 0

    @pytest.mark.parametrize("size", [1000, 3 << 20])
    async def test_a_mail_is_scanned_once_in_its_life(
        self, queue: MailQueue, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        scanned = 0
        feed = Scanner.feed

        def count(scanner: Scanner, chunk: bytes) -> None:
            nonlocal scanned
            scanned += len(chunk)
            feed(scanner, chunk)

        monkeypatch.setattr(Scanner, "feed", count)
        content = b"Subject: x\r\n\r\n" + b".a line\r\n" * (size // 9) + b"\xff"
        replies = iter(["451 later"])
        async with Sink(lambda verb, _: next(replies, None) if verb == "MAIL" else None) as sink:
            relay = relay_to(sink)
            await queue.enqueue(plain_mail(content=content))
            for _ in range(2):
                item = await consumer.next()
                outcomes = await relay.transmit(
                    item.mail, item.stream(), item.size_bytes, item.shape
                )
                if outcomes["recipient@example.net"].kind is OutcomeKind.DELIVERED:
                    await item.done()
                else:
                    await item.retry(timedelta(0))
            await relay.close()

        assert [each.content for each in sink.mails] == [content + b"\r\n"]
        assert scanned == len(content)

    async def test_large_mail_comes_back_in_chunks(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        content = b"Subject: large\r\n\r\n" + b"0123456789abcdef" * (3 << 16)
        await queue.enqueue(plain_mail(content=content))
        item = await consumer.next()

        chunks = [chunk async for chunk in item.stream()]

        assert b"".join(chunks) == content
        assert max(map(len, chunks)) <= 1 << 20

    async def test_many_recipients_come_back_in_their_order(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        recipients = tuple(f"recipient-{number}@example.net" for number in range(2000))

        await queue.enqueue(plain_mail(recipients=recipients))

        assert (await consumer.next()).mail.recipients == recipients

    async def test_mail_may_have_no_sender_and_no_name(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(Mail(None, ("b@example.net",), b"bounce"))
        item = await consumer.next()

        assert (item.mail.sender, item.mail.name) == (None, None)

    async def test_mails_come_in_the_order_they_were_enqueued(
        self, queue: MailQueue, harness: Harness
    ) -> None:
        """To a consumer that prepares one at a time; of several, the one that is ready first."""
        consumer = Consumer(harness, queue, prefetch=1)
        expected = [f"name{number}" for number in range(20)]
        for name in expected:
            await queue.enqueue(plain_mail(name))

        found: list[object] = []
        for _ in expected:
            item = await consumer.next()
            found.append(item.mail.name)
            await item.done()
        await consumer.close()

        assert found == expected

    async def test_the_same_mail_enqueued_twice_comes_twice(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        ids = {await queue.enqueue(plain_mail("same")), await queue.enqueue(plain_mail("same"))}

        first, second = await consumer.next(), await consumer.next()
        await first.done()

        assert {first.enqueue_id, second.enqueue_id} == ids
        assert first.mail_id != second.mail_id
        assert await second.content() == plain_mail().content

    async def test_consumer_waits_for_a_mail_that_comes_later(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        assert await consumer.nothing()

        await queue.enqueue(plain_mail("late"))

        assert (await consumer.next()).mail.name == "late"

    async def test_mail_that_is_done_never_comes_again(
        self, harness: Harness, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail())
        await (await consumer.next()).done()
        await consumer.close()

        again = Consumer(harness, await harness.open())

        assert await again.nothing()
        assert await names(queue.browse()) == []
        await again.close()

    async def test_items_may_end_in_any_order(self, queue: MailQueue, consumer: Consumer) -> None:
        for name in ("first", "second", "third"):
            await queue.enqueue(plain_mail(name))
        items = [await consumer.next() for _ in range(3)]

        for number in (1, 0, 2):
            await items[number].done()

        assert (await queue.size()).size == 0

    async def test_each_item_has_a_deadline_from_its_lease_on(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail())
        first = await consumer.next()
        assert await consumer.nothing(SECOND)

        await queue.enqueue(plain_mail())

        later = (await consumer.next()).lease_until - first.lease_until
        assert SECOND / 2 < later < 30 * SECOND

    async def test_leased_mail_does_not_come_again(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail())

        await consumer.next()

        assert await consumer.nothing(2 * SECOND)

    async def test_consumer_gets_no_more_than_its_prefetch(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        consumer = Consumer(harness, queue, prefetch=2)
        for number in range(3):
            await queue.enqueue(plain_mail(f"name{number}"))
        first = await consumer.next()
        await consumer.next()

        assert await consumer.nothing()
        await first.done()

        assert (await consumer.next()).mail.name == "name2"
        await consumer.close()

    @pytest.mark.parametrize("prefetch", [-1, 0, 65536])
    async def test_prefetch_that_no_consumer_can_have_is_refused(
        self, queue: MailQueue, prefetch: int
    ) -> None:
        with pytest.raises(InvalidInput, match="1 to 65535"):
            await anext(queue.dequeue(prefetch))

    async def test_two_consumers_share_the_mails(self, harness: Harness, queue: MailQueue) -> None:
        theirs = await harness.open()
        consumers = [Consumer(harness, queue, 10), Consumer(harness, theirs, 10)]
        expected = {await queue.enqueue(plain_mail(f"name{number}")) for number in range(20)}

        found: list[object] = []
        while len(found) < len(expected):
            for consumer in consumers:
                if not await consumer.nothing(SECOND / 4):
                    item = await consumer.next()
                    found.append(item.enqueue_id)
                    await item.done()

        assert len(found) == len(expected)
        assert set(found) == expected
        for consumer in consumers:
            await consumer.close()

    async def test_many_producers_and_endings_at_once_lose_and_repeat_nothing(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        consumer = Consumer(harness, queue, prefetch=50)
        enqueued = await eventually(
            harness, asyncio.gather(*(queue.enqueue(plain_mail(f"{n}")) for n in range(50)))
        )

        found: list[object] = []
        retried = set()
        while len(found) < len(enqueued):
            item = await consumer.next()
            if item.attempt == 0 and int(item.mail.name or "") % 3 == 0:
                retried.add(item.mail_id)
                await item.retry(timedelta(0))
            else:
                found.append(item.mail.name)
                await item.done()

        assert set(found) == {str(number) for number in range(50)}
        assert len(found) == 50
        assert len(retried) == 17
        assert (await queue.size()).size == 0
        await consumer.close()

    async def test_an_item_ends_once(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail())
        item = await consumer.next()
        await item.done()

        with pytest.raises(EntryEnded):
            await item.done()
        with pytest.raises(EntryEnded):
            await item.retry(SECOND)
        with pytest.raises(EntryEnded):
            await item.reject("too late")

    async def test_leaving_the_loop_keeps_the_leases(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        consumer = Consumer(harness, queue)
        await queue.enqueue(plain_mail("kept"))
        await queue.enqueue(plain_mail("not handed out"))
        item = await consumer.next()
        await consumer.close()

        other = Consumer(harness, queue)

        assert (await other.next()).mail.name == "not handed out"
        await item.done()
        assert await names(queue.browse()) == ["not handed out"]
        await other.close()

    async def test_closing_the_queue_gives_leased_mail_back(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        theirs = await harness.open()
        consumer = Consumer(harness, theirs)
        await queue.enqueue(plain_mail("back"))
        await consumer.next()
        await theirs.close()

        other = Consumer(harness, queue)
        item = await other.next()

        assert item.mail.name == "back"
        assert await item.content() == plain_mail().content
        await item.done()
        await other.close()

    async def test_closed_queue_refuses_work(self, harness: Harness) -> None:
        queue = await harness.open()
        await queue.close()
        await queue.close()

        with pytest.raises(QueueClosed):
            await queue.enqueue(plain_mail())
        with pytest.raises(QueueClosed):
            await anext(queue.dequeue())
        with pytest.raises(QueueClosed):
            await queue.maintain()

    async def test_two_names_are_two_queues(self, harness: Harness, queue: MailQueue) -> None:
        other = await harness.new_name()

        await queue.enqueue(plain_mail())

        assert (await queue.size()).size == 1
        assert (await other.size()).size == 0
        assert queue.name != other.name

    async def test_second_handle_sees_the_first_ones_mail(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        await queue.enqueue(plain_mail("seen"))

        other = await harness.open()

        assert await names(other.browse()) == ["seen"]
        assert other.name == queue.name

    async def test_repr_of_an_item_shows_no_address(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail())

        assert "example" not in repr(await consumer.next())


class RetryContract(_Fixtures):
    """Entries: a mail that did not get through waits and comes again."""

    async def test_retried_mail_comes_again_after_its_delay(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        first_id = await queue.enqueue(plain_mail("again"))
        first = await consumer.next()

        await first.retry(2 * SECOND, error="451 try later")

        assert await consumer.nothing(SECOND)
        second = await consumer.next()
        assert second.mail_id == first.mail_id
        assert second.enqueue_id != first_id
        assert second.attempt == 1
        assert second.accepted_at == first.accepted_at
        assert await second.content() == plain_mail().content
        await second.done()

    async def test_retried_and_requeued_mail_keeps_its_priority(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail(priority=100))

        await (await consumer.next()).retry(timedelta(0))
        await (await consumer.next()).reject("no")
        assert [view.mail.priority async for view in queue.dead_letters()] == [100]
        await queue.requeue(Selector.all())

        item = await consumer.next()
        assert (item.mail.priority, item.mail.attributes) == (100, {})
        await item.done()

    async def test_retried_mail_is_browsed_with_its_error_and_its_time(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("again"))

        await (await consumer.next()).retry(HOUR, error="451 try later")
        (view,) = [each async for each in queue.browse()]

        assert (view.last_error, view.attempt) == ("451 try later", 1)
        assert view.due_at is not None
        assert HOUR / 2 < view.due_at - view.enqueued_at <= HOUR + SECOND

    async def test_retry_keeps_only_those_who_remain(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example", "c@z.example")))

        await (await consumer.next()).retry(timedelta(0), remaining=("c@z.example", "b@y.example"))

        assert (await consumer.next()).mail.recipients == ("b@y.example", "c@z.example")

    @pytest.mark.parametrize("named", ["A@x.example", "d@z.example", "b@y.example"])
    async def test_retry_for_one_who_is_not_left_is_refused_and_ends_nothing(
        self, queue: MailQueue, consumer: Consumer, named: str
    ) -> None:
        """Another spelling, another address, a recorded one: recipients that are not named count as
        served."""
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example", "c@z.example")))
        item = await consumer.next()
        await item.record({"b@y.example": Outcome.delivered("250 ok")})

        with pytest.raises(InvalidInput) as refused:
            await item.retry(timedelta(0), remaining=(named, "c@z.example"))

        assert refused.value.hint
        assert named not in str(refused.value)
        await item.retry(timedelta(0), remaining=("a@x.example", "c@z.example"))
        assert (await consumer.next()).mail.recipients == ("a@x.example", "c@z.example")
        with pytest.raises(EntryEnded):
            await item.retry(timedelta(0), remaining=(named,))

    async def test_recorded_recipients_are_not_retried(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example", "c@z.example")))
        item = await consumer.next()

        await item.record({"a@x.example": Outcome.delivered("250 ok")})
        await item.record({"b@y.example": Outcome.failed("550 no such user")})
        await item.record({"c@z.example": Outcome.deferred("451 try later")})
        await item.retry(timedelta(0))
        again = await consumer.next()

        assert again.mail.recipients == ("c@z.example",)
        assert again.failures == {"b@y.example": "550 no such user"}

    async def test_who_is_finished_stays_so_whatever_is_recorded_later(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        """Transmissions to several sites end in any order."""
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example", "c@z.example")))
        item = await consumer.next()
        await item.record({"a@x.example": Outcome.delivered("250 ok")})
        await item.record({"b@y.example": Outcome.failed("550 no such user")})

        await item.record(dict.fromkeys(item.mail.recipients, Outcome.deferred("451 try later")))

        assert item.failures == {"b@y.example": "550 no such user"}
        await item.retry(timedelta(0))
        again = await consumer.next()
        assert again.mail.recipients == ("c@z.example",)
        assert again.failures == {"b@y.example": "550 no such user"}

    @pytest.mark.parametrize("named", ["A@x.example", "d@z.example"])
    async def test_a_record_of_one_who_is_no_recipient_is_refused_and_writes_nothing(
        self, queue: MailQueue, consumer: Consumer, named: str
    ) -> None:
        """The recipient meant by another spelling would be attempted again."""
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example")))
        item = await consumer.next()
        outcomes = dict.fromkeys((named, "b@y.example"), Outcome.failed("550 no"))

        with pytest.raises(InvalidInput) as refused:
            await item.record(outcomes)

        assert refused.value.hint
        assert named not in str(refused.value)
        assert item.failures == {}
        await item.retry(timedelta(0))
        assert (await consumer.next()).mail.recipients == ("a@x.example", "b@y.example")

    async def test_mail_that_is_deferred_a_thousand_times_was_not_attempted(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        consumer = Consumer(harness, queue, prefetch=20)
        for number in range(20):
            await queue.enqueue(plain_mail(f"{number}", recipients=(f"a@{number}", f"b@{number}")))
        items = [await consumer.next() for _ in range(20)]
        for item in items:
            await item.record(dict.fromkeys(item.mail.recipients[:1], Outcome.failed("550 no")))

        for _ in range(50):
            others = (item.defer(timedelta(0), reason="451 the site backs off") for item in items)
            await eventually(harness, asyncio.gather(*others))
            items = [await consumer.next() for _ in range(20)]

        assert {item.attempt for item in items} == {0}
        assert {item.mail.recipients for item in items} == {(f"b@{n}",) for n in range(20)}
        assert all(item.failures == {f"a@{item.mail.name}": "550 no"} for item in items)
        views = [view async for view in queue.browse()]
        assert [(view.attempt, view.last_error) for view in views] == [
            (0, "451 the site backs off")
        ] * 20
        await consumer.close()

    async def test_mail_that_is_deferred_comes_after_the_delay_for_those_who_remain(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example")))
        await (await consumer.next()).retry(timedelta(0))
        item = await consumer.next()

        with pytest.raises(InvalidInput):
            await item.defer(2 * SECOND, ("c@z.example",))
        await item.defer(2 * SECOND, ("b@y.example",))

        assert await consumer.nothing(SECOND)
        again = await consumer.next()
        assert (again.attempt, again.mail.recipients) == (1, ("b@y.example",))
        with pytest.raises(EntryEnded):
            await item.defer(SECOND)

    async def test_what_is_deferred_is_counted_apart(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        counts = [_ended(queue, ending) for ending in ("defer", "retry")]
        await queue.enqueue(plain_mail())

        await (await consumer.next()).defer(timedelta(0))

        assert [_ended(queue, ending) for ending in ("defer", "retry")] == [
            counts[0] + 1,
            counts[1],
        ]

    @pytest.mark.parametrize(
        ("ending", "left"),
        [
            (Done(), (0, 0, 0)),
            (RetryItem(timedelta(0), ("b@y.example",), "451"), (1, 1, 0)),
            (DeferItem(timedelta(0), ("b@y.example",), "451"), (1, 0, 0)),
            (Reject("550"), (0, 0, 1)),
        ],
        ids=lambda value: getattr(value, "name", ""),
    )
    async def test_an_item_ends_by_a_value_once(
        self,
        queue: MailQueue,
        consumer: Consumer,
        ending: ItemEnding,
        left: tuple[int, int, int],
    ) -> None:
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example")))
        item = await consumer.next()

        await item.end(ending)

        with pytest.raises(EntryEnded):
            await item.end(ending)
        views = [view async for view in queue.browse()]
        assert {view.mail.recipients for view in views} <= {("b@y.example",)}
        attempts = sum(view.attempt for view in views)
        assert (len(views), attempts, (await queue.size()).dead_letters) == left

    @pytest.mark.parametrize(
        "ending",
        [
            None,
            "done",
            Reject(cast("str", None)),
            RetryItem(cast("timedelta", 5)),
            DeferItem(cast("timedelta", None)),
            RetryItem(timedelta(0), None, cast("str", b"451")),
        ],
        ids=str,
    )
    async def test_what_is_no_ending_is_refused_and_ends_nothing(
        self, queue: MailQueue, consumer: Consumer, ending: ItemEnding
    ) -> None:
        await queue.enqueue(plain_mail())
        item = await consumer.next()

        with pytest.raises(InvalidInput):
            await item.end(ending)

        await item.done()
        assert (await queue.size()).size == 0

    async def test_outcomes_are_recorded_together_each_with_its_own_text(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        refused = {f"r{n}@x.example": Outcome.failed(f"550 no r{n}") for n in range(50)}
        others = {
            "served@x.example": Outcome.delivered("250 ok"),
            "late@x.example": Outcome.deferred("451 try later"),
        }
        await queue.enqueue(plain_mail(recipients=(*refused, *others)))
        item = await consumer.next()

        await item.record({})
        await item.record({**refused, **others})

        failures = {recipient: outcome.text for recipient, outcome in refused.items()}
        assert item.failures == failures
        await item.retry(timedelta(0))
        again = await consumer.next()
        assert (again.mail.recipients, again.failures) == (("late@x.example",), failures)

    async def test_retry_without_remaining_recipients_is_done(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail())
        item = await consumer.next()

        await item.record({"recipient@example.net": Outcome.delivered("250 ok")})
        await item.retry(timedelta(0))

        assert await consumer.nothing()
        assert (await queue.size()).size == 0

    async def test_records_survive_the_consumer(self, harness: Harness, queue: MailQueue) -> None:
        theirs = await harness.open()
        consumer = Consumer(harness, theirs)
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example")))
        await (await consumer.next()).record({"a@x.example": Outcome.delivered("250 ok")})
        await theirs.close()

        other = Consumer(harness, queue)
        item = await other.next()

        assert item.mail.recipients == ("b@y.example",)
        await item.done()
        assert await names(queue.browse()) == []
        await other.close()

    async def test_mail_delivered_to_all_does_not_come_again(
        self, harness: Harness, queue: MailQueue
    ) -> None:
        theirs = await harness.open()
        consumer = Consumer(harness, theirs)
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example")))
        item = await consumer.next()
        await item.record({"a@x.example": Outcome.delivered("250 ok")})
        await item.record({"b@y.example": Outcome.delivered("250 ok")})
        await theirs.close()

        other = Consumer(harness, queue)

        assert await other.nothing(12 * SECOND)
        assert (await queue.size()).size == 0
        await other.close()

    async def test_a_mail_may_be_retried_often(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail())

        for attempt in range(10):
            item = await consumer.next()
            assert item.attempt == attempt
            await item.retry(timedelta(0))

        assert (await queue.size()).size == 1
        await (await consumer.next()).done()
        assert (await queue.size()).size == 0


class RejectContract(_Fixtures):
    """Dead letters."""

    async def test_rejected_mail_is_a_dead_letter_with_its_reason(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        enqueue_id = await queue.enqueue(plain_mail("dead"))

        await (await consumer.next()).reject("no such user")
        (view,) = [each async for each in queue.dead_letters()]

        assert (view.mail.name, view.reason) == ("dead", "no such user")
        assert view.enqueue_id == enqueue_id
        assert await names(queue.browse()) == []
        sizes = await queue.size()
        assert (sizes.size, sizes.dead_letters) == (0, 1)
        assert await consumer.nothing()

    async def test_dead_letter_is_for_those_who_did_not_get_the_mail(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail(recipients=("a@x.example", "b@y.example", "c@z.example")))
        item = await consumer.next()
        await item.record({"a@x.example": Outcome.delivered("250 ok")})
        await item.record({"b@y.example": Outcome.failed("550 no such user")})

        await item.reject("given up")
        (view,) = [each async for each in queue.dead_letters()]

        assert sorted(view.mail.recipients) == ["b@y.example", "c@z.example"]

    async def test_dead_letters_are_selected(self, queue: MailQueue, consumer: Consumer) -> None:
        for name in ("one", "two"):
            await queue.enqueue(plain_mail(name))
            await (await consumer.next()).reject("reason")

        assert await names(queue.dead_letters()) == ["one", "two"]
        assert await names(queue.dead_letters(Selector(name="two"))) == ["two"]

    async def test_requeued_dead_letter_comes_again_with_its_bytes(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("dead"))
        item = await consumer.next()
        await item.record({"recipient@example.net": Outcome.failed("550 no such user")})
        await item.reject("550 no such user")

        assert await queue.requeue(Selector(name="dead")) == 1
        again = await consumer.next()

        assert again.mail_id == item.mail_id
        assert again.mail.recipients == ("recipient@example.net",)
        assert again.failures == {}
        assert await again.content() == plain_mail().content
        assert await names(queue.dead_letters()) == []
        await again.done()
        assert await queue.requeue(Selector.all()) == 0

    async def test_requeue_leaves_the_others(self, queue: MailQueue, consumer: Consumer) -> None:
        for name in ("one", "two"):
            await queue.enqueue(plain_mail(name))
            await (await consumer.next()).reject("reason")

        assert await queue.requeue(Selector(name="one")) == 1

        assert await names(queue.dead_letters()) == ["two"]
        assert await names(queue.browse()) == ["one"]

    async def test_expired_mails_are_dead_letters_and_come_again_when_requeued(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for name in ("one", "two"):
            await queue.enqueue(plain_mail(name), timedelta(hours=1))

        assert await queue.expire(Selector(name="one")) == 1
        assert await queue.expire(Selector(name="one")) == 0

        assert await names(queue.browse()) == ["two"]
        (view,) = [each async for each in queue.dead_letters()]
        assert (view.mail.name, view.reason) == ("one", EXPIRED)
        assert (await queue.size()).dead_letters == 1
        assert await queue.requeue(Selector.all()) == 1
        again = await consumer.next()
        assert await again.content() == plain_mail("one").content
        await again.done()

    async def test_held_mail_expires_too(self, queue: MailQueue) -> None:
        await queue.enqueue(plain_mail("held"))
        await queue.hold(Selector.all())

        assert await queue.expire(Selector.all()) == 1

        assert await names(queue.browse()) == []
        assert await names(queue.dead_letters()) == ["held"]

    async def test_mail_that_expired_while_it_was_held_is_held_when_requeued(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("quarantined", attributes={QUARANTINE: "a filter's"}))
        await queue.enqueue(plain_mail("held"))
        await queue.hold(Selector(name="held"))
        await queue.expire(Selector.all())

        assert await queue.requeue(Selector.all()) == 2

        assert sorted(await names(queue.browse())) == ["held", "quarantined"]
        assert (await queue.size()).held == 2
        await queue.enqueue(plain_mail("other"))
        assert (await consumer.next()).mail.name == "other"
        assert await queue.release(Selector(name="quarantined")) == 1
        assert (await consumer.next()).mail.name == "quarantined"

    async def test_expired_mail_is_a_dead_letter_for_those_who_did_not_get_it(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        recipients = ("a@x.example", "b@x.example", "c@x.example")
        await queue.enqueue(plain_mail("shared", recipients=recipients))
        item = await consumer.next()
        await item.record(dict.fromkeys(recipients[:1], Outcome.delivered()))
        await item.record(dict.fromkeys(recipients[1:2], Outcome.failed("550")))
        await item.retry(timedelta(hours=1))

        assert await queue.expire(Selector.all()) == 1

        (view,) = [each async for each in queue.dead_letters()]
        assert sorted(view.mail.recipients) == ["b@x.example", "c@x.example"]

    async def test_mail_that_its_consumer_delivers_after_all_is_no_dead_letter(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("leased"))
        item = await consumer.next()

        await queue.expire(Selector.all())
        await item.done()

        assert await queue.requeue(Selector.all()) == 0
        assert await names(queue.dead_letters()) == []
        assert await names(queue.browse()) == []

    async def test_discarded_dead_letters_are_gone_and_no_others(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for name in ("one", "two"):
            await queue.enqueue(plain_mail(name))
            await (await consumer.next()).reject("reason")
        await queue.enqueue(
            plain_mail("one", recipients=("waits@example.net",)), timedelta(hours=1)
        )

        assert await queue.discard(Selector(name="one")) == 1

        assert await names(queue.dead_letters()) == ["two"]
        assert await names(queue.browse()) == ["one"]
        assert await queue.requeue(Selector(name="one")) == 0
        assert await queue.discard(Selector.all()) == 1
        assert await queue.discard(Selector.all()) == 0
        assert (await queue.size()).dead_letters == 0


class DelayedMailQueueContract(_Fixtures):
    """Delays from nothing to centuries."""

    async def test_delayed_mail_comes_when_it_is_due_and_not_before(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("late"), delay=3 * SECOND)

        assert await consumer.nothing(2 * SECOND)
        assert (await consumer.next()).mail.name == "late"

    async def test_negative_delay_is_none(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("now"), delay=-30 * SECOND)

        assert (await consumer.next(5 * SECOND)).mail.name == "now"

    async def test_delayed_mail_lets_others_pass(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("late"), delay=HOUR)
        await queue.enqueue(plain_mail("now"))

        assert (await consumer.next()).mail.name == "now"
        assert await consumer.nothing()

    @pytest.mark.parametrize(
        "delay",
        [
            pytest.param(timedelta(days=3650), id="ten years"),
            pytest.param(timedelta(days=365 * 291), id="291 years"),
            pytest.param(timedelta.max, id="the longest there is"),
        ],
    )
    async def test_very_long_delay_is_kept(
        self, queue: MailQueue, consumer: Consumer, delay: timedelta
    ) -> None:
        await queue.enqueue(plain_mail(), delay=delay)

        assert await consumer.nothing()
        sizes = await queue.size()
        assert (sizes.size, sizes.delayed) == (1, 1)

    async def test_delayed_mail_survives_the_handle(self, harness: Harness) -> None:
        first = await harness.open()
        await first.enqueue(plain_mail("late"), delay=2 * SECOND)
        await first.close()

        consumer = Consumer(harness, await harness.open())

        assert (await consumer.next()).mail.name == "late"
        await consumer.close()
