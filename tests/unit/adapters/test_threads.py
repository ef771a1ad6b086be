import asyncio
import threading

import pytest

from postroad.adapters.disk.files import ThreadPool
from postroad.errors import QueueClosed


async def test_at_most_so_many_calls_are_made_at_a_time_and_all_are_made() -> None:
    pool, gate = ThreadPool(2, "test"), threading.Semaphore(0)
    guard, now, most = threading.Lock(), 0, 0

    def work(number: int) -> int:
        nonlocal now, most
        with guard:
            now += 1
            most = max(most, now)
        gate.acquire()
        with guard:
            now -= 1
        return number

    calls = [pool.run(work, number) for number in range(6)]
    for _ in calls:
        gate.release()

    assert await asyncio.gather(*calls) == list(range(6))
    assert 1 <= most <= 2
    await pool.close()


async def test_the_thread_that_became_idle_last_makes_the_next_call() -> None:
    pool, gates = ThreadPool(3, "test"), [threading.Event() for _ in range(3)]

    def work(gate: threading.Event) -> str:
        gate.wait()
        return threading.current_thread().name

    calls = [pool.run(work, gate) for gate in gates]
    for number in (0, 2, 1):
        gates[number].set()
        await calls[number]

    assert [await pool.run(work, gates[0]) for _ in range(4)] == 4 * ["test-2"]
    await pool.close()


async def test_what_work_raises_is_raised_to_the_caller() -> None:
    pool = ThreadPool(1, "test")

    def work() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await pool.run(work)
    assert await pool.run(len, "the thread goes on") == 18
    await pool.close()


async def test_work_goes_on_when_its_caller_is_cancelled() -> None:
    pool, gate, done = ThreadPool(1, "test"), threading.Event(), threading.Event()

    def work() -> None:
        gate.wait()
        done.set()

    call = pool.run(work)
    call.cancel()
    gate.set()

    assert await pool.run(len, "behind it") == 9
    assert done.is_set()
    await pool.close()


async def test_a_loop_that_is_closed_before_its_work_is_done_harms_no_thread() -> None:
    pool, gate = ThreadPool(1, "test"), threading.Event()

    async def leave() -> None:
        pool.run(gate.wait)

    await asyncio.to_thread(asyncio.run, leave())
    gate.set()

    assert await pool.run(len, "the thread goes on") == 18
    await pool.close()


async def test_a_thread_that_the_system_refuses_is_not_counted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPool(1, "test")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.run(len, "no thread")

    assert await asyncio.wait_for(pool.run(len, "a thread at last"), 60) == 16
    await pool.close()


async def test_closing_waits_for_what_is_under_way_and_drops_the_rest() -> None:
    pool, gate, begun = ThreadPool(1, "test"), threading.Event(), threading.Event()
    done: list[str] = []

    def work(name: str) -> None:
        begun.set()
        gate.wait()
        done.append(name)

    under_way, queued = pool.run(work, "under way"), pool.run(work, "queued")
    await asyncio.to_thread(begun.wait)
    under_way.cancel()
    closing = asyncio.create_task(pool.close())
    with pytest.raises(QueueClosed):
        await queued
    assert not closing.done()
    gate.set()
    await closing

    assert done == ["under way"]
    with pytest.raises(QueueClosed):
        pool.run(work, "late")
    await pool.close()


async def test_the_threads_of_a_closed_pool_end() -> None:
    before, pool = set(threading.enumerate()), ThreadPool(2, "test")
    await asyncio.gather(pool.run(len, "one"), pool.run(len, "two"))
    started = set(threading.enumerate()) - before

    await pool.close()

    for thread in started:
        thread.join(5)
    assert [thread.is_alive() for thread in started] == [False, False]
