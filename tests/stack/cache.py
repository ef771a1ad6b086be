"""Keeps what is built or downloaded once, keyed by everything that decides its content.

An entry appears whole or not at all: its maker works under a temporary name and renames it when it
is complete. One process makes an entry at a time; others wait for that process instead of building
the same again.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stack import folders, locks
from stack.errors import StepFailed
from stack.progress import Progress

_children: set[subprocess.Popen[bytes]] = set()
_children_lock = threading.Lock()


@dataclass(frozen=True)
class Entry:
    """One thing in the cache, and how it is made."""

    name: str
    key: str
    description: str
    """The line of progress while the entry is made, with a hint how long that takes."""
    make: Callable[[Path, Path], None]
    """Fills a folder; its second argument is the log of all commands it runs."""

    @property
    def path(self) -> Path:
        """The folder of the entry; it exists when the entry is complete."""
        return folders.cache_directory() / self.name / self.key

    @property
    def log(self) -> Path:
        """The output of the commands that made it."""
        return folders.cache_directory() / "logs" / f"{self.name}-{self.key}.log"

    def ensure(self, progress: Progress) -> Path:
        """Make the entry unless it is there; returns its folder."""
        if self.path.is_dir():
            return self.path
        lock = folders.cache_directory() / "locks" / f"{self.name}-{self.key}"
        waiting = f"{self.description}: another process is at it, waiting"
        with locks.held(lock, lambda: progress.say(waiting)):
            if not self.path.is_dir():
                with progress.step(self.description):
                    self._make()
        return self.path

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # The process that left a partial folder has ended: this one holds the entry's lock.
        for left in self.path.parent.glob(f"{self.key}.partial-*"):
            remove_tree(left)
        partial = self.path.with_name(f"{self.key}.partial-{os.getpid()}")
        partial.mkdir()
        self.log.write_bytes(b"")
        try:
            self.make(partial, self.log)
            partial.rename(self.path)
        except (subprocess.CalledProcessError, OSError) as error:
            with self.log.open("a") as log:
                print(error, file=log)
            raise StepFailed(self.description, self.log) from error
        finally:
            remove_tree(partial)


def key_of(*parts: str | bytes | Path) -> str:
    """Return a key from texts and the contents of files (or of all files in a folder)."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(path for path in part.rglob("*") if path.is_file()) or [part]
            for file in files:
                digest.update(f"{file.relative_to(part)}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        else:
            content = part.encode() if isinstance(part, str) else part
            digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:12]


def run(
    command: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> None:
    """Run a command at low priority (`nice`) and write its output to the log.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    line = ["nice", "-n", "10", *map(str, command)]
    with log.open("ab") as output:
        output.write(f"$ {' '.join(line[3:])}\n".encode())
        output.flush()
        child = subprocess.Popen(
            line,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with _tracked(child):
            code = child.wait()
    if code:
        raise subprocess.CalledProcessError(code, line[3:])


@contextlib.contextmanager
def _tracked(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    with _children_lock:
        _children.add(child)
    try:
        yield
    finally:
        with _children_lock:
            _children.discard(child)


def interrupt() -> None:
    """End the commands that run now, because the user pressed Ctrl-C."""
    with _children_lock:
        for child in _children:
            child.terminate()


def remove_tree(path: Path) -> None:
    """Remove a folder with all in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
