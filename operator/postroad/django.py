"""Django's mail over a queue.

Settings: `EMAIL_BACKEND = "postroad.django.EmailBackend"` and `POSTROAD_QUEUE`, the queue's URL. A
queue of this machine is created; one of a cluster is not, because its operator does."""

from __future__ import annotations

from functools import cache

from django import conf
from django.core.exceptions import ImproperlyConfigured
from django.core.mail.backends import smtp

from postroad.errors import PostroadError
from postroad.sync import SMTP, SyncQueue, open_queue

__all__ = ["EmailBackend"]


class EmailBackend(smtp.EmailBackend):  # type: ignore[misc]
    """Queues mail: `send_messages` returns how many are durable. `fail_silently` is obeyed."""

    connection: SMTP | None

    def open(self) -> bool | None:
        """Return whether there was no connection before; None: there is none, and fail_silently.
        Raises: ImproperlyConfigured, PostroadError."""
        if self.connection is not None:
            return False
        url = getattr(conf.settings, "POSTROAD_QUEUE", "")
        if not url:
            raise ImproperlyConfigured("POSTROAD_QUEUE: write the URL of a queue")
        try:
            self.connection = SMTP(_queue(url))
        except PostroadError:
            if not self.fail_silently:
                raise
            return None
        return True

    def close(self) -> None:
        """Let the queue go on: it is open as long as the process lives."""
        self.connection = None


@cache
def _queue(url: str) -> SyncQueue:
    return open_queue(url, create=not url.startswith("distributed:"))
