import asyncio
import threading

import pytest

from postroad.adapters.disk.threads import ThreadPool


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
    pool.close()


async def test_what_work_raises_is_raised_to_the_caller() -> None:
    pool = ThreadPool(1, "test")

    def work() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await pool.run(work)
    assert await pool.run(len, "the thread goes on") == 18
    pool.close()


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
    pool.close()


async def test_a_loop_that_is_closed_before_its_work_is_done_harms_nobody() -> None:
    pool, gate = ThreadPool(1, "test"), threading.Event()

    async def leave() -> None:
        pool.run(gate.wait)

    await asyncio.to_thread(asyncio.run, leave())
    gate.set()

    assert await pool.run(len, "the thread goes on") == 18
    pool.close()


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

    assert await asyncio.wait_for(pool.run(len, "a thread at last"), 5) == 16
    pool.close()
