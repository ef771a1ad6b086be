"""Detects that a file has changed since a process read it."""

from pathlib import Path

FileStamp = tuple[int, ...]
"""Numbers that differ after a change of a file; none when it is missing."""


def stamp_of(path: Path) -> FileStamp:
    """Return the stamp of a file, by one system call. Take it before the file is read: a change
    meanwhile is seen then."""
    try:
        its = path.stat()
    except OSError:
        return ()
    return its.st_dev, its.st_ino, its.st_size, its.st_mtime_ns, its.st_ctime_ns
