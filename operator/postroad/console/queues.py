"""Queues of one console, by namespace and name. A directory's namespace is `local`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from postroad.administration.configuration import ConfigurationOf
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidInput
from postroad.ports.mail_queue import MailQueue

LOCAL = "local"
"""The namespace of directories."""

_NO_LABEL = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class ConsoleQueue:
    """A queue of the console. `attempt_log`: the folder of its workers' attempts; None: none is
    known. `configuration`: of its view; None: it has none, as a directory. `keeps_hashes`: its
    suppression list has hashes in place of addresses. `uid`: of its MailQueue. `report`: the page
    that `postroad pipeline report` wrote about it, if it did."""

    name: QueueName
    queue: MailQueue
    attempt_log: Path | None = None
    configuration: ConfigurationOf | None = None
    keeps_hashes: bool = False
    uid: str = ""
    report: Path | None = None


class ConsoleQueues(Protocol):
    """The queues of a console."""

    def names(self) -> Sequence[QueueName]:
        """Return what the queues are called. No I/O at a store."""

    def conditions(self, name: QueueName) -> Sequence[Mapping[str, str]] | None:
        """Return type, status and reason of the conditions of a MailQueue, as far as they are
        known; None for a queue that is none."""

    async def open(self, name: QueueName) -> ConsoleQueue:
        """Return a queue, which may be opened for that. Raises: QueueNotFound, ServerError."""


class OpenQueues:
    """Queues that are open as long as the console, in the order in which they were given."""

    def __init__(self, queues: Iterable[ConsoleQueue]) -> None:
        self._queues: Mapping[QueueName, ConsoleQueue] = {each.name: each for each in queues}

    def names(self) -> Sequence[QueueName]:
        return list(self._queues)

    def conditions(self, name: QueueName) -> None:
        """None: these are no MailQueues, or their resources are not known."""

    async def open(self, name: QueueName) -> ConsoleQueue:
        return self._queues[name]


def names_of(urls: Iterable[str]) -> list[QueueName]:
    """Return the names of queues by their URLs. Directories of one name are numbered.
    Raises: InvalidInput for a queue that is given twice, InvalidQueueName."""
    found: list[QueueName] = []
    seen = set[str]()
    for url in urls:
        if url in seen:
            raise InvalidInput(f"the queue {url} is given twice")
        seen.add(url)
        found.append(_name_of(url, found))
    return found


def _name_of(url: str, taken: list[QueueName]) -> QueueName:
    parts = urlsplit(url)
    if parts.scheme == "distributed":
        return QueueName.parse(parts.netloc)
    text = parts.netloc or PurePath(unquote(parts.path)).name
    label = _NO_LABEL.sub("-", text.lower())[:50].strip("-") or "queue"
    namespace = LOCAL if parts.scheme == "embedded" else parts.scheme
    name, number = QueueName(namespace, label), 2
    while name in taken:
        name, number = QueueName(namespace, f"{label}-{number}"), number + 1
    return name
