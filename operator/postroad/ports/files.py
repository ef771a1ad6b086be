"""File system, as the embedded store needs it, small enough for a test double that loses data.

Durability is exactly what `sync` and `sync_directory` promise and nothing more (embedded/FORMAT.md,
A1 to A6); a test double may lose everything else. Calls block: the store makes them in `Threads`,
or where no caller waits (recovery's short reads).

Errors: StoreFull when space, inodes or descriptors are short, StoreFailed for anything else that
the system reports. Nothing is retried here."""

from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import Protocol, TypeVar

from postroad.domain.values.frozen import value

Result = TypeVar("Result")


@value
class DiskSpace:
    """Free space on a file system. `inodes` is None where it does not count them; `total_bytes`,
    also of what is used, where it is not known."""

    bytes: int
    inodes: int | None
    total_bytes: int | None = None


class File(Protocol):
    """An open file. Different offsets may be used by different threads at the same time."""

    def pread(self, offset: int, length: int) -> bytes:
        """Return `length` bytes; fewer only at the end of the file."""

    def at_hand(self, offset: int, length: int) -> bytes | None:
        """Return `length` bytes if they are in memory, without ever waiting for the disk; None when
        they are not, or not all."""

    def pwrite(self, offset: int, *parts: bytes) -> None:
        """Write the parts one after the other from `offset`, all of them. Not durable."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end. Not durable. For files that only one thread grows."""

    def allocate(self, length: int) -> None:
        """Reserve blocks up to `length`, so that filling them needs no space. Best effort."""

    def truncate(self, length: int) -> None:
        """Cut the file. Not durable."""

    def sync(self) -> None:
        """Make durable what was written before, and the length. After an error the file's content
        is unknown (A1)."""

    def size(self) -> int: ...

    def close(self) -> None:
        """Release the descriptor. Promises nothing. Idempotent."""


class Lock(Protocol):
    """A held lock; it ends with the process at the latest."""

    @property
    def descriptor(self) -> int:
        """Descriptors that a child can inherit: the lock is then held until both have ended."""

    def release(self) -> None:
        """Release the lock for other processes. Idempotent."""


class Files(Protocol):
    """A file system. Paths are absolute. A missing file is FileNotFoundError everywhere."""

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, make a new file (FileExistsError when it
        is there). The new name is not durable."""

    def names(self, directory: PurePath) -> list[str]:
        """Return the names in a directory, in no order. FileNotFoundError when it is missing."""

    def make_directory(self, path: PurePath) -> None:
        """Create a directory and its missing parents. Idempotent. Not durable."""

    def rename(self, source: PurePath, target: PurePath) -> None:
        """Give a file another name, replacing the target at once. Not durable."""

    def unlink(self, path: PurePath) -> None:
        """Remove a name. Idempotent. Not durable."""

    def sync_directory(self, path: PurePath) -> None:
        """Make durable which names a directory holds."""

    def room(self, path: PurePath) -> DiskSpace:
        """Return what is free where `path` lies."""

    def lock(self, path: PurePath) -> Lock | None:
        """Take the lock, or return None at once when it is taken, in this process or another."""


class Threads(Protocol):
    """Pools in which blocking calls are made, so that the event loop goes on."""

    def run(self, work: Callable[..., Result], *arguments: object) -> Awaitable[Result]:
        """Run `work` in a thread, from now on; what is returned can be awaited once. When the
        caller is cancelled, the work still goes on."""

    async def close(self) -> None:
        """Drop what has not begun, whose callers get QueueClosed, and return when nothing is under
        way any more. What is asked for afterwards gets QueueClosed too. Idempotent."""
