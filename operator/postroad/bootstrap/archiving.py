"""A queue whose history is kept, without opening it: its view, and what Spark needs to read its
tables and its lake.

A store in a directory whose history is kept, without opening it: its archive, and the directory
of its lake, which is that of one queue and has one writer at a time."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from postroad import errors
from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.disk.files import DiskFiles
from postroad.adapters.s3.clients import Access as S3Access
from postroad.bootstrap import open_queue
from postroad.bootstrap.cluster import ClusterServers, bucket_of, cassandra_access, s3_access
from postroad.bootstrap.embedded_store import root_of
from postroad.bootstrap.engine import check_parts
from postroad.distributed.administration.administration import EntryChange
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.history import (
    ConfigurationEvent,
    first_rollout,
    writing_and_reading,
)
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import EntryKey
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe
from postroad.ports.clock import Clock
from postroad.ports.files import Lock
from postroad.ports.servers import Servers
from postroad.ports.view import View
from postroad.settings import Settings, from_environment


@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """`events`: its configuration history. `reading`: the configurations that rows may have been
    written with. `bucket`: that of its bytes, and of its lake."""

    name: QueueName
    servers: Servers
    view: View
    events: tuple[ConfigurationEvent, ...]
    reading: tuple[ViewConfiguration, ...]
    row_lifetime: timedelta
    cassandra: CassandraAccess
    s3: S3Access
    bucket: str


@asynccontextmanager
async def open_archived(url: str, settings: Settings, instead: str) -> AsyncIterator[ArchivedQueue]:
    """Open a queue with tables, by its URL. `instead`: what serves one without. Raises:
    InvalidQueueURL, InvalidQueueName, QueueNotFound, ServerError."""
    parts = urlsplit(url)
    check_parts(parts)
    if parts.scheme != "distributed":
        raise errors.InvalidQueueURL(
            f"{url!r} has no tables for Spark, as distributed://NAMESPACE.NAME has: {instead}"
        )
    name = QueueName.parse(parts.netloc)
    servers = ClusterServers(settings)
    try:
        row_lifetime = await servers.views().row_lifetime()
        recorded = None if row_lifetime is None else await servers.history(name).load()
        if row_lifetime is None or recorded is None or not recorded.events:
            raise errors.QueueNotFound(f"the queue {name} was never created")
        rollout = recorded.rollout or first_rollout(recorded.events)
        bucket = bucket_of(settings, name)
        if not await servers.blobs(bucket).exists():
            raise errors.BlobsRefused(f"the bucket {bucket} of the queue {name} is missing")
        yield ArchivedQueue(
            name=name,
            servers=servers,
            view=servers.views().view(str(name)),
            events=tuple(recorded.events),
            reading=tuple(writing_and_reading(recorded.events, rollout)[1]),
            row_lifetime=row_lifetime,
            cassandra=cassandra_access(settings),
            s3=s3_access(settings),
            bucket=bucket,
        )
    finally:
        await servers.close()


def list_keys(bucket: str, ranges: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """Return the keys of a bucket in some ranges: those with a prefix, after one key, and up to
    another (None: all). For processes that Spark starts: the environment names the store. Raises:
    InvalidSettings, ServerError."""
    return asyncio.run(_list_keys(bucket, ranges))


async def _list_keys(bucket: str, ranges: Sequence[tuple[str, str, str | None]]) -> list[str]:
    servers = ClusterServers(from_environment())
    try:
        found: list[str] = []
        for prefix, after, through in ranges:
            async for key in servers.blobs(bucket).keys(prefix, after):
                if through is not None and key > through:
                    break
                found.append(key)
        return found
    finally:
        await servers.close()


def change_entries(
    url: str, change: EntryChange, selector: Selector, keys: Sequence[EntryKey]
) -> int:
    """Open a queue of the distributed engine, and let it change the selected mails that wait under
    these entries; return how many. For processes that Spark starts: the environment names the
    servers. Raises: ServerError, ClockSkew, ConfigurationStale."""
    return asyncio.run(_change_entries(url, change, selector, keys))


async def _change_entries(
    url: str, change: EntryChange, selector: Selector, keys: Sequence[EntryKey]
) -> int:
    async with open_queue(url) as queue:
        assert isinstance(queue, DistributedQueue)
        return await queue.change_found(change, keys, selector)


LOCK = "lock"
"""The file of a lake's directory that one writer locks at a time."""

QUEUE = "queue"
"""The file of a lake's directory that names the directory of its queue."""

TRIED_AGAIN = timedelta(seconds=1)
"""Interval at which a run that waits for another one tries to lock."""


def is_in_a_directory(url: str) -> bool:
    """True if a URL names a queue in a directory. Raises: InvalidQueueURL."""
    try:
        return urlsplit(url).scheme == "embedded"
    except ValueError as error:
        raise errors.InvalidQueueURL(f"{url!r} is no URL: {error}") from error


