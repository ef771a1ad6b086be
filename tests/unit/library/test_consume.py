"""`consume` and `enqueue_all`, of both engines: results decide, what is in hand is not lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from postroad import HandedMail, Mail, MailQueue, Outcome, Retry, open_queue
from postroad.domain.queues.documents import Sizes
from postroad.embedded.store.items import SpoolItem
from postroad.errors import (
    BlobsUnavailable,
    ConfigurationStale,
    InvalidInput,
    InvalidMail,
    PostroadError,
    StoreFailed,
    StoreUnavailable,
)
from postroad.ports.mail_queue import Handled

NUMBERS = count()
SOON = Retry(lanes=(timedelta(milliseconds=1),), jitter=0)


@pytest.fixture(params=["memory", "embedded"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MailQueue]:
    url = f"memory://consume-{next(NUMBERS)}"
    if request.param == "embedded":
        url = f"embedded://{tmp_path}/queue"
    async with open_queue(url, create=True) as opened:
        yield opened


def mail(text: str = "", *recipients: str) -> Mail:
    return Mail("a@example.org", recipients or ("b@example.net",), text.encode())


async def until(is_true: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait for something; the test's own timeout ends what never comes."""
    async with asyncio.timeout(60):
        while True:
            found = is_true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


async def is_empty(queue: MailQueue) -> bool:
    return [each async for each in queue.browse()] == []


async def test_results_end_mails_as_those_of_a_workers_function_do(queue: MailQueue) -> None:
    seen: list[bytes] = []

    async def handler(mail: HandedMail) -> Outcome | None:
        seen.append(mail.content)
        if mail.content == b"flaky" and seen.count(b"flaky") < 2:
            raise RuntimeError("away")
        return Outcome.failed("no such ticket") if mail.content == b"refused" else None

    await queue.enqueue_all([mail("fine"), mail("flaky"), mail("refused")])
    consuming = asyncio.create_task(queue.consume(handler, retry=SOON))
    await until(lambda: is_empty(queue))
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming

    assert sorted(seen) == [b"fine", b"flaky", b"flaky", b"refused"]
    (letter,) = [each async for each in queue.dead_letters()]
    assert letter.reason == "554 5.0.0 no such ticket"


async def test_a_mail_is_given_up_after_so_many_attempts(queue: MailQueue) -> None:
    attempts = 0

    def handler(mail: HandedMail) -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError("never")

    await queue.enqueue(mail())
    retry = Retry(lanes=SOON.lanes, jitter=0, max_attempts=3)
    consuming = asyncio.create_task(queue.consume(handler, retry=retry))
    await until(lambda: is_empty(queue))
    consuming.cancel()

    assert attempts == 3
    (letter,) = [each async for each in queue.dead_letters()]
    assert letter.reason == (
        "not delivered in 3 attempts: 451 4.3.0 the function raised ValueError"
    )


async def test_a_cancellation_by_the_handler_itself_is_an_attempt(queue: MailQueue) -> None:
    """As of a task that it awaits and others cancelled. Given back, the mail would come at once."""
    attempts = 0

    async def handler(mail: HandedMail) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 3:
            await asyncio.sleep(60)
        raise asyncio.CancelledError

    await queue.enqueue(mail())
    retry = Retry(lanes=SOON.lanes, jitter=0, max_attempts=3)
    consuming = asyncio.create_task(queue.consume(handler, retry=retry, drain=timedelta(0)))
    await until(lambda: attempts >= 3)
    await asyncio.sleep(0.1)
    consuming.cancel()

    assert attempts == 3
    assert [each.reason async for each in queue.dead_letters()] == [
        "not delivered in 3 attempts: 451 4.3.0 the function raised CancelledError"
    ]


@pytest.mark.parametrize(
    ("error", "attempts"), [(StoreFailed("cannot read mail/0"), 1), (BlobsUnavailable(), 0)]
)
async def test_a_mail_whose_content_cannot_be_read_waits_as_the_plan_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PostroadError, attempts: int
) -> None:
    """Servers that are away cost no attempt: else an outage would have mails given up."""

    async def content(_: SpoolItem) -> bytes:
        raise error

    monkeypatch.setattr(SpoolItem, "content", content)
    hour = timedelta(hours=1)
    async with open_queue(f"embedded://{tmp_path}/queue", create=True) as queue:
        await queue.enqueue(mail())
        await queue.consume(lambda _: None, retry=Retry(lanes=(hour, hour)), wait=False)
        (waiting,) = [each async for each in queue.browse()]

    assert (waiting.attempt, waiting.last_error) == (attempts, f"451 4.3.0 {type(error).__name__}")
    assert waiting.due_at is not None
    assert waiting.due_at - waiting.accepted_at >= hour


async def test_recipients_that_were_delivered_do_not_come_again(queue: MailQueue) -> None:
    handed: list[tuple[str, ...]] = []

    def handler(mail: HandedMail) -> Handled:
        handed.append(mail.recipients)
        return {each: Outcome.delivered() for each in mail.recipients if "b" in each or handed[1:]}

    await queue.enqueue(mail("", "b@example.net", "c@example.net"))
    consuming = asyncio.create_task(queue.consume(handler, retry=SOON))
    await until(lambda: is_empty(queue))
    consuming.cancel()

    assert handed == [("b@example.net", "c@example.net"), ("c@example.net",)]


