"""A server of the stack: the operations on it, whatever its provider.

`Server` is what tests and commands see. `ManagedServer` is a server that the stack starts itself:
it has a folder with a record of ports and secrets, which stay the same until the server is removed.
"""

import abc
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import ClassVar

from stack import patience, ports, records
from stack.errors import StackError, StepFailed
from stack.progress import Progress

POLL_SECONDS = 0.05
REST = 9.0
"""How much longer than it computes a thread rests that waits for a server, which needs the CPU."""


class _Looks:
    """The looks of one wait, and the rests between them."""

    def __init__(self) -> None:
        self._computed = time.thread_time()

    def rest(self) -> None:
        """Sleep; longer where the last look took much CPU."""
        look = time.thread_time() - self._computed
        time.sleep(max(POLL_SECONDS, REST * look))
        self._computed = time.thread_time()


class State(Enum):
    """The state of a server."""

    ABSENT = "absent"
    """Nothing of it exists."""
    STOPPED = "stopped"
    """Its data exist, no process runs."""
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"


class Server(abc.ABC):
    """One server of a stack."""

    name: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        """Take the folder that is the server's own; read and start nothing yet."""
        self.directory = directory

    @property
    @abc.abstractmethod
    def provider(self) -> str:
        """Its provider: environment, docker or native."""

    @abc.abstractmethod
    def state(self) -> State:
        """Return its state now."""

    def check_machine(self) -> None:  # noqa: B027  # most servers need nothing more
        """Look for what no preparation can give: rights, the kernel's features.

        Raises:
            MissingRequirement: the server cannot run here, whatever is installed.
        """

    @abc.abstractmethod
    def prepare(self, progress: Progress) -> None:
        """Build, download or install what it needs and this machine lacks."""

    @abc.abstractmethod
    def start(self, progress: Progress) -> None:
        """Start it with the data it has, unless it runs; returns when it answers."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop it in the orderly way; its data stay."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End it without warning (SIGKILL); its data stay as they are."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nothing answers."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Let a frozen server go on."""

    @abc.abstractmethod
    def remove(self) -> None:
        """End it and remove its data; also right when it is half-started or absent."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether it serves requests."""

    @property
    @abc.abstractmethod
    def endpoint(self) -> str:
        """Where it listens, for people."""

    @abc.abstractmethod
    def environment(self) -> dict[str, str]:
        """Return the variables by which postroad finds it and may use it."""

    def missing(self) -> list[str]:
        """Return what a start would first build, download or install, by the names of the cache's
        entries; all Debian packages together are `packages`, those of Docker `container images`.

        Raises:
            MissingRequirement: it cannot be had.
        """
        return []

    def service_ports(self) -> dict[int, int]:
        """Return its ports for pods: the usual number, and the one on this machine's loopback."""
        return {}

    @property
    def logs(self) -> list[Path]:
        """Its log files."""
        return []

    @property
    def pid(self) -> int | None:
        """Its main process, if it runs on this machine."""
        return None

    @property
    def memory_bytes(self) -> int | None:
        """What its processes hold in memory, if known."""
        return None

    def wait_ready(self, timeout_seconds: float = 120) -> None:
        """Wait until it serves requests.

        Raises:
            StackError: it does not, in time.
        """
        seconds = patience.stretched(timeout_seconds)
        deadline = time.monotonic() + seconds
        looks = _Looks()
        while not self.answers():
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} does not answer after {seconds:.0f} s")
            looks.rest()

    def restart(self) -> None:
        """Stop and start it again, keeping data and ports."""
        self.stop()
        self.start(Progress(quiet=True))


