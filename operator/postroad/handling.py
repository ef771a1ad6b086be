"""Hands the mails of a queue to a function of a program, in this process: how a function is called,
and what its result means, for workers and for `MailQueue.consume`; the loop of the latter.

Source: ADR 0060."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import signal
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from postroad.contents import MemoryBudget
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import (
    DeferItem,
    ItemEnding,
    Reject,
    RetryItem,
    RetryPlan,
    decide,
    softened,
)
from postroad.domain.mail.envelope_documents import MAX_HANDED, HandedMail
from postroad.domain.mail.mail import Mail, Outcome, OutcomeKind, Responder
from postroad.domain.queues.documents import Sizes
from postroad.errors import (
    BlobMissing,
    EntryEnded,
    EntryLost,
    InvalidInput,
    PostroadError,
    QueueClosed,
    ServerError,
)
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import (
    DRAIN_TIMEOUT,
    HANDLER_TIMEOUT,
    NO_DELAY,
    Item,
    MailHandler,
    check_prefetch,
)
from postroad.telemetry.logs import logger
from postroad.threaded_calls import ThreadedCalls

_log = logger("consumer")

NO_THREAD = "451 4.3.2 no thread was free for the function: calls before have not returned"

MAX_TEXT = 500
"""Characters of what a function says of an outcome."""

_BEGINNINGS = {
    OutcomeKind.DELIVERED: "250 2.0.0",
    OutcomeKind.FAILED: "554 5.0.0",
    OutcomeKind.DEFERRED: "451 4.0.0",
}


class NotReached(Exception):
    """The program has nothing of a mail, and no attempt was made. Its text: an outcome's."""


@dataclass(frozen=True, slots=True)
class HandlerFunction:
    """A function that takes a `HandedMail`. It returns None (all have the mail), an `Outcome` for
    all, or outcomes by recipient; whom it leaves out is deferred, and so are all where it raises,
    or takes longer than `timeout`. One that is not `async` runs in a thread."""

    name: str
    call: Callable[[HandedMail], Any]
    timeout: timedelta
    largest_bytes: int

    async def outcomes(
        self, mail: HandedMail, threads: ThreadedCalls, opened: Callable[[], None]
    ) -> Mapping[str, Outcome]:
        """Call it with one mail; `opened` is called once it has begun. Raises: NotReached."""
        is_called = False

        def called() -> None:
            nonlocal is_called
            is_called = True
            opened()

        limit = asyncio.timeout(self.timeout.total_seconds())
        try:
            async with limit:
                return _outcomes(mail, await self._called(mail, threads, called))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            mine = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (mine is None or mine.cancelling()):
                raise  # else it is the function's own, as of a task that it awaits
            if not is_called:
                raise NotReached(NO_THREAD) from error
            if limit.expired():
                seconds = self.timeout.total_seconds()
                return _deferred(mail, f"4.4.2 the function took more than {seconds:g} s")
            _log.warning("the function failed", function=self.name, exc_info=error)
            return _deferred(mail, f"4.3.0 the function raised {type(error).__name__}")

    async def _called(
        self, mail: HandedMail, threads: ThreadedCalls, called: Callable[[], None]
    ) -> object:
        if inspect.iscoroutinefunction(self.call):
            called()
            found: object = await self.call(mail)
            return found
        found = await threads.run(self.call, mail, started=called)
        return await found if inspect.isawaitable(found) else found


def _outcomes(mail: HandedMail, found: object) -> Mapping[str, Outcome]:
    """Return what a result means. Raises: TypeError, ValueError for one that means nothing."""
    if found is None:
        found = Outcome.delivered()
    if isinstance(found, Outcome):
        return dict.fromkeys(mail.recipients, _written(found))
    if not isinstance(found, Mapping):
        raise TypeError(f"it returned {type(found).__name__}: return None, Outcome or a dict")
    if unknown := len(found.keys() - set(mail.recipients)):
        raise ValueError(f"it returned outcomes for {unknown} that are no recipients")
    if not all(isinstance(each, Outcome) for each in found.values()):
        raise TypeError("it returned a dict with values that are no Outcome")
    left_out = Outcome.deferred("451 4.3.5 the function returned no outcome")
    return {each: _written(found.get(each, left_out)) for each in mail.recipients}


def _written(outcome: Outcome) -> Outcome:
    """Return an outcome with a text that begins with codes, as a reply does."""
    text = " ".join(outcome.text.split())[:MAX_TEXT]
    beginning = _BEGINNINGS[outcome.kind]
    if not re.match(rf"{beginning[0]}\d\d(?!\d)", text):
        text = f"{beginning} {text or 'by the function'}"
    return Outcome(outcome.kind, text, responder=Responder("localhost", is_final=True))


def _deferred(mail: HandedMail, text: str) -> Mapping[str, Outcome]:
    return dict.fromkeys(mail.recipients, Outcome.deferred(f"451 {text}"))


FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
"""Between attempts to record an outcome while the queue cannot be reached."""


async def insist(
    clock: Clock,
    operation: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], None],
    *final: type[Exception],
) -> None:
    """Repeat what records an outcome or ends an item until it succeeds, because an outcome that is
    lost leads to a second copy; `failed` is called with each error. The item stays leased
    meanwhile. Raises: QueueClosed, EntryLost, and errors that are `final`."""
    given_up: tuple[type[Exception], ...] = (QueueClosed, EntryLost, *final)
    pause = FIRST_PAUSE
    while True:
        try:
            return await operation()
        except given_up:
            raise
        except EntryEnded:
            return None  # an earlier attempt succeeded, and its answer was lost
        except Exception as error:  # also a driver's bug must not lose the outcome
            failed(error)
        await clock.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE)


def must_be_recorded(outcomes: Mapping[str, Outcome], ending: ItemEnding) -> bool:
    """True if the ending alone would leave the outcome of a recipient open."""
    if isinstance(ending, Reject):
        return any(outcome.kind is OutcomeKind.DELIVERED for outcome in outcomes.values())
    return isinstance(ending, RetryItem | DeferItem)


MIN_LOOK, MAX_LOOK = timedelta(milliseconds=20), timedelta(seconds=1)
"""From one look of `consume` whether anything is due still, where it does not wait for mail, to the
next: doubled, because each look counts the queue on its servers."""

MAX_CONTENTS = 64 * 2**20
"""Octets of contents that the handlers of one `consume` have in memory."""


class ComposedOperations(Protocol):
    """The operations of a `MailQueue` that are made of its others, the same for each engine."""

    _clock: Clock

    @property
    def name(self) -> str: ...

    def dequeue(self, prefetch: int = 10) -> AsyncIterator[Item]: ...

    async def enqueue(
        self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None
    ) -> UUID: ...

    async def size(self) -> Sizes: ...

    async def enqueue_all(
        self,
        mails: Iterable[Mail],
        *,
        key: Callable[[Mail], str] | None = None,
        concurrency: int = 200,
    ) -> list[UUID]:
        """See the port."""
        check_prefetch(concurrency)
        left = enumerate(mails)
        queued: dict[int, UUID] = {}
        errors: list[Exception] = []
        size = self._portion_of(concurrency)

        async def take() -> None:
            while not errors and (portion := _next_of(left, size, errors)):
                found = await self._enqueue_portion([mail for _, mail in portion], key)
                for (number, _), each in zip(portion, found, strict=True):
                    if isinstance(each, UUID):
                        queued[number] = each
                    else:
                        errors.append(each)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency // size):
                group.create_task(take())
        if errors:
            first = next(each for each in range(len(queued) + 1) if each not in queued)
            errors[0].add_note(f"{len(queued)} mails were queued, all of the first {first} of them")
            raise errors[0]
        return [queued[number] for number in range(len(queued))]

    def _portion_of(self, concurrency: int) -> int:
        """Return how many mails of `enqueue_all` are queued together."""
        return 1

    async def _enqueue_portion(
        self, mails: Sequence[Mail], key: Callable[[Mail], str] | None
    ) -> list[UUID | Exception]:
        """Queue mails, and return the enqueue id or the error of each."""

        async def enqueue(mail: Mail) -> UUID | Exception:
            try:
                return await self.enqueue(mail, key=key and key(mail))
            except Exception as error:
                return error

        if len(mails) == 1:
            return [await enqueue(mails[0])]
        return await asyncio.gather(*map(enqueue, mails))

    async def consume(
        self,
        handler: MailHandler,
        *,
        concurrency: int = 10,
        retry: RetryPlan | None = None,
        timeout: timedelta = HANDLER_TIMEOUT,
        drain: timedelta = DRAIN_TIMEOUT,
        wait: bool = True,
    ) -> None:
        """See the port."""
        if not callable(handler):
            raise InvalidInput(f"a handler is a function, not {type(handler).__name__}")
        function = HandlerFunction(_name_of(handler), handler, timeout, MAX_HANDED)
        consumption = _Consumption(self, function, retry or RetryPlan(), concurrency)
        check_prefetch(concurrency)
        items = self.dequeue(concurrency)
        taking = asyncio.create_task(consumption.take(items), name="a consumer")
        is_ending = False

        def end() -> None:
            nonlocal is_ending
            is_ending = True
            taking.cancel()

        watching = None if wait else asyncio.create_task(consumption.watch(end))
        try:
            with _at_sigterm(end):
                try:
                    await taking
                except asyncio.CancelledError:
                    mine = asyncio.current_task()
                    if not is_ending or (mine is not None and mine.cancelling()):
                        raise
        finally:
            taking.cancel()
            if watching is not None:
                watching.cancel()
            await consumption.finish(drain)


