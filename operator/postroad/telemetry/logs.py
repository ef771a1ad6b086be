"""Structured logs: the event is a constant sentence, everything that varies is a field.

Fields in use: queue, enqueue_id, mail_id, slice, bucket, attempt, count, server, error, duration.
Addresses, subjects and content are never fields at INFO or above. Loggers are the standard
library's underneath, so that a program that only uses the library keeps its own logging.
"""

from __future__ import annotations

import logging
import sys

import structlog

Logger = structlog.stdlib.BoundLogger

_CHATTY = ("cassandra", "boto3", "botocore", "urllib3", "aiohttp.access", "mail.log")


def configure(level: str = "INFO", *, as_json: bool | None = None) -> None:
    """Send logs to standard error: JSON lines, or for people when it is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Eight lines of errors for each attempt to connect; our adapter says it in one.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def logger(room: str) -> Logger:
    """Return the logger of a room."""
    bound: Logger = structlog.wrap_logger(
        logging.getLogger(f"postroad.{room}"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return bound
