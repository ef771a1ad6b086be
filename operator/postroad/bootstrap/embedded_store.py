"""Wires the embedded engine to the machine: its file system, its threads, its clocks."""

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote

from postroad import errors
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.disk.event_spool import FileEventSpool
from postroad.adapters.disk.files import DiskFiles, ThreadPool, make_private, require_own
from postroad.adapters.disk.shared_state import DirectorySharedState
from postroad.adapters.disk.suppression_list import FileSuppressionList
from postroad.bootstrap.engine import OpenRequest
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.options import KEPT_OPEN, FreeSpace, StoreLimits, StoreOptions
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.embedded.mail_queue import EmbeddedQueue
from postroad.embedded.offline_tools.rebuild import Rebuilt, rebuild
from postroad.embedded.offline_tools.verification import StoreReport, dump, verify
from postroad.embedded.opening import NOT_CREATED, describe, open_store
from postroad.embedded.rpc.receiver import SpoolReceiver
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.maintenance import Maintenance
from postroad.ports.mail_queue import MailQueue

LOG_THREADS = 4
"""Lanes that can be written at the same time; nearly always one is."""

MAIL_THREADS = 16
"""Spool files that can be written and synced at the same time, so that the disk merges syncs."""


async def open_requested(request: OpenRequest) -> MailQueue:
    """Open `embedded:///DIR`, with `?mail=DIR` for spool files on another disk than the log's. The
    retry lanes may differ from those of the last opening. Raises: InvalidQueueURL, QueueNotFound,
    StoreDamaged, StoreFailed, StoreUnavailable."""
    url = request.url
    root = root_of(url)
    elsewhere = parse_qs(url.query).get("mail")
    mail = None if elsewhere is None else Path(elsewhere[-1])
    retry = request.settings.retry
    options = StoreOptions(steps=retry.lanes, dead_letter_lifetime=retry.dead_letter_lifetime)
    return await open_directory(
        root, create=request.create, mail=mail, options=options, lock=request.lock
    )


def root_of(url: SplitResult) -> Path:
    """Return the directory of a store by its URL. Raises: InvalidQueueURL."""
    root = Path(unquote(url.path))
    if url.netloc or not root.is_absolute() or root == Path("/") or "\0" in str(root):
        raise errors.InvalidQueueURL("write embedded:///DIR, with an absolute path without NUL")
    return root


def _missing(root: Path) -> errors.PostroadError:
    """Return the error of a path that has no directory."""
    if not (found := _nearest(root)).is_dir():
        return errors.InvalidQueueURL(f"{found} is no directory", hint="name the queue's directory")
    return errors.QueueNotFound(f"there is no directory {root}", hint=NOT_CREATED)


_NEVER = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG),
)
"""Reasons that waiting does not mend, such as of a path in `/proc`."""


def _make(files: DiskFiles, root: Path) -> None:
    """Make the directory of a store. Raises: InvalidQueueURL where it can never be made,
    StoreFailed, StoreFull."""
    try:
        files.make_directory(root)
    except errors.StoreFailed as error:
        reason = error.__cause__
        if not isinstance(reason, OSError) or reason.errno not in _NEVER:
            raise
        raise errors.InvalidQueueURL(
            f"{root} cannot be made: {reason.strerror}",
            hint="name a directory that this user may make",
        ) from error


BEFORE_A_STORE = frozenset(("log", "mail", "checkpoint", "store.new", "lock", "lost+found"))
"""Names that an interrupted creation leaves, and that a volume has."""


def _take(files: DiskFiles, root: Path, *, create: bool = False, mail: Path | None = None) -> None:
    """Close the directory of a store to other users; with `create` also one that becomes one, and
    may have that of `mail` in it. Any other stays as it is: closed, /tmp or /etc would stop all
    else on the machine. Raises: StoreFailed, StoreDamaged, QueueNotFound, InvalidQueueURL."""
    require_own(root)
    has_store = (root / "store").exists()
    if create and not has_store:
        _refuse_others(root, mail)
    elif not has_store and (root / "lock").exists():
        return  # another process makes it at this moment: its lock is waited for
    else:
        describe(files, root, StoreOptions(), create=False)
    make_private(root)


def _refuse_others(root: Path, mail: Path | None) -> None:
    """Refuse a directory with files that are no store's. Raises: InvalidQueueURL."""
    names = {each.name for each in root.iterdir()}
    others = names - BEFORE_A_STORE
    if mail is not None and mail.is_relative_to(root):
        others -= set(mail.relative_to(root).parts[:1])
    if others and "store" not in names:  # else another process has made it meanwhile
        raise errors.InvalidQueueURL(
            f"{root} has other files, as {min(others)}, and no store",
            hint="name a directory that is empty, or that is not there yet",
        )


