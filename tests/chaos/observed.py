"""Ports that record what a consumer knew: when it last read the mark of a message, and which
messages the broker handed out again. They change nothing else.

A dispatch runs in a task of its own and reads the body of its message first, so a context variable
connects each reading of a mark with the message that it belongs to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, cast
from uuid import UUID

from chaos.history import Recorder
from postroad.domain.queues.entries import EntryKey, Mark
from postroad.domain.queues.references import decode
from postroad.errors import UnreadableReference
from postroad.ports.broker import Broker, Delivery
from postroad.ports.mail_queue import Item
from postroad.ports.view import View

UNWITHDRAWN = "a failed enqueue could not be withdrawn and may be delivered once"
"""The log message beside each count of a failed enqueue that was not withdrawn."""

_DISPATCHED: ContextVar[ObservedDelivery | None] = ContextVar("dispatched", default=None)


async def _at_once() -> None:
    """The default of `running`: no process stands still."""


class ObservedDelivery:
    """A message, with the instant of the last reading of its mark."""

    def __init__(self, delivery: Delivery, now: float) -> None:
        self._delivery = delivery
        self.looked = now

    @property
    def body(self) -> bytes:
        _DISPATCHED.set(self)
        return self._delivery.body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)


def delivery_of(item: Item) -> ObservedDelivery:
    """Return the message of an item."""
    return cast("ObservedDelivery", item._delivery)  # type: ignore[attr-defined]


class Observed:
    """A port some of whose calls are recorded."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class _ObservedBroker(Observed):
    def __init__(self, port: Any, recorder: Recorder) -> None:
        super().__init__(port)
        self._recorder = recorder

    async def consume(self, prefetch: int) -> AsyncIterator[ObservedDelivery]:
        deliveries = self._port.consume(prefetch)
        try:
            async for delivery in deliveries:
                if delivery.redelivered:
                    self._recorder.note("redelivery", entry=_entry(delivery.body))
                yield ObservedDelivery(delivery, self._recorder.now())
        finally:
            close = getattr(deliveries, "aclose", None)
            if close is not None:
                await close()


class ObservedView(Observed):
    """A view whose readings of marks are recorded."""

    def __init__(
        self, port: Any, recorder: Recorder, running: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(port)
        self._recorder = recorder
        self._running = running

    def look(self) -> None:
        """Record that the mark of the present message is read now."""
        delivery = _DISPATCHED.get()
        if delivery is not None:
            delivery.looked = self._recorder.now()

    async def mark(self, key: EntryKey) -> Mark | None:
        await self._running()
        self.look()
        found: Mark | None = await self._port.mark(key)
        return found


def observed_broker(broker: Broker, recorder: Recorder) -> Broker:
    """Return the broker, and record each message that comes again."""
    return cast("Broker", _ObservedBroker(broker, recorder))


def observed_view(
    view: View, recorder: Recorder, running: Callable[[], Awaitable[object]] = _at_once
) -> View:
    """Return the view, which writes into each message when its mark was read. `running` returns
    once this process does not stand still (in memory, where it stands still within a call)."""
    return cast("View", ObservedView(view, recorder, running))


class ObservedLog:
    """A log of an engine. It records a failed enqueue that is counted as not withdrawn, by its
    mail's id, which every later entry keeps. The metric `postroad_unwithdrawn_enqueues_total`
    cannot show that: it grows as late as a redelivery delay after the error, and names no mail."""

    def __init__(self, log: Any, recorder: Recorder) -> None:
        self._log, self._recorder = log, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def warning(self, event: str, **fields: Any) -> None:
        if event == UNWITHDRAWN:
            self._recorder.note("unwithdrawn", mail_id=fields["mail_id"])
        self._log.warning(event, **fields)


def _entry(body: bytes) -> str:
    try:
        return str(decode(body).key.enqueue_id)
    except UnreadableReference:
        return str(UUID(int=0))
