"""A file system that remembers exactly what it promised, and can forget all the rest.

`LossyFiles` is `ports.files` in memory. It writes a journal of everything that was asked of it;
`survivors` makes the file system that a power cut at any point of the journal may leave: of the
writes that no sync covered, any subset, whole, cut or torn; of the names, any subset of changes
that no directory sync covered (spool/FORMAT.md, A1 to A4). What happens outside (a mail accepted, a
reply from a next hop) is noted in the same journal, so that a cut knows what had been promised.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypeVar

from postroad.errors import PostroadError, StoreFailed
from postroad.ports.files import DiskSpace

SECTOR = 512
BLOCK = 4096
T = TypeVar("T")


class Bytes:
    """A file's content in blocks that copies share, so that a thousand disks fit into memory."""

    __slots__ = ("blocks", "length")

    def __init__(self, blocks: dict[int, bytes] | None = None, length: int = 0) -> None:
        self.blocks = {} if blocks is None else blocks
        self.length = length

    def copy(self) -> Bytes:
        return Bytes(dict(self.blocks), self.length)

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.length - offset))
        first, last = offset // BLOCK, (offset + length - 1) // BLOCK
        zero = bytes(BLOCK)
        data = b"".join([self.blocks.get(each, zero) for each in range(first, last + 1)])
        return data[offset - first * BLOCK :][:length] if length else b""

    def write(self, offset: int, data: bytes) -> None:
        self.length = max(self.length, offset + len(data))
        at = 0
        while at < len(data):
            number, start = divmod(offset + at, BLOCK)
            piece = data[at : at + BLOCK - start]
            block = self.blocks.get(number, bytes(BLOCK))
            self.blocks[number] = block[:start] + piece + block[start + len(piece) :]
            at += len(piece)

    def truncate(self, length: int) -> None:
        if length < self.length:
            number, start = divmod(length, BLOCK)
            self.blocks = {each: block for each, block in self.blocks.items() if each <= number}
            if number in self.blocks:
                self.blocks[number] = self.blocks[number][:start].ljust(BLOCK, b"\0")
        self.length = length


@dataclass(frozen=True, slots=True)
class Write:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    inode: int
    length: int


@dataclass(frozen=True, slots=True)
class Sync:
    inode: int


@dataclass(frozen=True, slots=True)
class Name:
    """A change of a directory: `name` now means `inode`, or nothing; `gone`, which may be in
    another directory, ceases with it."""

    directory: PurePath
    name: str
    inode: int | None
    gone: PurePath | None = None


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    directory: PurePath


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the world outside saw, or asked for."""

    kind: str
    mail: str
    recipients: tuple[str, ...] = ()


Step = Write | Truncate | Sync | Name | SyncDirectory | Event
Fate = Literal["lost", "whole", "torn"]


@dataclass
class Disk:
    """What a file system holds: inodes, and the names in directories."""

    inodes: dict[int, Bytes] = field(default_factory=dict)
    names: dict[PurePath, dict[str, int]] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk(
            {number: content.copy() for number, content in self.inodes.items()},
            {directory: dict(names) for directory, names in self.names.items()},
        )

    def apply(self, step: Step) -> None:
        match step:
            case Write(inode, offset, data):
                self.inodes.setdefault(inode, Bytes()).write(offset, data)
            case Truncate(inode, length):
                self.inodes.setdefault(inode, Bytes()).truncate(length)
            case Name(directory, name, inode, gone):
                entries = self.names.setdefault(directory, {})
                if gone is not None:
                    self.names.get(gone.parent, {}).pop(gone.name, None)
                if inode is None:
                    entries.pop(name, None)
                else:
                    entries[name] = inode
                    self.inodes.setdefault(inode, Bytes())
            case _:
                pass


@dataclass
class Journal:
    """A disk as it was, and what was done to it since."""

    start: Disk
    steps: list[Step] = field(default_factory=list)

    def events(self, cut: int) -> list[Event]:
        return [step for step in self.steps[:cut] if isinstance(step, Event)]

    def cuts(self) -> Iterator[int]:
        """Yield every point at which a cut makes a difference."""
        for number, step in enumerate(self.steps, 1):
            if not isinstance(step, Event) or number == len(self.steps):
                yield number

    def unproven(self, cut: int) -> tuple[Disk, list[Step]]:
        """Return what is durable at a cut, and the changes that nothing vouches for."""
        disk, pending = self.start.copy(), list[Step]()
        for step in self.steps[:cut]:
            if isinstance(step, Sync | SyncDirectory):
                pending = self._settle(disk, pending, step)
            elif not isinstance(step, Event):
                pending.append(step)
        return disk, pending

    @staticmethod
    def _settle(disk: Disk, pending: list[Step], sync: Sync | SyncDirectory) -> list[Step]:
        left: list[Step] = []
        for step in pending:
            if isinstance(sync, Sync):
                is_covered = isinstance(step, Write | Truncate) and step.inode == sync.inode
            else:
                is_covered = isinstance(step, Name) and step.directory == sync.directory
            if is_covered:
                disk.apply(step)
            else:
                left.append(step)
        return left


def survivors(proven: Disk, pending: list[Step], fates: Sequence[Fate], seed: str) -> Disk:
    """Return the disk on which these changes, that nothing vouched for, met these fates."""
    disk, randomness = proven.copy(), random.Random(seed)
    for step, fate in zip(pending, fates, strict=True):
        if fate == "whole":
            disk.apply(step)
        elif fate == "torn" and isinstance(step, Write):
            for piece in _torn(step, randomness):
                disk.apply(piece)
        elif isinstance(step, Write) and randomness.random() < 0.3:
            content = disk.inodes.setdefault(step.inode, Bytes())  # the length came, no byte
            content.length = max(content.length, step.offset + len(step.data))
    return disk


def _torn(write: Write, randomness: random.Random) -> Iterator[Write]:
    """Yield what is left of a write: some of its sectors, one of them cut at some byte."""
    start, end = write.offset, write.offset + len(write.data)
    edges = [start, *range((start // SECTOR + 1) * SECTOR, end, SECTOR), end]
    for first, last in itertools.pairwise(edges):
        if randomness.random() < 0.5:
            stop = last if randomness.random() < 0.5 else randomness.randint(first, last)
            yield Write(write.inode, first, write.data[first - start : stop - start])


class LossyFile:
    """An open file."""

    def __init__(self, files: LossyFiles, inode: int) -> None:
        self._files, self._inode = files, inode
        self._is_open = True
        files.open_files += 1

    def pread(self, offset: int, length: int) -> bytes:
        self._ask("read")
        return self._files.disk.inodes[self._inode].read(offset, length)

    def at_hand(self, offset: int, length: int) -> bytes | None:
        data = self.pread(offset, length)
        return data if len(data) == length else None

    def pwrite(self, offset: int, *parts: bytes) -> None:
        """Each part meets a fate of its own: that they were one call promises nothing."""
        self._ask("write")
        for part in parts:
            self._files.do(Write(self._inode, offset, part))
            offset += len(part)

    def append(self, data: bytes) -> None:
        self.pwrite(self.size(), data)

    def allocate(self, length: int) -> None:
        self._ask("allocate")

    def truncate(self, length: int) -> None:
        self._ask("truncate")
        self._files.do(Truncate(self._inode, length))

    def sync(self) -> None:
        self._ask("sync")
        self._files.do(Sync(self._inode))

    def size(self) -> int:
        return self._files.disk.inodes[self._inode].length

    def close(self) -> None:
        self._files.open_files -= self._is_open
        self._is_open = False

    def _ask(self, what: str) -> None:
        self._files.ask(what)
        if not self._is_open:
            raise StoreFailed(f"cannot {what}: Bad file descriptor")


class LossyLock:
    """A lock on nothing: one process at a time is the test's own doing."""

    descriptor = -1

    def release(self) -> None:
        pass


