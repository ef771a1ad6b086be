"""Filters, one after the other, each within its time; what fails ends as its `onError` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.mail.address_lists import fields_of
from postroad.domain.mail.shapes import MAX_HEADER
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidMail
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    applied,
    reply_of,
)
from postroad.intake.filters.room import SMALL, FilterRoom
from postroad.intake.reply_texts import LARGE_HEADER, MALFORMED_HEADER
from postroad.intake_settings.filters import OnError
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import FILTERED, of_queue

_log = logger("intake")

MAX_LINES = 5000
"""Lines of a header: those of a mail that is made of fields alone would keep the event loop, and a
milter, busy for seconds."""

MAX_FILTERED_HEADER = MAX_HEADER - SMALL
"""Octets of a header that filters get, so that there is room for the fields that they add."""

MAX_REASON = 200
"""Characters of the reason why a mail is held."""

NOT_CHECKED = Reply(451, ("4.7.1 the mail cannot be checked now, come again",))


def most_octets(content: bytes) -> int:
    """Return how many octets a filter may answer about a mail in all."""
    return 2 * len(content) + 2 * SMALL


Decide = Callable[[FilteredMail], Awaitable[FilterDecision]]
"""It may raise whatever it likes, or hang."""


@dataclass(frozen=True, slots=True)
class Filter:
    name: str
    decide: Decide
    on_error: OnError
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Filtered:
    """Result of all filters. `reply`: the one that refuses the mail."""

    mail: FilteredMail
    reply: Reply | None = None
    is_discarded: bool = False
    hold: str | None = None
    """`FILTER: REASON`, of the first that holds it."""


class FilterChain:
    """The filters of one listener, in order. `room` is that of the process."""

    def __init__(self, queue: str, filters: Sequence[Filter], room: FilterRoom) -> None:
        self._filters, self._room, self._queue = filters, room, queue

    def room(self, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Return the context in which a mail of that size is in memory, with all that filters make
        of it. Entering it waits until there is room. Raises: NoRoom."""
        return self._room.taken(size_bytes)

    async def run(self, mail: FilteredMail, max_size_bytes: int) -> Filtered:
        """Return what becomes of a mail, within `room`. `max_size_bytes`: of the largest mail."""
        hold = None
        if (refusal := _refusal_of(mail.content)) is not None:
            return Filtered(mail, refusal)
        for each in self._filters:
            try:
                decision = await _decided(each, mail)
                if len(decision.body or b"") > max_size_bytes:
                    raise FilterFailed("its body is larger than a mail may be")
                reply, changed = reply_of(decision), applied(mail, decision)
                reason = None if decision.hold is None else _line(decision.hold)
            except Exception as error:
                self._note(each, "error")
                what = _words(error)
                _log.warning("a filter failed", filter=each.name, mail_name=mail.name, error=what)
                if each.on_error == "Defer":
                    return Filtered(mail, NOT_CHECKED)
                continue
            verdict = decision.verdict
            is_held = verdict == "accept" and reason is not None
            noted = "hold" if is_held else verdict
            self._note(each, noted)
            if noted != "accept":
                _log.info("a filter decided", filter=each.name, mail_name=mail.name, verdict=noted)
            if verdict != "accept":
                return Filtered(mail, reply, is_discarded=verdict == "discard")
            mail = changed
            if is_held and hold is None:
                hold = f"{each.name}: {reason}"
        return Filtered(mail, hold=hold)

    def _note(self, filter_: Filter, verdict: str) -> None:
        FILTERED.labels(*of_queue(self._queue), filter_.name, verdict).inc()


async def _decided(filter_: Filter, mail: FilteredMail) -> FilterDecision:
    """Return a decision, if it comes in time. Raises: FilterFailed."""
    # A task of its own: what is cancelled or exits in it ends neither the session nor the process.
    task = asyncio.create_task(_outcome(filter_, mail))
    try:
        await asyncio.wait((task,), timeout=filter_.timeout.total_seconds())
    finally:
        task.cancel()
    if not task.done():
        raise FilterFailed("it takes too long")
    found = task.result()
    if isinstance(found, str):
        raise FilterFailed(found)
    return found


async def _outcome(filter_: Filter, mail: FilteredMail) -> FilterDecision | str:
    """Return a decision, or what failed."""
    try:
        return await filter_.decide(mail)
    except BaseException as error:
        return _words(error)


def _refusal_of(content: bytes) -> Reply | None:
    """Return the reply to a header that filters cannot be shown: it has more octets or lines than
    they get, or a line of no field, behind which others would see fields that they do not."""
    end = 0 if content.startswith(b"\r\n") else content.find(b"\r\n\r\n")
    size = len(content) if end < 0 else end
    if size > MAX_FILTERED_HEADER or content.count(b"\n", 0, size) > MAX_LINES:
        return LARGE_HEADER
    try:
        fields_of(content[:size])
    except InvalidMail:
        return MALFORMED_HEADER
    return None


def _line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:MAX_REASON]


def _words(error: BaseException) -> str:
    """Return what failed; the texts of other errors may hold some of the mail."""
    return str(error) if isinstance(error, FilterFailed) else type(error).__name__
