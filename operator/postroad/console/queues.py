"""Queues of one console, by namespace and name. A directory's namespace is `local`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

from postroad.administration.configuration import ConfigurationOf
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidInput, InvalidQueueName
from postroad.ports.mail_queue import MailQueue

LOCAL = "local"
"""The namespace of directories."""

_NO_LABEL = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class ConsoleQueue:
    """A queue of the console. `attempt_log`: the folder of its workers' attempts; None: none is
    known. `configuration`: of its view; None: it has none, as a directory."""

    name: QueueName
    queue: MailQueue
    attempt_log: Path | None = None
    configuration: ConfigurationOf | None = None


class ConsoleQueues:
    """The queues of a console, in the order in which they were given."""

    def __init__(self, queues: Iterable[ConsoleQueue]) -> None:
        self._queues: Mapping[QueueName, ConsoleQueue] = {each.name: each for each in queues}

    def __iter__(self) -> Iterator[ConsoleQueue]:
        return iter(self._queues.values())

    def find(self, namespace: str, name: str) -> ConsoleQueue | None:
        try:
            return self._queues.get(QueueName(namespace, name))
        except InvalidQueueName:
            return None


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
