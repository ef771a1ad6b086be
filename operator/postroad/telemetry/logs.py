"""Structured logs: the event is a constant sentence, everything that varies is a field.

Fields in use: queue, enqueue_id, mail_id, slice, bucket, attempt, count, server, error, duration.
Addresses, subjects and content are never fields at INFO or above. Loggers are the standard
library's underneath, so that a program that only uses the library keeps its own logging.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache
from itertools import filterfalse
from typing import Any

import structlog

Logger = structlog.stdlib.BoundLogger

_CHATTY = ("cassandra", "boto3", "botocore", "urllib3", "aiohttp.access", "mail.log")


_STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
_is_standard = _STANDARD.__contains__
_encode = json.JSONEncoder(default=repr).encode


class JsonLines(logging.Formatter):
    """A line of JSON for each event, ours and other libraries' alike. Written for the two lines
    that every mail gets: structlog's own chain takes three times as long."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {"event": record.getMessage()}
        given = vars(record)
        for name in filterfalse(_is_standard, given):
            fields[name] = given[name]
        fields["level"], fields["logger"] = record.levelname.lower(), record.name
        second, microsecond = divmod(round(record.created * 1_000_000), 1_000_000)
        fields["timestamp"] = f"{_date_and_time(second)}.{microsecond:06d}Z"
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields)


@lru_cache(maxsize=1)
def _date_and_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat()


def _for_people() -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(),
        ],
    )


def configure(level: str = "INFO", *, as_json: bool | None = None) -> None:
    """Send logs to standard error: JSON lines, or for people when it is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    # What nobody is shown need not be found out (Python's logging HOWTO, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else _for_people())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Eight lines of errors for each attempt to connect; our adapter says it in one.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


class _Bound(structlog.stdlib.BoundLogger):
    """Says at INFO what every mail gets without a walk through processors."""

    def info(self, event: str | None = None, *args: Any, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            record = logging.getLogRecordFactory()(
                self._logger.name, logging.INFO, "", 0, event, args, None
            )
            vars(record).update(self._context, **fields)
            self._logger.handle(record)


def logger(room: str) -> Logger:
    """Return the logger of a room."""
    lazy: Logger = structlog.wrap_logger(
        logging.getLogger(f"postroad.{room}"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=_Bound,
    )
    return lazy.bind()  # the lazy one would look for it at each line