def _next_of(
    left: Iterator[tuple[int, Mail]], size: int, errors: list[Exception]
) -> list[tuple[int, Mail]]:
    """Return the next mails; fewer at the end, and before an error of the iterator, which is
    added."""
    portion: list[tuple[int, Mail]] = []
    try:
        for each in islice(left, size):
            portion.append(each)  # noqa: PERF402 - what came before an error counts
    except Exception as error:
        errors.append(error)
    return portion


class _Consumption:
    """The mails that a handler has at a time, each in a task that ends its item."""

    def __init__(
        self,
        queue: ComposedOperations,
        function: HandlerFunction,
        plan: RetryPlan,
        concurrency: int,
    ) -> None:
        self._queue, self._function, self._plan = queue, function, plan
        self._clock = queue._clock
        self._threads = ThreadedCalls(concurrency)
        self._room = MemoryBudget(MAX_CONTENTS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, items: AsyncIterator[Item]) -> None:
        """Begin with each item as it is leased: `dequeue` limits how many are at a time."""
        async with aclosing(items) as leased:  # type: ignore[type-var]
            async for item in leased:
                task = asyncio.create_task(self._handle(item))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def watch(self, end: Callable[[], None]) -> None:
        """Call `end` once nothing is due and no handler has a mail."""
        pause = MIN_LOOK
        while self._tasks or await self._has_due():
            await self._clock.sleep(pause)
            pause = min(2 * pause, MAX_LOOK)
        end()

    async def _has_due(self) -> bool:
        try:
            return (await self._queue.size()).due > 0
        except PostroadError:
            return True  # consumers wait for what is away, and raise what lasts

    async def finish(self, drain: timedelta) -> None:
        """Let the handlers return that have mails; give back the mails of those that do not."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=drain.total_seconds())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, item: Item) -> None:
        try:
            async with item, self._room.taken(item.size_bytes):
                begun = self._clock.elapsed()
                outcomes, untried = await self._attempt(item)
                await self._end(item, outcomes, untried, self._clock.elapsed() - begun)
        except QueueClosed:
            pass  # the item comes again
        except Exception as error:
            self._failed(error)

    async def _attempt(self, item: Item) -> tuple[Mapping[str, Outcome], Mapping[str, str]]:
        """Return the outcomes of an attempt, and why it was none."""
        recipients = item.mail.recipients
        if item.size_bytes > self._function.largest_bytes:
            text = f"552 5.3.4 the mail has more than {self._function.largest_bytes} octets"
            return dict.fromkeys(recipients, Outcome.failed(text)), {}
        try:
            mail = HandedMail.of(item.mail_id, item.mail, await item.content())
        except (QueueClosed, EntryEnded, EntryLost, BlobMissing):
            raise
        except PostroadError as error:  # as a worker has it: servers that are away cost no attempt
            why = dict.fromkeys(recipients, f"451 4.3.0 {type(error).__name__}")
            if isinstance(error, ServerError):
                return {}, why
            return {each: Outcome.deferred(text) for each, text in why.items()}, {}
        try:
            return await self._function.outcomes(mail, self._threads, lambda: None), {}
        except NotReached as error:
            return {}, dict.fromkeys(recipients, str(error))

    async def _end(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        untried: Mapping[str, str],
        duration: timedelta,
    ) -> None:
        """End an item by its outcomes, as a worker does."""
        if self._plan.soft_bounce:
            outcomes = softened(outcomes)
        ending = decide(
            self._plan,
            outcomes,
            item.failures,
            untried,
            attempt=item.attempt,
            age=self._clock.now() - item.accepted_at,
            uniform=random.random(),
        )
        finished = {
            each: outcome
            for each, outcome in outcomes.items()
            if outcome.kind is not OutcomeKind.DEFERRED
        }
        if finished and must_be_recorded(outcomes, ending):
            await insist(self._clock, partial(item.record, finished), self._failed)
        attempt = None
        if outcomes:
            seconds = duration.total_seconds()
            attempt = AttemptOutcomes.of(outcomes, seconds, item.mail.sender)
        await insist(self._clock, partial(item.end, ending, attempt), self._failed)

    def _failed(self, error: Exception) -> None:
        _log.warning("an item was not ended", queue=self._queue.name, error=str(error))


def _name_of(handler: object) -> str:
    return getattr(handler, "__qualname__", type(handler).__name__)


_ENDINGS: list[Callable[[], None]] = []
"""Calls at SIGTERM: the loop has one place for a signal, and a process may consume twice."""


@contextmanager
def _at_sigterm(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at SIGTERM, in the main thread, unless the program handles the signal itself."""
    loop = asyncio.get_running_loop()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not (_ENDINGS or signal.getsignal(signal.SIGTERM) is signal.SIG_DFL):
        yield
        return
    if not _ENDINGS:
        loop.add_signal_handler(signal.SIGTERM, lambda: [each() for each in list(_ENDINGS)])
    _ENDINGS.append(end)
    try:
        yield
    finally:
        _ENDINGS.remove(end)
        if not _ENDINGS:
            loop.remove_signal_handler(signal.SIGTERM)
