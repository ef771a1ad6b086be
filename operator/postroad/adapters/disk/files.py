"""Files by system calls, in a pool of threads. One call of the port is one call of the kernel, as
tests/crash checks a trace of the process against the steps of the store.

The pool is not `concurrent.futures`: its futures, locks and wrappers cost more than most calls that
are made here take (35 us against 8 us), and every mail makes some."""

import asyncio
import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from postroad.errors import QueueClosed, StoreFailed, StoreFull, TooManyOpenFiles
from postroad.ports.files import DiskSpace

SHORT_OF = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the disk quota is used up",
    errno.EMFILE: "this process may open no more files",
    errno.ENFILE: "the system can open no more files",
}
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700


def short_of(error: OSError, purpose: str) -> StoreFull:
    """Return the error for a system that is short of what SHORT_OF has."""
    assert error.errno is not None
    kind = TooManyOpenFiles if error.errno in (errno.EMFILE, errno.ENFILE) else StoreFull
    return kind(f"{SHORT_OF[error.errno]} {purpose}")


class Translated:
    """Translates the system's errors into ours. The caller handles a missing or existing name. No
    generator, because that takes longer than all else here, for three calls a mail."""

    __slots__ = ("_name", "_what")

    def __init__(self, what: str, name: object) -> None:
        self._what, self._name = what, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | FileExistsError):
            return
        if error.errno in SHORT_OF:
            raise short_of(error, f"to {self._what} {self._name}") from error
        if error.errno == errno.ELOOP:
            raise StoreFailed(f"{self._name} is a symbolic link, which a store has none of")
        raise StoreFailed(f"cannot {self._what} {self._name}: {error.strerror}") from error


@contextmanager
def _all_of_it(what: str, name: object) -> Iterator[None]:
    """Translate also a missing or existing name, for calls that expect neither."""
    try:
        yield
    except (FileNotFoundError, FileExistsError) as error:
        raise StoreFailed(f"cannot {what} {name}: {error.strerror}") from error


def require_own(directory: Path) -> None:
    """Refuse a directory of another user, whose files this one would follow and change, and which
    would then have files that its user cannot open. Root's is allowed: a volume can be mounted so.
    Raises: StoreFailed."""
    user = os.geteuid()
    with Translated("stat", directory), _all_of_it("stat", directory):
        found = directory.stat()
        if found.st_uid not in (user, 0):
            raise StoreFailed(
                f"{directory} is a directory of another user ({found.st_uid}), and this one is"
                f" {user}",
                hint=f"run this as its user (setpriv --reuid {found.st_uid}), or chown it",
            )


def make_private(directory: Path) -> None:
    """Close a directory to all but its user, where that is this one. Raises: StoreFailed."""
    with Translated("chmod", directory), _all_of_it("chmod", directory):
        found = directory.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o077:
            directory.chmod(PRIVATE_DIRECTORY)


class DiskFile:
    """An open file descriptor."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name

    def pread(self, offset: int, length: int) -> bytes:
        with Translated("read", self._name):
            data = os.pread(self._descriptor, length, offset)
            while len(data) < length:
                more = os.pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def at_hand(self, offset: int, length: int) -> bytes | None:
        data = bytearray(length)
        try:
            read = os.preadv(self._descriptor, [data], offset, os.RWF_NOWAIT)
        except OSError:
            return None  # not in the page cache, or the file system does not support it
        return bytes(data) if read == length else None

    def pwrite(self, offset: int, *parts: bytes) -> None:
        with Translated("write", self._name):
            total = sum(map(len, parts))
            written = os.pwritev(self._descriptor, parts, offset)
            if written < total:
                self._write_rest(offset + written, b"".join(parts)[written:])

    def _write_rest(self, offset: int, data: bytes) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            offset, data = offset + written, data[written:]

    def append(self, data: bytes) -> None:
        self.pwrite(self.size(), data)

    def allocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, length)
        except OSError as error:
            if error.errno in SHORT_OF:
                raise short_of(error, f"to reserve {self._name}") from error
            # A file system that cannot allocate costs speed only.

    def truncate(self, length: int) -> None:
        with Translated("cut", self._name):
            os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        with Translated("sync", self._name):
            os.fdatasync(self._descriptor)

    def size(self) -> int:
        with Translated("stat", self._name):
            return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DiskLock:
    """A lock on an open file (flock): exclusive also between two handles of one process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DiskFiles:
    def open(self, path: PurePath, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        with Translated("open", path):
            return DiskFile(os.open(path, flags, PRIVATE_FILE), str(path))

    def names(self, directory: PurePath) -> list[str]:
        with Translated("list", directory):
            return [each.name for each in os.scandir(directory)]

    def make_directory(self, path: PurePath) -> None:
        with Translated("make", path), _all_of_it("make", path):
            Path(path).mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)

    def rename(self, source: PurePath, target: PurePath) -> None:
        with Translated("rename", source):
            Path(source).replace(target)

    def unlink(self, path: PurePath) -> None:
        with Translated("remove", path):
            Path(path).unlink(missing_ok=True)

    def sync_directory(self, path: PurePath) -> None:
        with Translated("sync", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def room(self, path: PurePath) -> DiskSpace:
        with Translated("stat", path):
            found = os.statvfs(path)
        inodes = found.f_favail if found.f_files else None
        return DiskSpace(found.f_bavail * found.f_frsize, inodes, found.f_blocks * found.f_frsize)

    def lock(self, path: PurePath) -> DiskLock | None:
        with Translated("lock", path), _all_of_it("lock", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, PRIVATE_FILE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                raise
        return DiskLock(descriptor)


Result = TypeVar("Result")
FileCall = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any] | None, tuple[Any, ...]
]
"""The future of a call with its loop, the function (None ends the thread), and its arguments."""

