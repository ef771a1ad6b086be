"""A server whose processes run on this machine: the common part of all native servers."""

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from stack import packages, processes
from stack.cache import Entry
from stack.errors import MissingRequirement, StackError
from stack.progress import Progress
from stack.server import POLL_SECONDS, ManagedServer


class NativeServer(ManagedServer):
    """A server whose processes run on this machine, in the server's folder."""

    debian: ClassVar[Sequence[str]] = ()
    """The Debian packages that it needs."""
    stop_seconds: ClassVar[float] = 20
    host = "127.0.0.1"
    """Where it listens."""

    @property
    def provider(self) -> str:
        """Processes of this machine."""
        return "native"

    def entries(self) -> Sequence[Entry]:
        """Return what it needs from the cache."""
        return ()

    def is_prepared(self) -> bool:
        """Return whether a start would neither install, build nor download."""
        try:
            return not self.missing()
        except MissingRequirement:
            return False

    def missing(self) -> list[str]:
        """Look for its packages and for its entries in the cache."""
        absent = ["packages"] if packages.missing(self.debian) else []
        return absent + [entry.name for entry in self.entries() if not entry.path.is_dir()]

    def check_machine(self) -> None:
        """Refuse when packages are missing that cannot be installed, or no Go can be had for what
        is built."""
        packages.check(self.debian)
        self.entries()

    def prepare(self, progress: Progress) -> None:
        """Install packages, build and download."""
        packages.ensure(self.debian, progress)
        for entry in self.entries():
            entry.ensure(progress)

    @property
    def home(self) -> Path:
        """Where its data lie."""
        return self.directory

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a process of this server, its output going to the main log."""
        processes.start(self.directory, command, self.main_log, environment=environment)

    def is_alive(self) -> bool:
        """Return whether any of its processes lives."""
        return bool(processes.members(self.directory))

    def is_frozen(self) -> bool:
        """Return whether a process that was started first is stopped."""
        alive = processes.members(self.directory)
        return any(process.stopped for process in alive if process.leads_session)

    def end(self) -> None:
        """Kill its processes."""
        processes.kill_members(self.directory)

    def stop(self) -> None:
        """Ask its main processes to end, wait, then kill those that are left."""
        alive = processes.members(self.directory)
        for process in alive:
            processes.send(process, signal.SIGCONT)
        leaders = {process.pid for process in alive if process.leads_session}
        for process in alive:
            if process.pid in leaders:
                processes.send(process, signal.SIGTERM)
        deadline = time.monotonic() + self.stop_seconds
        while any(_lives(pid, alive) for pid in leaders):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        self.end()

    def pause(self) -> None:
        """Freeze all its processes; none of them answers when this returns."""
        processes.freeze(self._alive())

    def resume(self) -> None:
        """Let all its processes go on."""
        for process in processes.descendants(self._alive()):
            processes.send(process, signal.SIGCONT)

    def _alive(self) -> list[int]:
        alive = processes.members(self.directory)
        if not alive:
            raise StackError(f"{self.name} does not run")
        return [process.pid for process in alive]

    @property
    def pid(self) -> int | None:
        """The process started first."""
        alive = processes.members(self.directory)
        return next((process.pid for process in alive if process.leads_session), None)

    @property
    def memory_bytes(self) -> int | None:
        """The memory of its processes; pages that several share are counted for each."""
        alive = processes.members(self.directory)
        return sum(process.memory_bytes for process in alive) if alive else None


def _lives(pid: int, seen: Sequence[processes.Process]) -> bool:
    now = processes.look(pid)
    return now is not None and any(
        process.pid == pid and process.started == now.started for process in seen
    )