def begin_archive(url: str) -> Layout:
    """Return the layout of a store; make its archive where it is not archived yet, for the user
    whose processes own the store. Raises: InvalidQueueURL, InvalidInput for a user who may not,
    QueueNotFound, StoreDamaged, StoreFailed."""
    parts = urlsplit(url)
    check_parts(parts)
    root, files = root_of(parts), DiskFiles()
    owner = _owner(root)
    layout, _ = describe(files, root, StoreOptions(), create=False)
    folder = Path(layout.archive)
    if not folder.exists():
        draft = root / "archive.new"  # the store must not find one that it may not write
        files.make_directory(draft)
        _give(draft, owner)
        files.rename(draft, folder)
        files.sync_directory(root)
        return layout
    _give(folder, owner)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise errors.InvalidInput(f"{folder} cannot be written: give it to {_user(owner)}")
    return layout


def _owner(root: Path) -> os.stat_result | None:
    """Return whose files a store has, None without. Raises: InvalidInput where unreadable."""
    try:
        found = Path(Layout(root, root).store).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.InvalidInput(f"{root} cannot be read: {error.strerror}") from error
    if os.geteuid() not in (0, found.st_uid):
        raise errors.InvalidInput(
            f"the files of {root} are for the user who owns them: run this as root, or as "
            + _user(found)
        )
    return found


def _user(owner: os.stat_result | None) -> str:
    return "the user of the store" if owner is None else f"the user with id {owner.st_uid}"


def _give(folder: Path, owner: os.stat_result | None) -> None:
    """Let the processes that own the store write a directory that root made."""
    if owner is not None and os.geteuid() == 0:
        # The store's user may have a link there, to what is not for that user.
        os.chown(folder, owner.st_uid, owner.st_gid, follow_symlinks=False)


def name_of(url: str) -> str:
    """Return what a queue in a directory is called in answers. Raises: InvalidQueueURL."""
    return os.path.realpath(root_of(urlsplit(url)))


def lake_of(url: str, folder: Path) -> Path:
    """Return the directory of a lake as every run spells it. Raises: InvalidInput for one inside
    its store, whose own lock it would take; InvalidQueueURL."""
    # Two slashes at the start are another root for Python, and a host for Hadoop.
    place = Path("/", *Path(os.path.realpath(folder)).parts[1:])
    if place.is_relative_to(name_of(url)):
        raise errors.InvalidInput(
            f"--lake {folder} lies in the store: name a directory outside of it"
        )
    return place


def check_lake(folder: Path, name: str) -> None:
    """Refuse a lake in a directory that is known as another queue's. Raises: InvalidInput."""
    try:
        known = os.fsdecode((folder / QUEUE).read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise errors.InvalidInput(f"{folder} cannot be read: {error.strerror}") from error
    if known != name:
        raise errors.InvalidInput(
            f"the lake in {folder} is that of the queue in {known}: name another directory with "
            f"--lake; if that queue was moved to {name}, delete {folder / QUEUE}"
        )


class LakeLock:
    """The lock of a lake's directory, while a run writes the lake of the queue of this name. It
    ends with the process. `patience`: how long it waits for a run that is under way. Raises on
    entry: ArchiveUnderWay, StoreFailed, InvalidInput for the lake of another queue."""

    def __init__(self, folder: Path, name: str, clock: Clock, patience: timedelta) -> None:
        self._folder, self._name = folder, name
        self._clock, self._patience = clock, patience
        self._lock: Lock | None = None

    async def __aenter__(self) -> Self:
        files = DiskFiles()
        files.make_directory(self._folder)
        self._lock = await self._taken(files)
        try:
            check_lake(self._folder, self._name)
            _name_queue(files, self._folder, self._name)
        except BaseException:
            self._lock.release()
            raise
        return self

    async def _taken(self, files: DiskFiles) -> Lock:
        patient_until = self._clock.elapsed() + self._patience
        while (lock := files.lock(self._folder / LOCK)) is None:
            if self._clock.elapsed() >= patient_until:
                raise errors.ArchiveUnderWay(
                    f"another run writes the lake in {self._folder}", hint="wait for its end"
                )
            await self._clock.sleep(TRIED_AGAIN)
        return lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.release()

    async def renew(self) -> None:
        """Nothing: a lock does not lapse."""


def _name_queue(files: DiskFiles, folder: Path, name: str) -> None:
    """Let the lake be that of a queue, before the first line of it is there. Idempotent."""
    draft = folder / f"{QUEUE}.new"
    if (folder / QUEUE).exists():
        return
    files.unlink(draft)
    file = files.open(draft, create=True)
    file.pwrite(0, os.fsencode(name))
    file.sync()
    file.close()
    draft.chmod(0o644)  # who may read the lake may read whose it is
    files.rename(draft, folder / QUEUE)
    files.sync_directory(folder)
