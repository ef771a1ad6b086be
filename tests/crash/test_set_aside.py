"""A live mail whose record has the right checksum and cannot be read: it is set aside.

The store lists, counts and keeps the mail until it is removed; no other mail is repeated, delayed
or hidden because of it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from contract.queue_harness import names, plain_mail
from crash.accidents import rewrite_record, unparsable
from postroad import Selector, open_queue
from postroad.bootstrap.embedded_store import dump_directory, verify_directory
from postroad.ports.mail_queue import MailQueue

GOOD = [f"m{number}" for number in range(8) if number != 5]


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """A store with eight mails, of which the sixth cannot be read."""
    root = tmp_path / "store"
    async with open_queue(f"embedded://{root}", create=True) as queue:
        for number in range(8):
            await queue.enqueue(plain_mail(f"m{number}"))
    rewrite_record(root, lambda frame: b'"m5"' in frame.payload, unparsable)
    return root


async def delivered(queue: MailQueue, count: int) -> list[str]:
    """Deliver so many mails, three at a time."""
    found: list[str] = []
    async for item in queue.dequeue(prefetch=3):
        found.append(item.mail.name or "")
        await item.done()
        if len(found) == count:
            break
    return found


async def all_delivered(queue: MailQueue) -> list[str]:
    """Deliver whatever is due, by one more mail behind it."""
    found: list[str] = []
    await queue.enqueue(plain_mail("last"))
    while "last" not in found:
        found += await delivered(queue, 1)
    return found[:-1]


async def test_the_others_are_delivered_once_however_often_it_is_started(root: Path) -> None:
    sent = Counter[str]()
    for count in (4, 2, None):
        async with open_queue(f"embedded://{root}") as queue:
            taken = delivered(queue, count) if count else all_delivered(queue)
            sent.update(await taken)
            assert (await queue.size()).size == 8 - sent.total()

    assert sent == Counter(GOOD)


async def test_it_is_listed_with_its_place_and_logged(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_queue(f"embedded://{root}") as queue:
        found = [view async for view in queue.browse()]
        assert [view.mail.name for view in found] == [*GOOD[:5], "unreadable mail", *GOOD[5:]]
        assert "log/new.0000000001 at offset" in (found[5].last_error or "")
        only_last = Selector(enqueue_id=found[-1].enqueue_id)
        assert await names(queue.browse(only_last)) == ["m7"]

        await delivered(queue, 7)
        (logged,) = [str(vars(each)) for each in caplog.records if each.levelname == "ERROR"]
        assert "set aside" in logged
        assert "log/new.0000000001 at offset" in logged


async def test_it_is_held_released_and_expired_as_it_is(root: Path) -> None:
    """A release that can read its record gets all of it."""
    for operation, place in (("hold", "held"), ("release", "size"), ("expire", "dead_letters")):
        async with open_queue(f"embedded://{root}") as queue:
            assert await getattr(queue, operation)(Selector.all()) == 8
            assert getattr(await queue.size(), place) == 8
        assert sum("unreadable" in each["record"] for each in dump_directory(root)) >= 1
    rewrite_record(root, lambda frame: b'["sender' in frame.payload, parsable, lane="dead")
    async with open_queue(f"embedded://{root}") as queue:
        assert await queue.requeue(Selector.all()) == 8
        assert set(await delivered(queue, 8)) == {*GOOD, "m5"}


def parsable(payload: bytes) -> bytes:
    return payload.replace(b'["sender', b'{"sender')


async def test_as_a_dead_letter_it_is_listed_and_discarded(root: Path) -> None:
    async with open_queue(f"embedded://{root}") as queue:
        await queue.expire(Selector.all())
        dead_letters = {view.mail.name: view.reason async for view in queue.dead_letters()}
        assert "cannot be read" in (dead_letters["unreadable mail"] or "")
        assert await queue.discard(Selector(name="unreadable mail")) == 1
        assert await queue.requeue(Selector.all()) == len(GOOD)
        assert set(await delivered(queue, 7)) == set(GOOD)


@pytest.mark.parametrize("how", ["remove it", "remove", "purge"])
async def test_it_is_removed_and_its_file_is_used_again(root: Path, how: str) -> None:
    async with open_queue(f"embedded://{root}") as queue:
        if how == "remove it":
            found = [view async for view in queue.browse() if view.mail.name not in GOOD]
            assert await queue.remove(Selector(enqueue_id=found[0].enqueue_id)) == 1
            assert set(await delivered(queue, 7)) == set(GOOD)
        elif how == "remove":
            assert await queue.remove(Selector.all()) == 8
        else:
            assert await queue.purge() == 8
        assert (await queue.size()).size == 0
    assert verify_directory(root).is_whole
    async with open_queue(f"embedded://{root}") as queue:
        assert await names(queue.browse()) == []


async def test_what_takes_it_for_no_mail_leaves_it(root: Path) -> None:
    async with open_queue(f"embedded://{root}") as queue:
        assert await queue.remove(Selector(name="m6")) == 1
        assert sum((await queue.ages())["example.net"].values()) == 7
        await queue.maintain()
        assert (await queue.size()).size == 7
    (damage,) = verify_directory(root).damage
    assert "cannot be read" in damage