class LossyFiles:
    """A file system in memory. `fail` maps the number of a call to the error it gets."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.journal = Journal(self.disk.copy())
        self.calls = 0
        self.open_files = 0
        self.free = DiskSpace(1 << 40, 1 << 30)
        self.fail: dict[int, PostroadError] = {}
        self._inodes = max(self.disk.inodes, default=0)

    def ask(self, what: str) -> None:
        """Count a call, or let it fail."""
        self.calls += 1
        if (error := self.fail.get(self.calls)) is not None:
            raise error

    def do(self, step: Step) -> None:
        """Do what was asked, and write it down."""
        self.disk.apply(step)
        self.journal.steps.append(step)

    def note(self, kind: str, mail: str, recipients: tuple[str, ...] = ()) -> None:
        """Write down what the world outside saw."""
        self.journal.steps.append(Event(kind, mail, recipients))

    def open(self, path: PurePath, *, create: bool = False) -> LossyFile:
        self.ask("open")
        known = self.disk.names.get(path.parent, {}).get(path.name)
        if create:
            if known is not None:
                raise FileExistsError(str(path))
            self._inodes += 1
            known = self._inodes
            self.do(Name(path.parent, path.name, known))
        elif known is None:
            raise FileNotFoundError(str(path))
        return self.file_of(known)

    def file_of(self, inode: int) -> LossyFile:
        return LossyFile(self, inode)

    def names(self, directory: PurePath) -> list[str]:
        self.ask("list")
        children = {each.name for each in self.disk.names if each.parent == directory}
        if directory not in self.disk.names:
            raise FileNotFoundError(str(directory))
        return sorted({*self.disk.names[directory], *children} - {""})

    def make_directory(self, path: PurePath) -> None:
        """Directories are durable at once: whether a name without content is there proves nothing
        that the files in it do not."""
        self.ask("make")
        for each in (path, *path.parents):
            self.disk.names.setdefault(each, {})
            self.journal.start.names.setdefault(each, {})

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.ask("rename")
        inode = self.disk.names[source.parent][source.name]
        self.do(Name(target.parent, target.name, inode, gone=source))

    def unlink(self, path: PurePath) -> None:
        self.ask("unlink")
        if path.name in self.disk.names.get(path.parent, {}):
            self.do(Name(path.parent, path.name, None))

    def sync_directory(self, path: PurePath) -> None:
        self.ask("sync directory")
        self.do(SyncDirectory(path))

    def room(self, path: PurePath) -> DiskSpace:
        return self.free

    def lock(self, path: PurePath) -> LossyLock | None:
        return LossyLock()
