"""A queue for programs without asyncio: Flask, Django, scripts, tasks of Celery.

All handles of a process share one event loop in a thread, so that a call waits for the queue and
not for a loop of its own. A process that forks goes on with a loop and openings of its own."""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
import smtplib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from email.utils import parseaddr
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

import postroad.bootstrap
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError, QueueClosed
from postroad.ports.mail_queue import (
    DRAIN_TIMEOUT,
    HANDLER_TIMEOUT,
    NO_DELAY,
    MailHandler,
    MailQueue,
    Operation,
)
from postroad.settings import Settings

if TYPE_CHECKING:
    from _typeshed import SizedBuffer

__all__ = ["SMTP", "SyncQueue", "open_queue"]

T = TypeVar("T")

PORTION = 100
"""Views that one step of a listing takes from the loop."""

MAX_CLOSING = timedelta(seconds=10)
"""Time that the end of the process waits for queues that were left open."""


class _LoopThread:
    """The event loop of this process and its thread, begun at the first use."""

    def __init__(self) -> None:
        self.handles: list[SyncQueue] = []
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector | None = None
        self._left_behind: list[object] = []

    def run(self, operation: Callable[[], Awaitable[T]], timeout: timedelta | None = None) -> T:
        """Run an operation to its end. Where the caller is interrupted, it is cancelled, and may
        still put things in order. Raises: RuntimeError in the loop's own thread, which would wait
        for itself."""
        if self.is_this:
            raise RuntimeError("a coroutine of this loop awaits the methods of MailQueue instead")
        begun, ended = threading.Event(), threading.Event()

        async def running() -> T:
            begun.set()
            try:
                return await operation()
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(running(), self._started())
        try:
            return future.result(None if timeout is None else timeout.total_seconds())
        except KeyboardInterrupt:
            future.cancel()
            if begun.is_set():  # else its cancellation runs nothing of it
                ended.wait()
            raise

    @property
    def is_this(self) -> bool:
        return threading.current_thread() is self._thread

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._selector = selectors.DefaultSelector()
                self._loop = asyncio.SelectorEventLoop(self._selector)
                run = self._loop.run_forever
                self._thread = threading.Thread(target=run, name="postroad", daemon=True)
                self._thread.start()
            return self._loop

    def forget(self) -> None:
        """Leave what the parent of this process has: its thread is not here. The descriptors are
        closed, because an owner's lock and socket would outlive it in this process; the objects
        are kept, because they would close the numbers again, which others have by then."""
        selector, queues = self._selector, [each.leave() for each in self.handles]
        held = [] if selector is None else [each.fd for each in selector.get_map().values()]
        held += [lock for each in queues if each and (lock := postroad.bootstrap.lock_of(each))]
        for descriptor in held:
            try:
                os.close(descriptor)
            except OSError:
                pass
        self._left_behind += [self._loop, selector, *queues]
        self._loop, self._thread, self._selector = None, None, None
        self._starting = threading.Lock()

    def end(self) -> None:
        """Close what the program left open, so that other processes go on at once."""
        for each in list(self.handles):
            try:
                each.close(MAX_CLOSING)
            except (PostroadError, TimeoutError, RuntimeError):
                pass


_THREAD = _LoopThread()
os.register_at_fork(after_in_child=_THREAD.forget)
# Before the executors end, which `atexit` is behind of.
threading._register_atexit(_THREAD.end)  # type: ignore[attr-defined]