class ManagedServer(Server):
    """A server that the stack starts and ends.

    Subclasses of one kind define the ports and the check whether it answers (RabbitMQ, Cassandra,
    …); those of the other kind define how it runs (processes of this machine, containers).
    """

    port_names: ClassVar[Sequence[str]]
    ready_seconds: ClassVar[float] = 120
    patience_seconds: ClassVar[float] = 30
    """How long a server that was ready once may be silent before `up` restarts it: other tests may
    use it while the machine is busy."""

    @abc.abstractmethod
    def is_alive(self) -> bool:
        """Return whether any process of it exists, frozen or not."""

    @abc.abstractmethod
    def is_frozen(self) -> bool:
        """Tell whether it is paused."""

    @abc.abstractmethod
    def end(self) -> None:
        """End all its processes at once, and wait until they are gone. Idempotent."""

    @abc.abstractmethod
    def launch(self, record: records.Record) -> None:
        """Write its configuration and start it; need not wait until it answers."""

    def after_start(self, record: records.Record) -> None:
        """Do the rest of the start once it answers (nothing by default)."""

    def secrets(self) -> dict[str, str]:
        """Choose passwords, once."""
        return {"password": secrets.token_hex(12)}

    def facts(self) -> dict[str, str]:
        """Choose further values that stay the same over restarts."""
        return {}

    @property
    def main_log(self) -> Path:
        """Its output."""
        return self.directory / "output.log"

    @property
    def logs(self) -> list[Path]:
        """The log of its output."""
        return [self.main_log]

    @property
    def record(self) -> records.Record:
        """Ports and secrets, as chosen when the server was first started.

        Raises:
            StackError: it never was.
        """
        record = records.load(self._record_path)
        if record is None:
            raise StackError(f"{self.name} is not up")
        return record

    @property
    def _record_path(self) -> Path:
        return self.directory / records.FILE_NAME

    @property
    def _started_path(self) -> Path:
        """A file that exists when no start was cut short."""
        return self.directory / "started"

    def state(self) -> State:
        """Decide by its processes and by whether it answers."""
        if not self.is_alive():
            return State.STOPPED if self._record_path.exists() else State.ABSENT
        if self.is_frozen():
            return State.PAUSED
        started = self._started_path.exists() and self.answers()
        return State.RUNNING if started else State.STARTING

    def start(self, progress: Progress) -> None:
        """Start it unless it runs; continue a paused one; restart a half-started one."""
        if self.state() is State.PAUSED:
            self.resume()
        if self._was_ready() and self._answers_within(self.patience_seconds):
            return
        with progress.step(f"{self.name}: start"):
            self.end()
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._started_path.unlink(missing_ok=True)
            record = records.load(self._record_path) or self._new_record()
            self.launch(record)
            self.wait_ready(self.ready_seconds)
            self.after_start(record)
            self._started_path.touch()

    def _was_ready(self) -> bool:
        return self._started_path.exists() and self.is_alive()

    def _answers_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + patience.stretched(seconds)
        looks = _Looks()
        while not self.answers():
            if time.monotonic() > deadline or not self.is_alive():
                return False
            looks.rest()
        return True

    def _new_record(self) -> records.Record:
        record = records.Record(
            provider=self.provider,
            ports=ports.choose(str(self.directory), self.port_names),
            secrets=self.secrets(),
            facts=self.facts(),
        )
        record.save(self._record_path)
        return record

    def wait_ready(self, timeout_seconds: float = 120) -> None:
        """Wait until it serves requests.

        Raises:
            StepFailed: it ended, or time is over.
        """
        self.wait_until(self.answers, timeout_seconds)

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait for a step of the start.

        Raises:
            StepFailed: it ended, or time is over.
        """
        seconds = patience.stretched(timeout_seconds)
        deadline = time.monotonic() + seconds
        looks = _Looks()
        while not condition():
            if not self.is_alive():
                raise StepFailed(f"{self.name}: start (it ended)", self.main_log)
            if time.monotonic() > deadline:
                raise StepFailed(
                    f"{self.name}: start (no answer after {seconds:.0f} s; a slow machine needs"
                    f" {patience.VARIABLE})",
                    self.main_log,
                )
            looks.rest()

    def kill(self) -> None:
        """Kill all its processes."""
        self.end()

    def remove(self) -> None:
        """Kill it and remove its folder."""
        self.end()
        if self.directory.exists():
            shutil.rmtree(self.directory)