KILLED = """
import asyncio, os, sys
from postroad import Outcome, open_queue
from postroad.embedded.store.items import SpoolItem

async def killed(self, *_):
    os._exit(9)

async def main():
    SpoolItem.end = killed
    async with open_queue(sys.argv[1]) as queue:
        await queue.consume(lambda mail: {"b@example.net": Outcome.delivered()})

asyncio.run(main())
"""


async def test_a_kill_between_the_record_and_the_end_repeats_no_recipient(tmp_path: Path) -> None:
    url, handed = f"embedded://{tmp_path}/queue", list[tuple[str, ...]]()
    async with open_queue(url, create=True) as queue:
        await queue.enqueue(mail("", "b@example.net", "c@example.net"))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url)
    assert await process.wait() == 9

    async with open_queue(url) as queue:
        consuming = asyncio.create_task(queue.consume(lambda mail: handed.append(mail.recipients)))
        await until(lambda: is_empty(queue))
        consuming.cancel()

    assert handed == [("c@example.net",)]


async def test_no_more_mails_are_in_hand_than_asked_for(queue: MailQueue) -> None:
    now = most = done = 0

    async def handler(mail: HandedMail) -> None:
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now, done = now - 1, done + 1

    await queue.enqueue_all(mail(str(each)) for each in range(20))
    consuming = asyncio.create_task(queue.consume(handler, concurrency=3))
    await until(lambda: done == 20)
    consuming.cancel()

    assert most == 3


async def test_sigterm_lets_handlers_return_and_takes_no_more(queue: MailQueue) -> None:
    begun, may_return = asyncio.Event(), asyncio.Event()

    async def handler(mail: HandedMail) -> None:
        begun.set()
        await may_return.wait()

    await queue.enqueue_all([mail("1"), mail("2")])
    both = [asyncio.create_task(queue.consume(handler, concurrency=1)) for _ in range(2)]
    await begun.wait()
    for each in both[1:]:
        each.cancel()  # its mail, if it has one, is given back below
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0)
    may_return.set()
    await asyncio.wait(both)

    assert both[0].exception() is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (await queue.size()).dead_letters == 0


async def test_without_waiting_it_returns_once_nothing_is_due(queue: MailQueue) -> None:
    seen: list[bytes] = []

    async def handler(mail: HandedMail) -> None:
        await asyncio.sleep(0.05)
        seen.append(mail.content)
        if mail.content == b"first":
            await queue.enqueue(Mail(None, ["b@c"], b"by the handler"))

    await queue.enqueue(Mail(None, ["b@c"], b"first"))
    await queue.enqueue(Mail(None, ["b@c"], b"later"), timedelta(hours=1))

    await queue.consume(handler, wait=False)

    assert seen == [b"first", b"by the handler"]
    assert (await queue.size()).delayed == 1
    await queue.consume(handler, wait=False)
    assert len(seen) == 2, "nothing is due"


async def test_without_waiting_it_goes_on_while_what_counts_mail_is_away(
    queue: MailQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, answers = queue.size, iter((StoreUnavailable("away"), ConfigurationStale("old")))

    async def size() -> Sizes:
        if error := next(answers, None):
            raise error
        return await count()

    monkeypatch.setattr(queue, "size", size)

    async with asyncio.timeout(60):
        await queue.consume(lambda mail: None, wait=False)

    assert next(answers, None) is None, "it asked again"


async def test_what_handlers_do_not_end_in_time_is_given_back(queue: MailQueue) -> None:
    begun = asyncio.Event()

    async def handler(mail: HandedMail) -> None:
        begun.set()
        await asyncio.Event().wait()

    await queue.enqueue(mail("again"))
    consuming = asyncio.create_task(queue.consume(handler, drain=timedelta(0)))
    await begun.wait()
    consuming.cancel()
    await asyncio.wait((consuming,))

    async for item in queue.dequeue():
        assert (await item.content(), item.attempt) == (b"again", 0)
        await item.done()
        break


async def test_a_handler_is_a_function_and_concurrency_a_number(queue: MailQueue) -> None:
    with pytest.raises(InvalidInput, match="a handler is a function, not str"):
        await queue.consume("handler")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="1 to 65535"):
        await queue.consume(print, concurrency=0)
    with pytest.raises(InvalidInput, match="1 to 65535"):
        await queue.enqueue_all([mail()], concurrency=0)  # else it would queue none of them


async def test_ids_of_many_are_in_the_order_of_their_mails(queue: MailQueue) -> None:
    ids = await queue.enqueue_all((mail(str(each)) for each in range(50)), concurrency=7)

    views = {each.enqueue_id: each async for each in queue.browse()}
    assert len(set(ids)) == 50
    assert views.keys() == set(ids)


async def test_an_error_amid_many_has_how_far_they_came(queue: MailQueue) -> None:
    def mails() -> Iterator[Mail]:
        yield from (mail("", f"r{each}@example.net") for each in range(5))
        raise InvalidMail("the sixth")

    with pytest.raises(InvalidMail, match="the sixth") as caught:
        await queue.enqueue_all(mails(), key=lambda each: each.recipients[0])
    assert caught.value.__notes__ == ["5 mails were queued, all of the first 5 of them"]

    again = (mail("", f"r{each}@example.net") for each in range(6))
    await queue.enqueue_all(again, key=lambda each: each.recipients[0])
    assert len([each async for each in queue.browse()]) == 6
