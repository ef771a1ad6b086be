"""Sinks of events that settings name, and where events of a queue wait."""

from pathlib import Path

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.event_spool import EventFile
from postroad.delivery_settings.events import EventStream
from postroad.errors import InvalidSettings
from postroad.ports.events import EventSink, EventSpool
from postroad.ports.mail_queue import MailQueue


def event_spool_of(queue: MailQueue) -> EventSpool:
    """Return where events of a queue wait. Raises: InvalidSettings for one without."""
    if queue.event_spool is None:
        raise InvalidSettings(
            f"the queue {queue.name} keeps no events",
            hint="leave out `events`, or use embedded:///DIR or distributed://NAME",
        )
    return queue.event_spool


def open_sink(
    stream: EventStream, spool: EventSpool, folder: Path, ca_file: Path | None
) -> EventSink:
    """Return where events of a stream go. `folder`: where relative paths begin. Raises:
    InvalidSettings."""
    if stream.amqp is not None:
        return spool.exchange(stream.amqp.exchange)
    if stream.file is not None:
        return EventFile(stream.file)
    from postroad.adapters.programs.event_webhook import EventWebhook  # aiohttp's client

    assert stream.webhook is not None
    assert stream.secret is not None
    assert stream.secret.file is not None
    return EventWebhook(stream.webhook, folder / stream.secret.file, ca_file, MachineClock())
