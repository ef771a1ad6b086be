"""What waits is read where either engine keeps it: less what is recorded, and through entries that
replaced others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from kills.back_ends import BackEnd, Distributed, Embedded
from kills.mails import PlannedMail
from postroad import Mail, Outcome, open_queue
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.mail.mail import OutcomeKind
from postroad.ports.mail_queue import Item, MailQueue

MAILS = [
    PlannedMail(f"m{number}@x.example", tuple(f"yes{number}x{n}@y.example" for n in range(3)))
    for number in range(6)
]
KEYS = {key for mail in MAILS for key in mail.keys}
DELIVERED = Outcome(OutcomeKind.DELIVERED, "250 2.0.0 kept")


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[tuple[BackEnd, str]]:
    yield Embedded(folder / "store"), f"embedded://{folder / 'store'}"


@asynccontextmanager
async def distributed(folder: Path) -> AsyncIterator[tuple[BackEnd, str]]:
    url = "memory://kills"
    async with open_queue(url, create=True) as queue:
        yield Distributed(url, cast("DistributedQueue", queue)), url


async def work(queue: MailQueue) -> None:
    """End four of the mails, each in its way, and leave one in flight with a record."""
    items = dict[str, Item]()
    async with aclosing(cast("AsyncGenerator[Item, None]", queue.dequeue(prefetch=6))) as found:
        async for item in found:
            items[str(item.mail.sender)] = item
            if len(items) == len(MAILS):
                break
    done, retried, rejected, recorded, deferred, _ = (items[mail.sender] for mail in MAILS)
    for item in (retried, rejected, recorded, deferred):
        await item.record({item.mail.recipients[0]: DELIVERED})
    await done.done()
    await retried.retry(timedelta(hours=1), retried.mail.recipients[1:2])
    await rejected.reject("550 5.1.1 no")
    await deferred.defer(timedelta(hours=1))
    await queue.enqueue(Mail(None, (MAILS[2].sender,), b"Subject: a report\r\n\r\n"))


@pytest.mark.parametrize("made", [embedded, distributed])
async def test_who_waits_is_read_from_either_engine(
    tmp_path: Path, made: Callable[[Path], AbstractAsyncContextManager[tuple[BackEnd, str]]]
) -> None:
    async with made(tmp_path) as (back_end, url):
        await back_end.fill(MAILS)
        before = await back_end.waiting(KEYS)
        async with open_queue(url) as queue:
            await work(queue)
        is_removed = [await back_end.remove(each.sender) for each in (MAILS[5], MAILS[0])]
        reports = {("", mail.sender) for mail in MAILS}
        after = await back_end.waiting(KEYS | reports)

        assert before == KEYS
        assert is_removed == [True, False]
        assert after == {
            MAILS[1].keys[1],
            *MAILS[3].keys[1:],
            *MAILS[4].keys[1:],
            ("", MAILS[2].sender),
        }
        assert await back_end.waiting({MAILS[3].keys[0], MAILS[3].keys[2]}) == {MAILS[3].keys[2]}
        assert await back_end.size() == 4


async def test_a_mail_whose_first_row_is_gone_is_looked_for() -> None:
    url = "memory://cleaned"
    async with open_queue(url, create=True) as queue:
        back_end = Distributed(url, cast("DistributedQueue", queue))
        await back_end.fill(MAILS[:1])
        back_end._ids[MAILS[0].sender] = UUID(int=7)

        assert await back_end.waiting(MAILS[0].keys) == {*MAILS[0].keys}
