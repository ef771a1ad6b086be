"""What an enqueue key promises of every mail queue. A subclass provides the fixture `harness`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from contract.queue_harness import Consumer, Harness, eventually, names, plain_mail
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.references import MAX_KEY
from postroad.errors import InvalidInput, KeyReused

AT_ONCE = 4
"""Enqueues with one key by each of two processes."""


class KeyedEnqueueContract:
    """Enqueues with a key."""

    async def test_two_enqueues_with_one_key_are_one_mail(self, harness: Harness) -> None:
        queue = await harness.open()
        consumer = Consumer(harness, queue)

        first = await queue.enqueue(plain_mail("mail"), key="one")
        assert await queue.enqueue(plain_mail("mail"), key="one") == first

        assert await names(queue.browse()) == ["mail"]
        item = await consumer.next()
        assert item.enqueue_id == first
        await item.done()
        assert await consumer.nothing()
        await consumer.close()

    async def test_a_key_stands_for_its_mail_when_that_has_ended(self, harness: Harness) -> None:
        queue = await harness.open()
        consumer = Consumer(harness, queue)
        first = await queue.enqueue(plain_mail("mail"), key="one")
        await (await consumer.next()).done()

        assert await queue.enqueue(plain_mail("mail"), key="one") == first

        assert await consumer.nothing()
        assert await names(queue.browse()) == []
        await consumer.close()

    async def test_a_key_stands_for_its_mail_when_that_was_replaced(self, harness: Harness) -> None:
        queue = await harness.open()
        consumer = Consumer(harness, queue)
        first = await queue.enqueue(plain_mail("mail"), key="one")
        await (await consumer.next()).retry(timedelta(hours=1))

        assert await queue.enqueue(plain_mail("mail"), key="one") == first

        assert await names(queue.browse()) == ["mail"]
        await consumer.close()

    async def test_of_many_enqueues_at_once_one_queues_the_mail(self, harness: Harness) -> None:
        handles = [await harness.open(), await harness.open()]

        calls = [each.enqueue(plain_mail("mail"), key="one") for each in handles * AT_ONCE]
        found = await eventually(harness, asyncio.gather(*calls))

        assert len(set(found)) == 1
        assert await names(handles[0].browse()) == ["mail"]

    @pytest.mark.parametrize(
        "other",
        [
            plain_mail("mail", content=b"Subject: other\r\n\r\n"),
            plain_mail("mail", sender=None),
            plain_mail("mail", recipients=("other@example.net",)),
        ],
        ids=["content", "sender", "recipients"],
    )
    async def test_a_key_is_refused_for_another_mail(self, harness: Harness, other: Mail) -> None:
        queue = await harness.open()
        await queue.enqueue(plain_mail("mail"), key="one")

        with pytest.raises(KeyReused):
            await queue.enqueue(other, key="one")

        assert await names(queue.browse()) == ["mail"]

    async def test_mails_with_other_keys_and_with_none_are_mails_of_their_own(
        self, harness: Harness
    ) -> None:
        queue, other = await harness.open(), await harness.new_name()

        found = [
            await queue.enqueue(plain_mail("mail"), key=key) for key in ("one", "two", None, None)
        ]
        found.append(await other.enqueue(plain_mail("mail"), key="one"))

        assert len(set(found)) == 5
        assert await names(queue.browse()) == ["mail"] * 4
        assert await names(other.browse()) == ["mail"]

    async def test_a_mail_with_a_key_may_be_large_and_delayed(self, harness: Harness) -> None:
        queue = await harness.open()
        consumer = Consumer(harness, queue)
        mail = plain_mail("mail", content=b"Subject: large\r\n\r\n" + b"0123456\r\n" * 300_000)

        first = await queue.enqueue(mail, timedelta(seconds=1), key="one")
        assert await queue.enqueue(mail, timedelta(seconds=1), key="one") == first

        item = await consumer.next()
        assert await item.content() == mail.content
        await item.done()
        assert await consumer.nothing()
        await consumer.close()

    async def test_a_key_that_cannot_be_kept_is_refused(self, harness: Harness) -> None:
        queue = await harness.open()

        async def stream() -> AsyncIterator[bytes]:
            yield b"Subject: stream\r\n\r\n"

        for mail, key in (
            (plain_mail(), ""),
            (plain_mail(), "k" * (MAX_KEY + 1)),
            (plain_mail(), cast("str", b"one")),
            (replace(plain_mail(), content=stream()), "one"),
        ):
            with pytest.raises(InvalidInput):
                await queue.enqueue(mail, key=key)

        assert await names(queue.browse()) == []
