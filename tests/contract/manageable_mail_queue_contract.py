"""What people who run a queue can do to it, whatever its engine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from contract.mail_queue_contract import HOUR, SECOND, _Fixtures
from contract.queue_harness import Consumer, Harness, names, plain_mail
from postroad.domain.mail.mail import QUARANTINE
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.errors import InvalidInput, MailNotFound
from postroad.ports.mail_queue import MailQueue, Operation

ALL = Selector.all()


class ManageableMailQueueContract(_Fixtures):
    """Counting, looking, removing."""

    async def test_new_queue_is_empty(self, queue: MailQueue) -> None:
        assert await queue.size() == Sizes(0, 0, 0, 0)
        assert await names(queue.browse()) == []
        assert await names(queue.dead_letters()) == []
        assert not any(any(each.values()) for each in (await queue.ages()).values())

    async def test_size_counts_what_waits_and_what_is_leased(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for number in range(3):
            await queue.enqueue(plain_mail(f"name{number}"))
        await consumer.next()

        assert await queue.size() == Sizes(3, 0, 0, 0)

    async def test_oldest_due_mail_is_the_first_that_a_worker_could_deliver(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("later"), delay=HOUR)
        assert (await queue.size()).oldest_due is None
        await queue.enqueue(plain_mail("first"))
        await queue.enqueue(plain_mail("second"))
        since = {each.mail.name: each.enqueued_at async for each in queue.browse()}
        oldest = (await queue.size()).oldest_due
        assert oldest is not None
        assert abs(oldest - since["first"]) < SECOND, "an id is made a moment before"

        await (await consumer.next()).done()
        second = (await queue.size()).oldest_due
        assert second is not None
        assert abs(second - since["second"]) < SECOND
        assert second >= oldest
        await queue.hold(Selector(name="second"))
        assert (await queue.size()).oldest_due is None

    async def test_listings_and_operations_go_on_after_an_id_and_up_to_another(
        self, queue: MailQueue
    ) -> None:
        for number in range(5):
            await queue.enqueue(plain_mail(f"name{number}"))
        ids = [each.enqueue_id async for each in queue.browse()]
        assert ids == sorted(ids)

        assert await names(queue.browse(replace(ALL, after=ids[1]))) == ["name2", "name3", "name4"]
        assert await names(queue.browse(replace(ALL, last=ids[1]))) == ["name0", "name1"]
        middle = replace(ALL, after=ids[0], last=ids[3])
        elsewhere = Selector(domain="example.com", after=ids[0])
        assert await names(queue.browse(elsewhere)) == []
        assert await queue.expire(middle) == 3
        assert await names(queue.browse()) == ["name0", "name4"]
        dead = [each.enqueue_id async for each in queue.dead_letters()]
        assert await names(queue.dead_letters(replace(ALL, after=dead[0]))) == ["name2", "name3"]
        assert await queue.discard(replace(ALL, last=dead[0])) == 1
        assert await names(queue.dead_letters(Selector(enqueue_id=dead[1]))) == ["name2"]
        assert await names(queue.dead_letters(Selector(enqueue_id=dead[0]))) == []

    async def test_content_is_read_by_the_id_of_a_mail_that_waits_or_is_dead(
        self, queue: MailQueue
    ) -> None:
        large = bytes(range(256)) * 5000
        first = await queue.enqueue(plain_mail("small", content=b"Subject: x\r\n\r\n"))
        await queue.enqueue(plain_mail("large", content=large))

        assert [each async for each in queue.content(first)] == [b"Subject: x\r\n\r\n"]
        await queue.expire(Selector(name="large"))
        dead = [each.enqueue_id async for each in queue.dead_letters()]
        chunks = [each async for each in queue.content(dead[0])]
        assert b"".join(chunks) == large
        assert max(map(len, chunks)) <= 2**20
        await queue.discard(ALL)
        with pytest.raises(MailNotFound):
            await anext(queue.content(dead[0]))
        assert await names(queue.browse()) == ["small"]

    async def test_done_decreases_the_size_and_retry_does_not(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("done"))
        await queue.enqueue(plain_mail("again"))

        await (await consumer.next()).done()
        await (await consumer.next()).retry(HOUR)

        assert await queue.size() == Sizes(1, 1, 0, 0)

    async def test_browse_yields_mails_in_order(self, queue: MailQueue) -> None:
        expected = [f"name{number}" for number in range(12)]
        for name in expected:
            await queue.enqueue(plain_mail(name))

        assert await names(queue.browse()) == expected

    async def test_browse_shows_all_of_a_mail(self, queue: MailQueue) -> None:
        recipients = ("a@x.example",)
        mail = plain_mail("shown", attributes={"color": "blue"}, recipients=recipients, priority=3)
        enqueue_id = await queue.enqueue(mail)

        (view,) = [each async for each in queue.browse()]

        assert view.mail == mail.envelope
        assert view.enqueue_id == enqueue_id
        assert view.size_bytes == len(b"Subject: hello\r\n\r\nbody\r\n")
        assert (view.due_at, view.held, view.attempt) == (None, False, 0)
        assert (view.last_error, view.reason) == (None, None)

    async def test_browse_shows_leased_mail_until_it_is_done(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("leased"))
        item = await consumer.next()

        assert await names(queue.browse()) == ["leased"]
        await item.done()
        assert await names(queue.browse()) == []

    async def test_browse_does_not_disturb_consumers(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for name in ("one", "two"):
            await queue.enqueue(plain_mail(name))

        await names(queue.browse())

        assert (await consumer.next()).mail.name == "one"
        assert (await consumer.next()).mail.name == "two"

    async def test_browse_goes_on_while_mails_come_and_go(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for number in range(10):
            await queue.enqueue(plain_mail(f"name{number}"))

        found: list[object] = []
        async for view in queue.browse():
            found.append(view.mail.name)
            await queue.enqueue(plain_mail("new"))
            if len(found) < 3:
                await (await consumer.next()).done()

        stayed = [f"name{number}" for number in range(2, 10)]
        assert [name for name in found if name in stayed] == stayed

    @pytest.mark.parametrize(
        ("selector", "expected"),
        [
            pytest.param(Selector(name="one"), ["one"], id="name"),
            pytest.param(Selector(sender="a@x.example"), ["one", "two"], id="sender"),
            pytest.param(Selector(sender=""), ["three"], id="null sender"),
            pytest.param(Selector(recipient="r@y.example"), ["one", "three"], id="recipient"),
            pytest.param(Selector(recipient="r@y"), [], id="exactly"),
            pytest.param(Selector(domain="Z.EXAMPLE"), ["two", "three"], id="domain"),
            pytest.param(
                Selector(domains=frozenset({"z.example", "none.example"})),
                ["two", "three"],
                id="domains",
            ),
            pytest.param(Selector(attribute=("color", "blue")), ["two"], id="attribute"),
            pytest.param(Selector(older_than=HOUR), [], id="age"),
            pytest.param(
                Selector(sender="a@x.example", domain="z.example"), ["two"], id="joined by and"
            ),
            pytest.param(Selector(name="four"), [], id="nothing"),
            pytest.param(ALL, ["one", "two", "three"], id="all"),
        ],
    )
    async def test_selector_selects_for_browse_and_remove(
        self, queue: MailQueue, selector: Selector, expected: list[str]
    ) -> None:
        await queue.enqueue(plain_mail("one", "a@x.example", ("r@y.example",)))
        await queue.enqueue(
            plain_mail("two", "a@x.example", ("s@z.example",), attributes={"color": "blue"})
        )
        await queue.enqueue(plain_mail("three", None, ("s@z.example", "r@y.example")))

        assert await names(queue.browse(selector)) == expected
        assert await queue.remove(selector) == len(expected)

        left = [name for name in ("one", "two", "three") if name not in expected]
        assert await names(queue.browse()) == left
        assert (await queue.size()).size == len(left)

    async def test_selector_by_id(self, queue: MailQueue) -> None:
        await queue.enqueue(plain_mail("one"))
        enqueue_id = await queue.enqueue(plain_mail("two"))

        assert await queue.remove(Selector(enqueue_id=enqueue_id)) == 1
        assert await names(queue.browse()) == ["one"]

    async def test_empty_selector_is_refused(self, queue: MailQueue) -> None:
        for operation in Operation:
            with pytest.raises(InvalidInput):
                await queue.change(operation, Selector())

    async def test_each_operation_is_a_method_of_its_name(self, queue: MailQueue) -> None:
        for operation in Operation:
            assert await getattr(queue, operation.value)(ALL) == 0

    async def test_removed_mail_never_comes(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("removed"))
        await queue.enqueue(plain_mail("stays"))

        await queue.remove(Selector(name="removed"))

        assert (await consumer.next()).mail.name == "stays"
        assert await consumer.nothing()

    async def test_remove_is_about_the_mails_that_wait_now(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("same"))
        assert await queue.remove(Selector(name="same")) == 1

        await queue.enqueue(plain_mail("same"))

        assert await names(queue.browse()) == ["same"]
        await (await consumer.next()).done()
        assert await queue.remove(Selector(name="same")) == 0

    async def test_retried_mail_can_be_removed(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("again"))
        await (await consumer.next()).retry(SECOND)

        assert await queue.remove(Selector(name="again")) == 1

        assert await consumer.nothing(3 * SECOND)

    async def test_mail_removed_while_leased_is_gone_whatever_its_consumer_says(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for name in ("done", "retried", "rejected"):
            await queue.enqueue(plain_mail(name))
        items = [await consumer.next() for _ in range(3)]

        assert await queue.remove(ALL) == 3
        await items[0].done()
        await items[1].retry(timedelta(0))
        await items[2].reject("reason")

        assert await consumer.nothing()
        assert await queue.size() == Sizes(0, 0, 0, 0)

    async def test_purge_removes_everything(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("due"))
        await queue.enqueue(plain_mail("delayed"), delay=2 * SECOND)
        await queue.enqueue(plain_mail("held"))
        await queue.hold(Selector(name="held"))

        assert await queue.purge() == 3
        assert await queue.purge() == 0

        assert await queue.size() == Sizes(0, 0, 0, 0)
        assert await consumer.nothing(3 * SECOND)

    async def test_ages_count_by_domain_and_age(self, queue: MailQueue) -> None:
        await queue.enqueue(plain_mail("one", recipients=("a@x.example", "b@y.example")))
        await queue.enqueue(plain_mail("two", recipients=("c@X.example",)))

        ages = await queue.ages()

        assert ages["x.example"][timedelta(minutes=5)] == 2
        assert sum(ages["y.example"].values()) == 1
        assert list(ages["x.example"]) == sorted(ages["x.example"])


class HoldContract(_Fixtures):
    """Holding mail back, and letting it go."""

    @pytest.mark.parametrize("delay", [timedelta(0), 2 * SECOND])
    @pytest.mark.parametrize("key", [None, "key"])
    async def test_mail_in_quarantine_is_held_from_its_acceptance_on(
        self, queue: MailQueue, consumer: Consumer, delay: timedelta, key: str | None
    ) -> None:
        mail = replace(plain_mail("held"), attributes={QUARANTINE: "virus: EICAR"})
        enqueue_id = await queue.enqueue(mail, delay, key=key)
        assert key is None or await queue.enqueue(mail, delay, key=key) == enqueue_id

        assert await consumer.nothing(3 * SECOND)
        assert (await queue.size()).held == 1
        assert [view.held async for view in queue.browse()] == [True]
        await queue.republish(timedelta(0))
        assert await consumer.nothing()
        assert await queue.release(ALL) == 1

        item = await consumer.next()
        assert item.mail.attributes == {QUARANTINE: "virus: EICAR"}
        await item.done()
        assert await queue.size() == Sizes(0, 0, 0, 0)

    async def test_held_mail_does_not_come_until_it_is_released(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("held"))

        assert await queue.hold(ALL) == 1
        assert await consumer.nothing()
        assert await queue.size() == Sizes(1, 0, 1, 0)
        assert [view.held async for view in queue.browse()] == [True]
        assert await queue.release(ALL) == 1

        item = await consumer.next()
        assert item.mail.name == "held"
        assert await item.content() == plain_mail().content
        await item.done()
        assert await queue.size() == Sizes(0, 0, 0, 0)

    async def test_hold_and_release_count_what_they_changed(self, queue: MailQueue) -> None:
        await queue.enqueue(plain_mail())

        assert await queue.release(ALL) == 0
        assert await queue.hold(ALL) == 1
        assert await queue.hold(ALL) == 0
        assert await queue.release(ALL) == 1
        assert await queue.release(ALL) == 0

    async def test_hold_is_selective(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("held"))
        await queue.enqueue(plain_mail("free"))

        await queue.hold(Selector(name="held"))

        assert (await consumer.next()).mail.name == "free"
        assert await consumer.nothing()

    async def test_released_mail_keeps_a_delay_that_is_not_over(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail(), delay=HOUR)

        await queue.hold(ALL)
        await queue.release(ALL)

        assert await queue.size() == Sizes(1, 1, 0, 0)
        assert await consumer.nothing()

    async def test_held_mail_can_be_removed(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail())
        await queue.hold(ALL)

        assert await queue.remove(ALL) == 1
        assert await queue.release(ALL) == 0
        assert await consumer.nothing()

    async def test_mail_held_while_leased_and_done_does_not_come_when_released(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail())
        item = await consumer.next()

        await queue.hold(ALL)
        await item.done()
        await queue.release(ALL)

        assert await consumer.nothing(10 * SECOND)
        assert (await queue.size()).size == 0

    @pytest.mark.parametrize("is_released", [False, True], ids=["held", "released again"])
    async def test_mail_held_while_leased_and_retried_comes_once_it_is_released(
        self, queue: MailQueue, consumer: Consumer, is_released: bool
    ) -> None:
        await queue.enqueue(plain_mail())
        item = await consumer.next()

        assert await queue.hold(ALL) == 1
        if is_released:
            assert await queue.release(ALL) == 1
        await item.retry(timedelta(0))
        assert await queue.size() == Sizes(1, 0, 0 if is_released else 1, 0)
        if not is_released:
            assert await consumer.nothing()
            assert await queue.release(ALL) == 1

        again = await consumer.next()
        assert again.mail_id == item.mail_id
        await again.done()
        assert await queue.size() == Sizes(0, 0, 0, 0)


class DelayedManageableMailQueueContract(_Fixtures):
    """Delayed mail can be seen, removed and made due."""

    async def test_delayed_mail_is_counted_and_browsed(self, queue: MailQueue) -> None:
        await queue.enqueue(plain_mail("late"), delay=HOUR)

        assert await queue.size() == Sizes(1, 1, 0, 0)
        (view,) = [each async for each in queue.browse()]
        assert view.due_at is not None
        assert HOUR / 2 < view.due_at - view.accepted_at <= HOUR + SECOND

    async def test_delayed_mail_can_be_removed(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("removed"), delay=2 * SECOND)
        await queue.enqueue(plain_mail("stays"), delay=2 * SECOND)

        assert await queue.remove(Selector(name="removed")) == 1

        assert await names(queue.browse()) == ["stays"]
        assert (await consumer.next()).mail.name == "stays"
        assert await consumer.nothing()

    async def test_flush_makes_delayed_mail_due(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("late"), delay=30 * HOUR)

        assert await queue.flush(ALL) == 1

        assert await queue.size() == Sizes(1, 0, 0, 0)
        item = await consumer.next(5 * SECOND)
        assert item.mail.name == "late"
        assert await item.content() == plain_mail().content

    async def test_flush_counts_and_selects(self, queue: MailQueue, consumer: Consumer) -> None:
        await queue.enqueue(plain_mail("now"))
        await queue.enqueue(plain_mail("one"), delay=HOUR)
        await queue.enqueue(plain_mail("two"), delay=HOUR)

        assert await queue.flush(Selector(name="now")) == 0
        assert await queue.flush(Selector(name="two")) == 1
        assert await queue.flush(ALL) == 1
        assert await queue.flush(ALL) == 0

        assert {(await consumer.next()).mail.name for _ in range(3)} == {"now", "one", "two"}

    async def test_flush_keeps_the_order_of_what_it_flushes(self, queue: MailQueue) -> None:
        for name in ("one", "two", "three"):
            await queue.enqueue(plain_mail(name), delay=HOUR)

        await queue.flush(ALL)

        assert await names(queue.browse()) == ["one", "two", "three"]

    async def test_flushed_mail_comes_once(
        self, harness: Harness, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("late"), delay=2 * SECOND)

        await queue.flush(ALL)
        await (await consumer.next()).done()

        assert await consumer.nothing(4 * SECOND)
        assert (await queue.size()).size == 0

    async def test_republish_is_harmless_for_what_is_still_there(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        for number in range(3):
            await queue.enqueue(plain_mail(f"name{number}"))
        await queue.enqueue(plain_mail("late"), delay=HOUR)

        await queue.republish(timedelta(0))
        found: list[object] = []
        for _ in range(3):
            item = await consumer.next()
            found.append(item.mail.name)
            await item.done()

        assert len(found) == 3
        assert set(found) == {"name0", "name1", "name2"}
        assert await consumer.nothing()
        assert await queue.size() == Sizes(1, 1, 0, 0)

    async def test_maintenance_changes_nothing_that_waits(
        self, queue: MailQueue, consumer: Consumer
    ) -> None:
        await queue.enqueue(plain_mail("now"))
        await queue.enqueue(plain_mail("late"), delay=HOUR)

        await queue.maintain()
        await queue.maintain()

        assert await names(queue.browse()) == ["now", "late"]
        assert (await consumer.next()).mail.name == "now"
