"""Bodies of requests, read up to a bound, and JSON in them.

A client chooses how long a body is, how slowly it comes, and of how many values JSON consists: each
takes a hundred times its octets in memory."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from postroad.intake.context import ClientTimeouts, Deadlines
from postroad.problems import Problem, malformed

_Model = TypeVar("_Model", bound=BaseModel)

MAX_HELD = 16 * 2**20
"""Octets of JSON that a process holds at a time, of all requests: their values and messages take
six times as much. One request may be as long in any case."""

FIELDS = 2**20
"""Octets of a JSON body beside the content of the largest mail."""

STEP = 256 * 1024
"""Octets that make a body no stalled one for a while."""

MAX_VALUES = 200_000
"""Values of one JSON body."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""Its closing quote may lack: a search for it would begin again at each quote of the rest."""

_SEPARATORS = (b",", b"[", b"{")


async def chunks_of(
    request: web.BaseRequest, limit: int, timeouts: ClientTimeouts
) -> AsyncIterator[bytes]:
    """Yield the body as it comes. Raises: Problem, where it is longer than `limit`, or slow."""
    if (request.content_length or 0) > limit:
        raise Problem(413, f"the body has more than {limit} octets")
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # else aiohttp takes the response for begun
    now = asyncio.get_running_loop().time
    deadlines, received = Deadlines(timeouts, now()), 0
    deadlines.begin_mail(now())
    silent = timeouts.data_block.total_seconds()
    while True:
        try:
            async with asyncio.timeout(min(silent, deadlines.of_mail(received) - now())):
                chunk = await request.content.readany()
        except TimeoutError:
            raise Problem(408, "the body comes too slowly") from None
        if not chunk:
            return
        received += len(chunk)
        if received > limit:
            raise Problem(413, f"the body has more than {limit} octets")
        yield chunk


@dataclass(slots=True, eq=False)
class _Coming:
    """A body that comes. `held`: octets that count; `moved_at`: when the last STEP was whole."""

    bound: asyncio.Timeout
    moved_at: float
    held: int = 0


class JsonBodies:
    """Reads JSON bodies; those that are held at a time have a bound together. One that stalls gives
    its room to others: it could else hold all of it for as long as a large mail may take."""

    def __init__(self) -> None:
        self._held = 0
        self._coming = set[_Coming]()
        self._now = asyncio.get_running_loop().time

    @asynccontextmanager
    async def read(
        self, request: web.BaseRequest, largest_mail: int, timeouts: ClientTimeouts
    ) -> AsyncIterator[bytearray]:
        """Yield a body, for which there is room until the block ends: its values and its message
        take as much, also once the block has cleared it. Raises: Problem."""
        limit = largest_mail * 4 // 3 + FIELDS
        body, coming = bytearray(), _Coming(asyncio.timeout(None), self._now())
        try:
            self._coming.add(coming)
            try:
                async with coming.bound:
                    async for chunk in chunks_of(request, limit, timeouts):
                        self._take(coming, body, chunk)
                        if self._held > max(MAX_HELD, limit):
                            self._make_room(max(MAX_HELD, limit), timeouts)
            except TimeoutError:
                raise _no_room() from None
            finally:
                self._coming.discard(coming)
            yield body
        finally:
            self._held -= coming.held

    def _take(self, coming: _Coming, body: bytearray, chunk: bytes) -> None:
        self._held += len(chunk)
        coming.held += len(chunk)
        body += chunk
        if len(body) // STEP > (len(body) - len(chunk)) // STEP:
            coming.moved_at = self._now()

    def _make_room(self, most: int, timeouts: ClientTimeouts) -> None:
        """End bodies that stall, the largest first. Raises: Problem, where there is no room all the
        same."""
        now = self._now()
        latest = now - timeouts.stalled.total_seconds()
        stalled = [each for each in self._coming if each.moved_at <= latest]
        for each in sorted(stalled, key=lambda each: each.held, reverse=True):
            if self._held > most:
                self._held -= each.held
                each.held = 0
                each.bound.reschedule(now)
                self._coming.discard(each)
        if self._held > most:
            raise _no_room()


def _no_room() -> Problem:
    return Problem(503, "too many large requests at a time, come again")


def parsed(model: type[_Model], body: bytes | bytearray) -> _Model:
    """Return the value of a JSON body. Raises: Problem."""
    if _separators(body) > MAX_VALUES and _separators(_TEXT.sub(b"", body)) > MAX_VALUES:
        raise Problem(413, f"the body has more than {MAX_VALUES} values")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise malformed(error) from None


def _separators(body: bytes | bytearray) -> int:
    return sum(map(body.count, _SEPARATORS))