def open_queue(
    url: str,
    *,
    create: bool = False,
    configuration: ViewConfiguration | None = None,
    settings: Settings | None = None,
) -> SyncQueue:
    """Open a queue as `postroad.open_queue` does, at once: `with open_queue(url) as queue`, or keep
    it as long as the process lives. Raises: as `postroad.open_queue`."""

    async def opening() -> MailQueue:
        return await postroad.bootstrap.open_queue(
            url, create=create, configuration=configuration, settings=settings
        )

    return SyncQueue(opening)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, where the program has no handler for it."""


def _terminate(*_: object) -> None:
    # A second one would cut the drain. Not SIG_IGN, which programs that handlers start inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise _Terminated


@contextmanager
def _until_sigterm() -> Iterator[None]:
    """Let SIGTERM end what this does, in the main thread, unless the program handles the signal
    itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except _Terminated:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class SyncQueue:
    """A queue whose operations return when they are done, with the arguments and errors of those
    of `MailQueue`. Safe in several threads, and in processes that fork. Make it by `open_queue`."""

    def __init__(self, opening: Callable[[], Awaitable[MailQueue]]) -> None:
        self._opening = opening
        self._lock = threading.Lock()
        self._is_closed = False
        self._queue: MailQueue | None = _THREAD.run(opening)
        _THREAD.handles.append(self)

    def enqueue(self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None) -> UUID:
        return self.run(lambda queue: queue.enqueue(mail, delay, key=key))

    def enqueue_all(
        self,
        mails: Iterable[Mail],
        *,
        key: Callable[[Mail], str] | None = None,
        concurrency: int = 200,
    ) -> list[UUID]:
        return self.run(lambda queue: queue.enqueue_all(mails, key=key, concurrency=concurrency))

    def consume(
        self,
        handler: MailHandler,
        *,
        concurrency: int = 10,
        retry: RetryPlan | None = None,
        timeout: timedelta = HANDLER_TIMEOUT,
        drain: timedelta = DRAIN_TIMEOUT,
        wait: bool = True,
    ) -> None:
        """See `MailQueue.consume`; ends by an exception in this thread, as Ctrl-C makes one."""
        with _until_sigterm():
            self.run(
                lambda queue: queue.consume(
                    handler,
                    concurrency=concurrency,
                    retry=retry,
                    timeout=timeout,
                    drain=drain,
                    wait=wait,
                )
            )

    def change(self, operation: Operation, selector: Selector) -> int:
        return self.run(lambda queue: queue.change(operation, selector))

    def remove(self, selector: Selector) -> int:
        return self.change(Operation.REMOVE, selector)

    def flush(self, selector: Selector) -> int:
        return self.change(Operation.FLUSH, selector)

    def hold(self, selector: Selector) -> int:
        return self.change(Operation.HOLD, selector)

    def release(self, selector: Selector) -> int:
        return self.change(Operation.RELEASE, selector)

    def expire(self, selector: Selector) -> int:
        return self.change(Operation.EXPIRE, selector)

    def requeue(self, selector: Selector) -> int:
        return self.change(Operation.REQUEUE, selector)

    def discard(self, selector: Selector) -> int:
        return self.change(Operation.DISCARD, selector)

    def purge(self) -> int:
        return self.run(lambda queue: queue.purge())

    def size(self) -> Sizes:
        return self.run(lambda queue: queue.size())

    def browse(self, selector: Selector | None = None) -> Iterator[MailView]:
        return self._listed(lambda queue: queue.browse(selector))

    def dead_letters(self, selector: Selector | None = None) -> Iterator[MailView]:
        return self._listed(lambda queue: queue.dead_letters(selector))

    def close(self, timeout: timedelta | None = None) -> None:
        """Close this handle. Idempotent. Raises: TimeoutError."""
        with self._lock:
            queue, self._queue, self._is_closed = self._queue, None, True
        if self in _THREAD.handles:
            _THREAD.handles.remove(self)
        if queue is not None:
            _THREAD.run(queue.close, timeout)

    def leave(self) -> MailQueue | None:
        """Return the queue of the parent of this process; the next call opens it anew."""
        queue, self._queue, self._lock = self._queue, None, threading.Lock()
        return queue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _opened(self) -> MailQueue:
        with self._lock:
            if self._is_closed:
                raise QueueClosed
            if self._queue is None:
                self._queue = _THREAD.run(self._opening)
            return self._queue

    def run(self, operation: Callable[[MailQueue], Awaitable[T]]) -> T:
        """Run any operation over the queue: `queue.run(lambda queue: queue.ages())`."""
        queue = self._opened()
        return _THREAD.run(lambda: operation(queue))

    def _listed(self, begin: Callable[[MailQueue], AsyncIterator[MailView]]) -> Iterator[MailView]:
        views = begin(self._opened())

        async def portion() -> list[MailView]:
            found: list[MailView] = []
            async for view in views:
                found.append(view)
                if len(found) == PORTION:
                    break
            return found

        try:
            while found := _THREAD.run(portion):
                yield from found
        finally:
            # Garbage is collected in any thread, that of the loop too, which closes it then. And at
            # the end of the interpreter, that thread runs no more.
            if not (_THREAD.is_this or sys.is_finalizing()):
                _THREAD.run(views.aclose)  # type: ignore[attr-defined]


class SMTP(smtplib.SMTP):
    """`smtplib.SMTP` over a queue: `send_message` and `sendmail` return when the mail is queued.
    There is no connection: `ehlo`, `starttls`, `login` and `quit` have no effect. Errors are those
    of smtplib, with 451 for what may pass and 554."""

    def __init__(self, queue: SyncQueue) -> None:
        super().__init__(local_hostname="localhost")  # else its address is looked up
        self._queue = queue
        self.esmtp_features = {"8bitmime": "", "smtputf8": ""}

    def sendmail(
        self,
        from_addr: str,
        to_addrs: str | Sequence[str],
        msg: SizedBuffer | str,
        mail_options: Sequence[str] = (),
        rcpt_options: Sequence[str] = (),
    ) -> dict[str, tuple[int, bytes]]:
        """Queue a message. Raises: SMTPDataError."""
        if isinstance(msg, str):
            msg = re.sub(r"\r\n|\r|\n", "\r\n", msg).encode("ascii")
        to = [to_addrs] if isinstance(to_addrs, str) else to_addrs
        try:
            mail = Mail(_address(from_addr) or None, [_address(each) for each in to], bytes(msg))
            self._queue.enqueue(mail)
        except PostroadError as error:
            code = 451 if error.transient else 554
            raise smtplib.SMTPDataError(code, error.explain()) from error
        return {}

    def ehlo_or_helo_if_needed(self) -> None:
        """Greet no server."""

    def ehlo(self, name: str = "") -> tuple[int, bytes]:
        return 250, b"there is no connection"

    helo = ehlo

    def starttls(self, **_: Any) -> tuple[int, bytes]:  # type: ignore[override]
        return 220, b"there is no connection"

    def login(self, *_: Any, **__: Any) -> tuple[int, bytes]:
        return 235, b"there is no connection"

    def docmd(self, cmd: str, args: str = "") -> tuple[int, bytes]:
        """Return what `noop` and `rset` ask for, and what the end of a context does."""
        return 221 if cmd.lower() == "quit" else 250, b"there is no connection"

    def quit(self) -> tuple[int, bytes]:
        """End nothing; that of smtplib forgets the extensions, too."""
        return self.docmd("quit")


def _address(text: str) -> str:
    """Return an address without a display name, as smtplib sends it."""
    return parseaddr(text)[1] or text
