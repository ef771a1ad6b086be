"""Queues that a file names, which is read again when it changes: a JSON object of MailQueues by
their name, `NAMESPACE/NAME`. Each is opened when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from postroad.console.queues import ConsoleQueue
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidQueueName, InvalidSettings, PostroadError, QueueNotFound
from postroad.file_stamps import FileStamp, stamp_of
from postroad.telemetry.logs import logger

_log = logger("console")


class ServedQueue(BaseModel, frozen=True, extra="forbid"):
    """A MailQueue. `uid`: of the resource; `environment`: the settings in which it differs from
    others; `keeps_hashes`: its suppression list has hashes in place of addresses."""

    uid: str
    environment: dict[str, str] = {}
    keeps_hashes: bool = False
    conditions: tuple[tuple[str, str, str], ...] = ()
    """Type, status and reason of `Ready`, and of those that are not good."""

    def is_opened_as(self, other: ServedQueue | None) -> bool:
        """Return whether the other one, if there is one, is opened in the same way."""
        return other is not None and self == other.model_copy(
            update={"conditions": self.conditions}
        )


_FILE = TypeAdapter(dict[str, ServedQueue])

QueueOpener = Callable[[QueueName, ServedQueue], Coroutine[Any, Any, ConsoleQueue]]


class FollowedQueues:
    """The queues of the file. Raises: InvalidSettings where it cannot be used at the start; later
    on, what was read before stays."""

    def __init__(self, file: Path, opener: QueueOpener) -> None:
        self._file, self._opener = file, opener
        self._stamp: FileStamp = stamp_of(file)
        self._declared = _read(file)
        self._open: dict[QueueName, asyncio.Task[ConsoleQueue]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def names(self) -> Sequence[QueueName]:
        self._look()
        return list(self._declared)

    def conditions(self, name: QueueName) -> Sequence[Mapping[str, str]]:
        declared = self._declared.get(name)
        rows = () if declared is None else declared.conditions
        return [dict(zip(("type", "status", "reason"), each, strict=True)) for each in rows]

    async def open(self, name: QueueName) -> ConsoleQueue:
        declared = self._declared.get(name)
        if declared is None:
            raise QueueNotFound(f"the queue {name} is gone")
        opening = self._open.get(name)
        if opening is None or (opening.done() and _has_failed(opening)):
            opening = self._open[name] = asyncio.create_task(self._opener(name, declared))
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close all queues."""
        for name in list(self._open):
            self._leave(name)
        await asyncio.gather(*self._closing)

    def _look(self) -> None:
        stamp = stamp_of(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            found = _read(self._file)
        except InvalidSettings as error:
            _log.error("queues not changed, what was read before stays", error=error.explain())
            return
        before, self._declared = self._declared, found
        for name in list(self._open):
            if not before[name].is_opened_as(found.get(name)):
                self._leave(name)
        _log.info("queues read again", queues=len(found))

    def _leave(self, name: QueueName) -> None:
        closing = asyncio.create_task(_close(self._open.pop(name)))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _has_failed(opening: asyncio.Task[ConsoleQueue]) -> bool:
    return opening.cancelled() or opening.exception() is not None


async def _close(opening: asyncio.Task[ConsoleQueue]) -> None:
    with suppress(PostroadError):  # of one that was not opened either
        await (await opening).queue.close()


def _read(file: Path) -> Mapping[QueueName, ServedQueue]:
    try:
        found = _FILE.validate_json(file.read_bytes())
        return {QueueName(*name.split("/", 1)): each for name, each in found.items()}
    except (OSError, ValidationError, InvalidQueueName, TypeError) as error:
        raise InvalidSettings(f"the file of queues {file} cannot be used: {error}") from error
