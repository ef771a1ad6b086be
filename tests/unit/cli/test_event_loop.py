"""What hangs in the event loop of long commands blocks nothing else."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextvars import ContextVar
from threading import Event, Thread, current_thread
from threading import enumerate as enumerate_threads

import pytest

from postroad.cli.processes import event_loop
from postroad.cli.processes.event_loop import EventLoop, within_descriptors
from postroad.errors import InvalidSettings
from postroad.settings import Settings
from postroad.threaded_calls import ThreadedCalls


def test_names_that_are_not_answered_leave_files_and_a_few_other_names_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, looked_up = Event(), socket.getaddrinfo
    threads: list[bool] = []

    def look_up(host: str, *more: int) -> object:
        threads.append(current_thread().daemon)
        if host == "hangs.example":
            answers.wait()
        return looked_up("127.0.0.1", *more)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hanging = [asyncio.create_task(loop.getaddrinfo("hangs.example", 25)) for _ in range(199)]
        while len(threads) < 199:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(lambda: "read") == "read"
        found = await loop.getaddrinfo("answers.example", 25, type=socket.SOCK_STREAM)
        assert [each[4] for each in found] == [("127.0.0.1", 25)]

        hanging.append(asyncio.create_task(loop.getaddrinfo("hangs.example", 25)))
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror, match="200 names are being looked up"):
            await loop.getaddrinfo("answers.example", 25)

        hanging[0].cancel()
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror, match="200 names are being looked up"):
            await loop.getaddrinfo("answers.example", 25)
        answers.set()
        await asyncio.wait(hanging)
        assert await loop.getaddrinfo("answers.example", 25)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert event_loop.MAX_LOOKUPS == 200
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main())
    assert all(threads), "a lookup that hangs would block the end of the process"


async def test_a_threaded_call_raises_what_the_call_raises() -> None:
    calls, about = ThreadedCalls(1), ContextVar[str]("about")

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(OSError, match="no"):
        await calls.run(fail, OSError("no"))
    for each in (SystemExit(), StopIteration()):
        with pytest.raises(RuntimeError):
            await calls.run(fail, each)
    assert await calls.run(len, "four") == 4
    about.set("this")
    assert await calls.run(about.get) == "this"


async def test_a_threaded_call_waits_for_a_place_and_starts_when_it_has_one() -> None:
    calls, may_return, order = ThreadedCalls(1), Event(), list[str]()
    first = asyncio.create_task(calls.run(may_return.wait, started=lambda: order.append("first")))
    second = asyncio.create_task(calls.run(len, "", started=lambda: order.append("second")))
    await asyncio.sleep(0)
    assert order == ["first"]
    assert calls.is_full

    first.cancel()
    await asyncio.sleep(0)
    assert order == ["first"], "it has its thread until it returns"
    may_return.set()
    assert await second == 0
    assert order == ["first", "second"]
    assert not calls.is_full


def test_a_call_that_outlasts_its_event_loop_leaves_its_place_to_the_next_one() -> None:
    calls, may_return = ThreadedCalls(1), Event()

    async def give_up() -> Thread:
        before = set(enumerate_threads())
        hanging = asyncio.create_task(calls.run(may_return.wait))
        await asyncio.sleep(0)
        hanging.cancel()
        (thread,) = set(enumerate_threads()) - before
        return thread

    thread = asyncio.run(give_up())
    assert calls.is_full
    may_return.set()
    thread.join()
    assert not calls.is_full


@pytest.mark.parametrize(
    ("limit", "sessions", "connections"),
    [(64, 10, 4), (1024, 340, 136), (4096, 500, 200), (-1, 500, 200)],
)
def test_sessions_and_connections_leave_descriptors_to_the_store(
    monkeypatch: pytest.MonkeyPatch, limit: int, sessions: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    settings = within_descriptors(Settings())

    assert (settings.intake.max_sessions, settings.worker.concurrency) == (sessions, connections)


def test_a_process_that_may_open_too_few_files_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (63, 63))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    with pytest.raises(InvalidSettings, match="may open 63 files, and needs 64"):
        within_descriptors(Settings())
