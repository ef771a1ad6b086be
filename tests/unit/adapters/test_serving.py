"""A client is answered within the call that brings its lines, after other clients' rounds."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
import uvloop

from postroad.smtp.server import (
    CHUNK,
    COMMANDS,
    FEW_ROUNDS,
    MAX_DROPPED,
    MAX_LINGERING,
    PASS_SECONDS,
    REPLIES,
    RoundResult,
    RunQueue,
    ServingWire,
    accept,
    limit_unread,
)
from postroad.smtp.wire import (
    HIGH_WATER,
    ConnectionLost,
    LineTooLong,
    TooSlow,
    Wire,
    address_of,
)
from support.transports import FakeTransport

LONG = timedelta(minutes=1)
SHORT = timedelta(milliseconds=20)
LIMIT = 100


class Echo:
    """Serves a wire: repeats every line until `done`, at most `most` lines in a round."""

    def __init__(
        self, most: int = 1000, *, timeout: timedelta = LONG, run_queue: RunQueue | None = None
    ) -> None:
        self.transport = FakeTransport()
        self.wire = ServingWire(run_queue)
        self.wire.connection_made(self.transport)
        self.most, self.timeout = most, timeout
        self.rounds = 0

    def take(self) -> RoundResult:
        self.rounds += 1
        for _ in range(self.most):
            try:
                line = self.wire.next_line(LIMIT)
            except LineTooLong:
                line = b"too long"
            if line is None:
                return RoundResult.WAIT
            if line == b"bug":
                raise ZeroDivisionError
            self.wire.send(line)
            self.wire.expect(self.timeout)
            if line == b"done":
                return RoundResult.DONE
        return RoundResult.AGAIN

    async def serving(self, take: Callable[[], RoundResult] | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(self.wire.serve(take or self.take, self.timeout))
        await asyncio.sleep(0)
        return task


async def test_lines_are_answered_within_the_call_that_brings_them() -> None:
    echo = Echo()
    task = await echo.serving()

    echo.wire.data_received(b"one\r\ntwo\r\nthr")
    assert echo.transport.written == [b"one", b"two"]
    echo.wire.data_received(b"ee\r")
    echo.wire.data_received(b"\ndone\r\nlater\r\n")

    await task
    assert echo.transport.written == [b"one", b"two", b"three", b"done"]
    assert echo.wire.has_unread
    assert echo.wire.next_line(LIMIT) == b"later"


async def test_what_arrived_before_is_taken_when_serving_begins() -> None:
    echo = Echo()
    echo.wire.data_received(b"done\r\n")
    assert echo.transport.written == []

    await (await echo.serving())

    assert echo.transport.written == [b"done"]


async def test_others_are_served_between_two_rounds_of_a_busy_client() -> None:
    echo, seen = Echo(most=1), list[int]()
    task = await echo.serving()
    echo.wire.data_received(b"x\r\n" * 3)
    echo.wire.data_received(b"done\r\n")  # does not jump the queue

    while not task.done():
        seen.append(len(echo.transport.written))
        await asyncio.sleep(0)

    assert seen[:3] == [1, 2, 3]
    assert echo.transport.written == [b"x", b"x", b"x", b"done"]


async def test_an_error_while_taking_is_the_tasks() -> None:
    echo = Echo()
    task = await echo.serving()

    echo.wire.data_received(b"bug\r\n")

    with pytest.raises(ZeroDivisionError):
        await task


async def test_a_client_that_does_not_read_its_answers_is_not_listened_to() -> None:
    echo = Echo()
    task = await echo.serving()
    echo.wire.pause_writing()
    echo.wire.data_received(b"one\r\n" + b"x" * HIGH_WATER + b"\r\n")
    assert echo.transport.written == []
    assert echo.transport.pauses == 1

    echo.wire.resume_writing()
    await asyncio.sleep(0)
    assert echo.transport.written == [b"one", b"too long"]
    assert echo.transport.pauses == 0
    echo.wire.data_received(b"done\r\n")
    await task


async def test_a_client_that_never_reads_its_answers_is_too_slow() -> None:
    echo = Echo(timeout=SHORT)
    task = await echo.serving()
    echo.wire.pause_writing()
    echo.wire.data_received(b"one\r\n")

    with pytest.raises(TooSlow):
        await task


async def test_a_line_in_small_pieces_gains_no_time() -> None:
    echo = Echo(timeout=SHORT)
    task = await echo.serving()

    while not task.done():
        echo.wire.data_received(b"x")
        await asyncio.sleep(0.001)

    with pytest.raises(TooSlow):
        await task


async def test_a_line_that_is_too_long_is_dropped_as_it_comes() -> None:
    echo = Echo()
    task = await echo.serving()
    for _ in range(1000):
        echo.wire.data_received(b"x" * 200)
        assert len(echo.wire.next_chunk()) <= 1
        echo.wire.data_received(b"x" * 200)
    echo.wire.data_received(b"\r")
    echo.wire.data_received(b"\ndone\r\n")

    await task
    assert echo.transport.written == [b"too long", b"done"]


async def test_a_line_counts_again_as_too_long_after_so_many_dropped_octets() -> None:
    echo = Echo()
    task = await echo.serving()
    for _ in range(MAX_DROPPED // COMMANDS):
        echo.wire.data_received(b"x" * COMMANDS)
    assert echo.transport.written == [], "the last octet may be a CR, and is kept"

    echo.wire.data_received(b"x" * COMMANDS)
    assert echo.transport.written == [b"too long"]
    echo.wire.data_received(b"\r\ndone\r\n")

    await task
    assert echo.transport.written == [b"too long", b"too long", b"done"]


async def test_a_line_of_any_length_that_is_allowed_is_read_to_its_end() -> None:
    """Also behind so many commands that reading was paused."""
    limit = COMMANDS // 2
    for begun in range(limit - 2, limit + 3):
        echo = Echo()
        taken = partial(echo.wire.next_line, limit)

        echo.wire.data_received(b"x\r\n" * limit + b"y" * begun)
        assert echo.transport.pauses == 1
        while taken() == b"x":
            pass

        assert echo.transport.pauses == 0, begun


async def test_a_client_that_has_said_all_is_answered_before_it_is_lost() -> None:
    echo = Echo(most=1)
    task = await echo.serving()
    echo.wire.data_received(b"one\r\ntwo\r\nhalf")
    echo.wire.eof_received()

    with pytest.raises(ConnectionLost):
        await task
    assert echo.transport.written == [b"one", b"two"]


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("most", [1, 1000])
async def test_a_connection_that_is_lost_ends_serving(most: int, *, is_paused: bool) -> None:
    echo = Echo(most)
    task = await echo.serving()
    if is_paused:
        echo.wire.pause_writing()
    echo.wire.data_received(b"one\r\ntwo\r\n")
    echo.wire.connection_lost(ConnectionResetError())

    with pytest.raises(ConnectionLost):
        await task
    with pytest.raises(ConnectionLost):
        await echo.wire.serve(echo.take, LONG)


async def test_an_interruption_is_looked_at_though_nothing_has_arrived() -> None:
    echo = Echo()
    task = await echo.serving(lambda: RoundResult.DONE)
    assert not task.done()

    echo.wire.interrupt()

    await task
    assert echo.wire.is_interrupted


async def test_content_is_taken_in_chunks_and_the_rest_comes_first() -> None:
    echo = Echo()
    echo.wire.data_received(b"x" * CHUNK + b"y")

    assert echo.wire.next_chunk() == b"x" * CHUNK
    echo.wire.put_back(b"z")
    assert echo.wire.next_chunk() == b"zy"
    assert not echo.wire.has_unread


async def test_a_client_whose_connection_ended_before_it_was_accepted_is_lost() -> None:
    gone = socket.socket()
    gone.close()

    with pytest.raises(ConnectionLost):
        await accept(gone, ServingWire())


async def test_an_ipv4_client_of_a_socket_for_both_families_is_named_by_its_ipv4_address() -> None:
    wire = Wire()

    class Mapped(FakeTransport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return ("::ffff:192.0.2.7", 4711, 0, 0) if name == "peername" else default

    wire.connection_made(Mapped())

    assert wire.peer_address == "192.0.2.7"


@pytest.mark.parametrize("address", ["::ffff:0:c000:207", "::ffff:a:b:c"])
async def test_an_address_that_only_looks_mapped_stays_an_address(address: str) -> None:
    assert address_of((address, 4711, 0, 0)) == address


async def test_entries_that_take_long_are_spread_over_passes_first_come_first_served() -> None:
    queue, served = RunQueue(), list[int]()

    def progress(number: int) -> None:
        served.append(number)
        time.sleep(2 * PASS_SECONDS)

    for number in range(3):
        queue.append(partial(progress, number))

    seen = []
    while len(served) < 3:
        seen.append(list(served))
        await asyncio.sleep(0)
    assert seen == [[], [0], [0, 1]]


async def test_a_client_with_few_commands_is_served_in_the_next_pass_however_many_send_much() -> (
    None
):
    """All of them over one run queue: 100 with much to be taken, then one that has a little."""
    run_queue = RunQueue()
    busy = [Echo(most=1, run_queue=run_queue) for _ in range(100)]
    tasks = [await each.serving() for each in busy]
    for each in busy:
        each.wire.data_received(b"x\r\n" * 100)
    while min(each.rounds for each in busy) <= FEW_ROUNDS:
        await asyncio.sleep(0)
    few = Echo(most=1, run_queue=run_queue)
    tasks.append(await few.serving())

    before = sum(each.rounds for each in busy)
    few.wire.data_received(b"one\r\ntwo\r\n")
    while few.rounds < 2:
        await asyncio.sleep(0)

    assert sum(each.rounds for each in busy) <= before + 1
    assert {each.transport.written[-1] for each in busy} == {b"x"}
    while min(each.rounds for each in busy) < 100:
        await asyncio.sleep(0)  # none of them is forgotten
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_session_that_has_to_wait_for_others_does_not_wait_for_its_client() -> None:
    echo = Echo(most=1)
    task = await echo.serving()
    found = [echo.wire.waits_for_peer]

    echo.wire.data_received(b"one\r\ntwo\r\n")
    while echo.rounds < 2:
        found.append(echo.wire.waits_for_peer)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    found.append(echo.wire.waits_for_peer)

    assert found == [True, False, True]

    task.cancel()
    await asyncio.wait([task])


def test_of_a_client_that_does_not_read_its_replies_few_commands_are_executed() -> None:
    """Over a real connection: a system keeps megabytes of replies by itself."""
    reply = b"250 2.1.5 ok\r\n"

    async def never_reads() -> None:
        executed = 0
        wire = ServingWire()

        def take() -> RoundResult:
            nonlocal executed
            for _ in range(20):
                if wire.next_line(LIMIT) is None:
                    return RoundResult.WAIT
                wire.send(reply)
                executed += 1
            return RoundResult.AGAIN

        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
            limit_unread(listening)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, REPLIES)
            client.connect(listening.getsockname())
            client.setblocking(False)
            connection, _ = listening.accept()
            await accept(connection, wire)
            serving = asyncio.create_task(wire.serve(take, LONG))
            passes = 0
            while passes < 1000:  # without a command that is executed, nor an octet that is taken
                before = executed
                with suppress(BlockingIOError):
                    client.send(b"NOOP\r\n" * 10_000)
                    passes = 0
                await asyncio.sleep(0)
                passes = passes + 1 if executed == before else 0
            assert executed * len(reply) < 100 * REPLIES
            wire.abort()
            await asyncio.wait([serving])

    uvloop.run(never_reads())
    asyncio.run(never_reads())


def test_of_a_client_that_sends_commands_without_end_little_is_read() -> None:
    """Over a real connection: what the client could send is far more than what this side keeps."""

    async def floods() -> None:
        wires = list[ServingWire]()

        def wire() -> ServingWire:
            wires.append(ServingWire())
            return wires[-1]

        server = await asyncio.get_running_loop().create_server(wire, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"NOOP\r\n" * 100_000)
            while not wires or not wires[0].has_unread:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(wires[0]._buffer) <= 2 * COMMANDS
            writer.transport.abort()
            wires[0].abort()

    uvloop.run(floods())
    asyncio.run(floods())


async def test_a_lingering_connection_reads_a_bounded_number_of_octets() -> None:
    """A client that goes on sending after its last reply must not keep the processor."""
    echo, sent = Echo(), 0
    lingering = asyncio.create_task(echo.wire.linger(10 * SHORT))
    await asyncio.sleep(0)

    while not echo.transport.pauses:
        echo.wire.data_received(b"x" * 1000)
        sent += 1000
        assert sent <= MAX_LINGERING + 1000
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert sent >= MAX_LINGERING
    assert not lingering.done()  # the client has time to read its replies
    await lingering
    assert echo.transport.pauses