def _nearest(root: Path) -> Path:
    """Return what is at a path, or at the one above it, and so on; what this user may not look at
    counts as missing."""
    return next(each for each in (root, *root.parents) if os.path.exists(each))  # noqa: PTH110


@contextmanager
def locked(root: Path) -> Iterator[tuple[DiskFiles, Layout, StoreOptions]]:
    """Lock a store that no process owns. Raises: QueueNotFound, StoreDamaged, StoreInUse."""
    files = DiskFiles()
    if not root.is_dir():
        raise _missing(root)
    _take(files, root)
    lock = files.lock(Layout(root, root).lock)
    if lock is None:
        raise errors.StoreInUse(f"a process owns {root}")
    try:
        yield files, *describe(files, root, StoreOptions(), create=False)
    finally:
        lock.release()


def verify_directory(root: Path) -> StoreReport:
    with locked(root) as (files, layout, _):
        return verify(files, layout)


def dump_directory(root: Path) -> Iterator[dict[str, Any]]:
    with locked(root) as (files, layout, _):
        yield from dump(files, layout)


async def rebuild_directory(root: Path) -> Rebuilt:
    """Write a new log from the spool files of a store."""
    with locked(root) as (files, layout, options):
        engine = _engine(files, layout, options)
        try:
            return await rebuild(engine)
        finally:
            await engine.close()


def _engine(files: DiskFiles, layout: Layout, options: StoreOptions) -> Engine:
    return Engine(
        files,
        layout,
        replace(options, kept_open=_kept_open()),
        MachineClock(),
        SystemRandomness(),
        ThreadPool(LOG_THREADS, "log"),
        ThreadPool(MAIL_THREADS, "mail"),
    )


def _kept_open() -> int:
    """Return how many idle spool files stay open: most descriptors are for connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return KEPT_OPEN if limit < 0 else min(KEPT_OPEN, limit // 8)


async def open_directory(
    root: Path,
    *,
    create: bool = False,
    mail: Path | None = None,
    options: StoreOptions | None = None,
    lock: int | None = None,
) -> EmbeddedQueue:
    """Open the store in `root`, with `create` also a missing one. `lock`: the descriptor of its
    lock, inherited from the process that owns it."""
    if not hasattr(os, "posix_fallocate"):  # macOS has neither this nor fdatasync
        raise errors.NotInstalled(
            "the embedded engine needs Linux", hint="use a virtual machine or WSL 2"
        )
    files = DiskFiles()
    if create and _nearest(root).is_dir():
        await asyncio.to_thread(_make, files, root)
    elif not await asyncio.to_thread(os.path.isdir, root):
        raise _missing(root)
    await asyncio.to_thread(_take, files, root, create=create, mail=mail)

    async def engine() -> tuple[Engine, Maintenance]:
        layout, stored = await asyncio.to_thread(
            describe, files, root, options or StoreOptions(), create=create, mail=mail
        )
        opened = _engine(files, layout, stored)
        try:
            return opened, await open_store(opened)
        except BaseException:
            await opened.close()
            raise

    receiver = None if lock is None else await asyncio.to_thread(_receiver, files, root, lock)
    layout, clock = Layout(root, root), MachineClock()
    shared_state = DirectorySharedState(root / "shared_state", clock)
    suppressed = FileSuppressionList(root / "suppressed.sqlite")
    events = FileEventSpool(root / "events.sqlite")
    queue = EmbeddedQueue(
        str(root), files, layout, clock, engine, receiver, shared_state, suppressed, events
    )
    opened = await queue.open()
    layout, _ = await asyncio.to_thread(describe, files, root, StoreOptions(), create=False)
    opened.incoming = Path(layout.incoming)
    return opened


def _receiver(files: DiskFiles, root: Path, lock: int) -> SpoolReceiver:
    """Return the receiver that stores for the owner. Raises: InvalidInput for another `lock`."""
    layout, options = describe(files, root, StoreOptions(), create=False)
    try:
        is_lock = os.path.samestat(os.fstat(lock), Path(layout.lock).stat())
    except OSError:
        is_lock = False
    if not is_lock:
        raise errors.InvalidInput(f"descriptor {lock} is not the lock on {root}")
    os.set_inheritable(lock, False)
    clock = MachineClock()
    limits = StoreLimits(options, FreeSpace(files, layout, lambda: clock.elapsed().total_seconds()))
    threads = ThreadPool(MAIL_THREADS, "mail")
    return SpoolReceiver(
        SpoolFiles(files, layout, _kept_open()), limits, clock, SystemRandomness(), threads
    )
