"""JSON bodies: what it costs to count their values, however they are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp.test_utils import make_mocked_request

from postroad.intake.context import ClientTimeouts
from postroad.intake.web import bodies
from postroad.intake.web.bodies import MAX_HELD, MAX_VALUES, parsed
from postroad.intake.web.models import MailRequest
from postroad.problems import Problem

MANY = b"," * (MAX_VALUES + 1)


@pytest.mark.timeout(60)  # at a cost that grows with the square, 2 MB take an hour
@pytest.mark.parametrize("quotes", [1000, 2**20])
@pytest.mark.parametrize("end", [b"", b'"', b"\\"])
def test_a_string_of_escaped_quotes_is_read_once(quotes: int, end: bytes) -> None:
    body = b"[" + MANY + b'"' + b'\\"' * quotes + end

    assert len(bodies._TEXT.findall(body)) <= 2
    with pytest.raises(Problem, match="values"):
        parsed(MailRequest, body)


async def test_bodies_have_room_together_until_their_blocks_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def chunks(*_: object) -> AsyncIterator[bytes]:
        yield b"x" * MAX_HELD

    monkeypatch.setattr(bodies, "chunks_of", chunks)
    room = bodies.JsonBodies()
    request, timeouts = make_mocked_request("POST", "/"), ClientTimeouts()
    async with room.read(request, 1, timeouts) as body:
        body.clear()
        with pytest.raises(Problem, match="large requests"):
            async with room.read(request, 1, timeouts):
                pass
    async with room.read(request, 1, timeouts) as body:
        assert len(body) == MAX_HELD == 16 * 2**20


async def test_a_body_that_stalls_gives_its_room_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comes, is_over = asyncio.Event(), asyncio.Event()

    async def chunks(*_: object) -> AsyncIterator[bytes]:
        yield b"x" * MAX_HELD
        if not comes.is_set():
            comes.set()
            await is_over.wait()
            yield b"x"

    async def read() -> int:
        async with room.read(make_mocked_request("POST", "/"), 1, timeouts) as body:
            return len(body)

    monkeypatch.setattr(bodies, "chunks_of", chunks)
    room, timeouts = bodies.JsonBodies(), ClientTimeouts(stalled=timedelta(seconds=0.2))
    slow = asyncio.create_task(read())
    await comes.wait()
    with pytest.raises(Problem, match="large requests"):
        await read()
    await asyncio.sleep(0.3)
    assert await read() == MAX_HELD
    with pytest.raises(Problem, match="large requests"):
        await slow
    assert await read() == MAX_HELD
    assert room._held == 0


def test_separators_in_a_string_are_no_values() -> None:
    body = b'{"from": "a@b.c", "to": ["v@d.e"], "message": {"text": "%s"}}' % (MANY + b'\\"[')

    assert parsed(MailRequest, body).recipients == ("v@d.e",)
