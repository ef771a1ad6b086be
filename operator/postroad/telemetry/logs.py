"""Structured logs: the event is a constant sentence, everything that varies is a field.

Fields in use: queue, enqueue_id, mail_id, slice, bucket, attempt, count, server, error, duration.
Addresses, subjects and content are never fields at INFO or above. Loggers are the standard
library's underneath, so that a program that only uses the library keeps its own logging."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from itertools import filterfalse, islice
from typing import Any, TextIO

import structlog

Logger = structlog.stdlib.BoundLogger

_CHATTY = ("uvicorn", "cassandra", "boto3", "botocore", "urllib3", "aiohttp.access", "mail.log")


_STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
_is_standard = _STANDARD.__contains__
_encode = json.JSONEncoder(default=repr).encode


class JsonLines(logging.Formatter):
    """Writes each event as a line of JSON, those of other libraries too. Not structlog's own chain,
    which takes three times as long for the two lines that every mail causes."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {"event": record.getMessage()}
        given = vars(record)
        begun = len(_BLANK) if type(record) is _BriefRecord else 0
        for name in filterfalse(_is_standard, islice(given, begun, None)):
            fields[name] = given[name]
        fields["level"], fields["logger"] = record.levelname.lower(), record.name
        second, microsecond = divmod(round(record.created * 1_000_000), 1_000_000)
        fields["timestamp"] = f"{_date_and_time(second)}.{microsecond:06d}Z"
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes each record as one line. `StreamHandler` looks for filters, of which there are none,
    and takes its lock twice."""

    def handle(self, record: logging.LogRecord) -> bool:
        try:
            line = f"{self.format(record)}\n"
            assert self.lock is not None
            with self.lock:
                self.stream.write(line)
                self.stream.flush()
        except Exception:
            self.handleError(record)
        return True


@lru_cache(maxsize=1)
def _date_and_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat()


def _for_terminals() -> logging.Formatter:
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
    """Send logs to standard error: JSON lines, or coloured text when it is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    # No formatter here prints source file, thread or process: without this, the logging module
    # finds them out for each record (Python's logging HOWTO, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = _Lines(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else _for_terminals())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # pika logs eight lines of errors for each attempt to connect; our adapter logs one.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


class _BriefRecord(logging.LogRecord):
    """A record of INFO for a program that `configure` told to leave out file, thread and process:
    `LogRecord` takes as long over their absence as over all else of a line. Its first attributes
    are those of _BLANK, the others the fields of the event."""

    def __init__(self, name: str, event: str | None, args: tuple[Any, ...]) -> None:
        created = time.time()
        vars(self).update(
            _BLANK, name=name, msg=event, args=args, created=created, msecs=created % 1 * 1000
        )


_BLANK = {
    **vars(logging.makeLogRecord({"levelno": logging.INFO, "levelname": "INFO"})),
    **dict.fromkeys(("thread", "threadName", "process", "processName")),
}


def _info_record(name: str, event: str | None, args: tuple[Any, ...]) -> logging.LogRecord:
    if logging.logThreads or logging.logProcesses:
        return logging.getLogRecordFactory()(name, logging.INFO, "", 0, event, args, None)
    return _BriefRecord(name, event, args)


class _Bound(structlog.stdlib.BoundLogger):
    """Logs at INFO without structlog's processors, because every mail causes two such lines."""

    def info(self, event: str | None = None, *args: Any, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            record = _info_record(self._logger.name, event, args)
            if not _STANDARD.isdisjoint(fields):  # else the record's own time or level is lost
                fields = {
                    f"{name}_" if name in _STANDARD else name: fields[name] for name in fields
                }
            vars(record).update(self._context, **fields)
            self._logger.handle(record)


def logger(room: str) -> Logger:
    lazy: Logger = structlog.wrap_logger(
        logging.getLogger(f"postroad.{room}"),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=_Bound,
    )
    return lazy.bind()  # a lazy logger would bind again for each line
