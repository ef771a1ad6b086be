"""Hands mail to a function in Python, in this process."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.adapters.programs.serial import NotReached, ProgramAnswer, SerialConnection
from postroad.domain.mail.handed_mails import HandedMail
from postroad.domain.mail.mail import Outcome, OutcomeKind, Responder
from postroad.octet_room import OctetRoom
from postroad.ports.delivery.connections import BeforeEnd, OnEvent, Transmission, at_once
from postroad.routing.routes import ResolvedHop
from postroad.telemetry.logs import logger
from postroad.threaded_calls import ThreadedCalls

_log = logger("worker")

NO_THREAD = "451 4.3.2 no thread was free for the function: calls before have not returned"

LONGEST_TEXT = 500
"""Characters of what a function says of an outcome."""

_BEGINNINGS = {
    OutcomeKind.DELIVERED: "250 2.0.0",
    OutcomeKind.FAILED: "554 5.0.0",
    OutcomeKind.DEFERRED: "451 4.0.0",
}
_FIRST_DIGITS = {
    OutcomeKind.DELIVERED: "2",
    OutcomeKind.FAILED: "5",
    OutcomeKind.DEFERRED: "4",
}


@dataclass(frozen=True, slots=True)
class HandlerFunction:
    """A function that takes a `HandedMail`.

    It returns None (all have the mail), an `Outcome` for all, or outcomes by recipient; whom it
    leaves out is deferred, and so are all where it raises, or takes longer than `timeout`. One that
    is not `async` runs in a thread.
    """

    name: str
    call: Callable[[HandedMail], Any]
    timeout: timedelta
    largest_bytes: int


class FunctionConnector:
    """Opens connections to one function, whatever the next hop. `room`: for contents in memory;
    `threads`: that a function which is not `async` may take at a time."""

    def __init__(self, function: HandlerFunction, room: OctetRoom, threads: int) -> None:
        self._function, self._room = function, room
        self._threads = ThreadedCalls(threads)

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> SerialConnection:
        """Begin to open a connection (see the port)."""
        calling = _Calling(self._function, self._threads)
        most = self._function.largest_bytes
        return SerialConnection(calling, self._room, most, on_event, before_end)


class _Calling:
    """Calls the function, once at a time."""

    def __init__(self, function: HandlerFunction, threads: ThreadedCalls) -> None:
        self._function, self._threads = function, threads

    async def hand_over(
        self, job: Transmission, content: Sequence[bytes], opened: Callable[[], None]
    ) -> ProgramAnswer:
        """Call it with one mail (see `Handing`)."""
        is_called = False

        def called() -> None:
            nonlocal is_called
            is_called = True
            opened()

        mail = HandedMail.of(job.mail_id, job.envelope, b"".join(content))
        limit = asyncio.timeout(self._function.timeout.total_seconds())
        try:
            async with limit:
                return ProgramAnswer(self._outcomes(mail, await self._call(mail, called)))
        except (Exception, SystemExit) as error:
            if not is_called:
                raise NotReached(NO_THREAD) from error
            if limit.expired():
                seconds = self._function.timeout.total_seconds()
                return self._deferred(mail, f"4.4.2 the function took more than {seconds:g} s")
            _log.warning("the function failed", function=self._function.name, exc_info=error)
            return self._deferred(mail, f"4.3.0 the function raised {type(error).__name__}")

    async def close(self) -> None:
        """Nothing is held (see `Handing`)."""

    async def _call(self, mail: HandedMail, called: Callable[[], None]) -> object:
        if inspect.iscoroutinefunction(self._function.call):
            called()
            found: object = await self._function.call(mail)
            return found
        found = await self._threads.run(self._function.call, mail, started=called)
        return await found if inspect.isawaitable(found) else found

    def _outcomes(self, mail: HandedMail, found: object) -> Mapping[str, Outcome]:
        """Return what a result means. Raises: TypeError, ValueError for one that means nothing."""
        if found is None:
            found = Outcome.delivered()
        if isinstance(found, Outcome):
            return dict.fromkeys(mail.recipients, self._written(found))
        if not isinstance(found, Mapping):
            raise TypeError(f"it returned {type(found).__name__}: return None, Outcome or a dict")
        if unknown := len(found.keys() - set(mail.recipients)):
            raise ValueError(f"it returned outcomes for {unknown} that are no recipients")
        if not all(isinstance(each, Outcome) for each in found.values()):
            raise TypeError("it returned a dict with values that are no Outcome")
        left_out = Outcome.deferred("451 4.3.5 the function returned no outcome")
        return {each: self._written(found.get(each, left_out)) for each in mail.recipients}

    def _written(self, outcome: Outcome) -> Outcome:
        """Return an outcome with a text that begins with codes, as a reply does."""
        text = " ".join(outcome.text.split())[:LONGEST_TEXT]
        if not re.match(rf"{_FIRST_DIGITS[outcome.kind]}\d\d(?!\d)", text):
            text = f"{_BEGINNINGS[outcome.kind]} {text or 'by the function'}"
        responder = Responder("localhost", is_final=True)
        return Outcome(outcome.kind, text, responder=responder)

    def _deferred(self, mail: HandedMail, text: str) -> ProgramAnswer:
        outcome = Outcome.deferred(f"451 {text}")
        return ProgramAnswer(dict.fromkeys(mail.recipients, outcome))