Box = SimpleQueue[FileCall]
"""Task that one thread is to do."""


class ThreadPool:
    """At most `count` calls at a time, the rest in order. For one event loop. A call goes to the
    thread that became idle last, because the processor still has what it needs in its caches: with
    one box for all, the threads take turns, and each call costs more. The threads are daemons: they
    end with the process, because to stop is to crash."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._boxes: list[Box] = []
        self._idle: list[Box] = []
        self._waiting: deque[FileCall] = deque()
        self._handing_out = Lock()
        """Held while a call looks for an idle thread, or a thread for a call."""
        self._is_closed = False

    def run(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        if self._is_closed:
            raise QueueClosed
        call = _call_of(work, arguments)
        if (box := self._box_for(call)) is not None:
            box.put(call)
        return call[1]

    def _box_for(self, call: FileCall) -> Box | None:
        """Return the box of an idle thread, or of a new one; None where the call waits for one."""
        with self._handing_out:
            if self._idle:
                return self._idle.pop()
            if len(self._boxes) == self._count:
                self._waiting.append(call)
                return None
        box = Box()
        name = f"{self._name}-{len(self._boxes) + 1}"
        Thread(target=self._work, args=(box,), name=name, daemon=True).start()
        self._boxes.append(box)  # behind the start: the system may refuse a thread
        return box

    def _is_free(self, box: Box) -> None:
        """Give a thread the next call that waits, or note that it is idle."""
        with self._handing_out:
            if self._waiting:
                box.put(self._waiting.popleft())  # here: else `close` could end the thread before
            else:
                self._idle.append(box)

    async def close(self) -> None:
        self._is_closed = True
        with self._handing_out:
            dropped, self._waiting = self._waiting, deque()
        for _, future, _, _ in dropped:
            _resolve(future, None, QueueClosed())
        boxes, self._boxes = self._boxes, []
        ends = [_call_of(None, ()) for _ in boxes]
        for box, end in zip(boxes, ends, strict=True):
            box.put(end)
        if ends:
            await asyncio.wait([future for _, future, _, _ in ends])

    def _work(self, box: Box) -> None:
        is_open = True
        while is_open:
            loop, future, work, arguments = box.get()
            result: Any = None
            error: BaseException | None = None
            try:
                if work is None:
                    is_open = False
                else:
                    result = work(*arguments)
            except BaseException as raised:  # the caller handles it
                error = raised
            self._is_free(box)  # first: who gets the result may make the next call at once
            try:
                loop.call_soon_threadsafe(_resolve, future, result, error)
            except RuntimeError:
                pass  # the loop is closed, so no caller waits
            del (
                future,
                loop,
                work,
                arguments,
                result,
                error,
            )  # so that a waiting thread keeps none of them alive


def _call_of(work: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> FileCall:
    loop = asyncio.get_running_loop()
    return loop, loop.create_future(), work, arguments


def _resolve(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
