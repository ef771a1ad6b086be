"""Opens queues from a URL and settings. Only this package imports every adapter.

Each scheme has its module, imported on first use, so that `--help` or a mail server over one
directory loads no driver of a server that it never connects to."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from postroad.bootstrap.engine import OpenRequest, check_parts
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import InvalidInput, InvalidQueueURL, NotInstalled, lacking_library
from postroad.ports.delivery import SharedState, SuppressionList
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings, from_environment

Opener = Callable[[OpenRequest], Awaitable[MailQueue]]

_HOMES = {
    "distributed": "postroad.bootstrap.distributed",
    "embedded": "postroad.bootstrap.embedded_store",
    "memory": "postroad.bootstrap.engine",
}


class QueueOpening:
    """Return value of `open_queue`: `await` it, or enter it by `async with`."""

    def __init__(self, opening: Callable[[], Awaitable[MailQueue]]) -> None:
        self._opening = opening
        self._queue: MailQueue | None = None

    def __await__(self) -> Generator[Any, Any, MailQueue]:
        return self._opening().__await__()

    async def __aenter__(self) -> MailQueue:
        self._queue = await self._opening()
        return self._queue

    async def __aexit__(self, *exc: object) -> None:
        if self._queue is not None:
            await self._queue.close()

    if not TYPE_CHECKING:  # a checker would take every name for one of these

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"the queue is not open yet, so it has no {name!r}: write"
                " `async with open_queue(…) as queue` or `queue = await open_queue(…)`; without"
                " asyncio, `postroad.sync.open_queue(…)`"
            )


def open_queue(
    url: str,
    *,
    create: bool = False,
    configuration: ViewConfiguration | None = None,
    settings: Settings | None = None,
) -> QueueOpening:
    """Open a queue by URL: `async with open_queue(url) as queue`, or `await open_queue(url)`.

    `embedded:///DIR`, `memory://NAME`, `distributed://NAMESPACE.NAME`; the servers of the last come
    from `settings` (default: the environment). `create=True` creates what is missing, and holds a
    wanted `configuration` of the view against the queue's history (None: whatever holds there).

    Raises: InvalidQueueURL, InvalidSettings, QueueNotFound, ConfigurationRefused, HistoryMissing,
    CredentialsRefused, ServerError, StoreDamaged, NotInstalled."""
    if configuration is not None and not create:
        raise InvalidInput("a configuration is only wanted together with create=True")
    if not isinstance(url, str):
        raise InvalidQueueURL(f"the URL of a queue is a string, not {type(url).__name__}")

    async def opening() -> MailQueue:
        parts = urlsplit(url)
        request = OpenRequest(parts, settings or from_environment(), create, configuration)
        return await _open(request)

    return QueueOpening(opening)


async def open_inherited(url: str, lock: int, settings: Settings) -> MailQueue:
    """Open an embedded queue in a process that the store's owner started and that inherited the
    descriptor `lock`: it stores mails itself, and the owner queues them. Raises: InvalidQueueURL,
    InvalidInput when `lock` is not the store's, StoreUnavailable."""
    return await _open(OpenRequest(urlsplit(url), settings, False, None, lock))


def lock_of(queue: MailQueue) -> int | None:
    """Return the descriptor of the lock on a store that this process owns, for processes that
    inherit it and store mails themselves; None for any other queue."""
    lock: int | None = getattr(queue, "lock", None)
    return lock


def shared_state_of(queue: MailQueue) -> SharedState:
    """Return the shared state of the processes of a queue. Raises: InvalidInput for one without."""
    if queue.shared_state is None:
        raise InvalidInput(f"the queue {queue.name} has no shared state")
    return queue.shared_state


def suppression_list_of(queue: MailQueue) -> SuppressionList:
    """Return the addresses that a queue does not mail. Raises: InvalidInput for one without."""
    if queue.suppression_list is None:
        raise InvalidInput(f"the queue {queue.name} has no suppression list")
    return queue.suppression_list


async def _open(request: OpenRequest) -> MailQueue:
    home = _HOMES.get(request.url.scheme)
    if home is None:
        raise InvalidQueueURL(
            f"{request.url.geturl()!r} has no known scheme: write one of "
            + ", ".join(f"{scheme}://" for scheme in sorted(_HOMES))
        )
    check_parts(request.url)
    try:
        # In a thread, because the import takes a second in which the event loop must go on.
        opener: Opener = (await asyncio.to_thread(import_module, home)).open_requested
        return await opener(request)
    except ImportError as error:
        if (library := lacking_library(error)) is None:
            raise
        raise NotInstalled.lacking(library, "distributed") from error
