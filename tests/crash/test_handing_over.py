"""Processes that share a directory, and end: what they began is answered, and the others go on."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.queue_harness import names, plain_mail
from postroad import Mail, open_queue
from postroad.embedded.rpc import serving
from postroad.errors import EntryLost
from support.repository import ROOT

PRODUCER = """
import asyncio, sys
from postroad import Mail, open_queue
from postroad.errors import EnqueueUnknown, PostroadError

async def main(url, who, count):
    print("begun", flush=True)
    async with open_queue(url, create=True) as queue:
        async def one(number):
            name = f"{who}-{number}"
            mail = Mail("a@a.example", ("b@b.example",), b"x", name=name)
            try:
                await queue.enqueue(mail)
                print("queued", name, flush=True)
            except EnqueueUnknown:
                print("unknown", name, flush=True)
            except PostroadError as error:
                print("refused", name, type(error).__name__, flush=True)
        for first in range(0, count, 3):
            await asyncio.gather(*(one(first + each) for each in range(3)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
CONSUMER = """
import asyncio, sys
from postroad import open_queue

async def main(url, count):
    async with open_queue(url, create=True) as queue:
        found = 0
        async for item in queue.dequeue(20):
            async with item:
                await item.content()
                await item.done()
            print("queued", item.mail.name, flush=True)
            found += 1
            if found == count:
                return

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def started(program: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT / "operator")},
    )


async def heard(processes: list[asyncio.subprocess.Process]) -> dict[str, list[str]]:
    """Wait for the ends; return the names by what became of them."""
    found: dict[str, list[str]] = {"queued": [], "unknown": [], "refused": []}
    outputs = await asyncio.gather(*(each.communicate() for each in processes))
    for output, _ in outputs:
        for line in output.decode().splitlines():
            what, *words = line.split()
            if what != "begun":
                found[what].append(words[0])
    return found


async def waiting(url: str) -> Counter[str]:
    async with open_queue(url) as queue:
        return Counter(await names(queue.browse()))


async def test_owners_that_end_in_turn_cost_no_mail_and_no_error(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    counts = {"p": 30, "q": 90, "r": 150, "s": 210}
    processes = [await started(PRODUCER, url, who, count) for who, count in counts.items()]

    found = await heard(processes)

    assert [each.returncode for each in processes] == [0] * len(counts)
    assert found["unknown"] == found["refused"] == []
    assert len(found["queued"]) == sum(counts.values())
    assert await waiting(url) == Counter(found["queued"])


async def test_consumers_go_on_with_the_next_owner_and_get_each_mail_once(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    producers = [await started(PRODUCER, url, who, 60) for who in "pq"]
    consumer = await started(CONSUMER, url, 120)
    producers.append(await started(PRODUCER, url, "r", 30))

    queued = await heard(producers)
    done = await heard([consumer])

    assert consumer.returncode == 0
    assert queued["unknown"] == queued["refused"] == []
    ended = Counter(done["queued"])
    assert set(ended.values()) == {1}
    assert ended + await waiting(url) == Counter(queued["queued"])


@pytest.mark.parametrize("after", [20, 60])
async def test_what_a_killed_owner_left_unanswered_is_unknown_and_the_rest_is_certain(
    tmp_path: Path, after: int
) -> None:
    url = f"embedded://{tmp_path}/queue"
    owner = await started(PRODUCER, url, "owner", 10**6)
    assert owner.stdout is not None
    for _ in range(after):
        await owner.stdout.readline()
    others = [await started(PRODUCER, url, who, 300) for who in "pq"]
    for each in others:
        assert each.stdout is not None
        for _ in range(after):
            line = (await each.stdout.readline()).decode()
            assert line.split()[0] in {"begun", "queued"}
    owner.kill()

    found = await heard(others)
    await owner.communicate()

    counts = await waiting(url)
    assert set(counts.values()) == {1}
    assert counts.keys() >= set(found["queued"])
    assert not counts.keys() & set(found["refused"])
    assert len(found["unknown"]) <= 2 * 3
    assert found["refused"] == []


async def test_an_owner_lets_its_clients_end_what_they_have_begun(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    owner, client = await open_queue(url, create=True), await open_queue(url)
    await client.enqueue(plain_mail("m"))
    item = await anext(client.dequeue())
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"con"
        begun.set()
        await goes_on.wait()
        yield b"tent"

    streamed = asyncio.ensure_future(
        client.enqueue(Mail("a@a.example", ("b@b.example",), pieces(), name="streamed"))
    )
    await begun.wait()
    closing = asyncio.ensure_future(owner.close())
    waiting = asyncio.ensure_future(anext(client.dequeue()))
    await client.enqueue(plain_mail("reply"))  # of the handler that has the item
    await item.content()
    await item.done()
    assert not closing.done()
    goes_on.set()
    await streamed
    await closing

    other = await waiting
    assert other.mail.name in {"streamed", "reply"}
    assert sorted(await names(client.browse())) == ["reply", "streamed"]
    await other.done()
    await client.close()


async def test_an_item_that_its_consumer_keeps_is_lost_behind_the_handover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_HANDOVER", serving.MAX_HANDOVER * 0)
    url = f"embedded://{tmp_path}/queue"
    owner, client = await open_queue(url, create=True), await open_queue(url)
    await client.enqueue(plain_mail("m"))
    item = await anext(client.dequeue())
    await owner.close()

    with pytest.raises(EntryLost):
        await item.done()
    again = await anext(client.dequeue())
    assert again.mail_id == item.mail_id
    await again.done()
    await client.close()


async def test_a_mail_that_is_written_as_its_queue_is_closed_is_answered(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    queue = await open_queue(url, create=True)
    calls = [asyncio.ensure_future(queue.enqueue(plain_mail(str(n)))) for n in range(20)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)

    await queue.close()

    answers = await asyncio.gather(*calls, return_exceptions=True)
    queued = {str(n) for n, each in enumerate(answers) if not isinstance(each, BaseException)}
    assert set(await waiting(url)) == queued
