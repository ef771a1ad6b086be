"""A mail server as a peer: its programs in the cache, its files in one folder, on loopback.

Nothing is installed on this machine, and the peer shares nothing with it: a Debian server runs in a
chroot of its own release. Each peer has process and mount namespaces of its own, so that all its
processes end with the first one. Needs root on Linux.
"""

from __future__ import annotations

import asyncio
import re
import signal
from abc import ABC, abstractmethod
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stack import debian, processes
from stack.cache import Entry
from stack.progress import Progress
from support.certificates import Certificates
from support.ports import free_port

SUITE = "bookworm"
END_SECONDS = 10.0
APART = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
)


async def end(process: Process) -> None:
    """Kill the children of a process, then the process itself if it does not end by that. A tracer
    that is killed before its children loses the output that it has not written yet."""
    found = processes.descendants([process.pid])
    for each in found[1:]:
        processes.send(each, signal.SIGKILL)
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS if found[1:] else 0)
    except TimeoutError:
        for each in found[:1]:
            processes.send(each, signal.SIGKILL)
        await process.wait()


@dataclass(frozen=True)
class Road:
    """How a peer handles mail: it accepts all of it except the refused recipient, and relays it."""

    next_port: int
    """The next hop for every mail, on 127.0.0.1."""

    certificates: Certificates | None = None
    """The certificates of `localhost`, with which it offers STARTTLS."""

    secures: bool = False
    """Whether the next hop offers STARTTLS; only for peers whose configuration needs it."""

    limit_bytes: int = 50 * 2**20
    concurrency: int = 20
    """The most connections with the next hop."""

    refused: str = "refused@dest.example"
    """The one recipient that is refused with 550."""

    retry_seconds: int = 1800
    """The time between attempts for deferred mail, where the peer has a setting for it."""

    most_recipients: int = 100_000
    """The most recipients per incoming mail; peers without such a setting accept all."""


class Peer(ABC):
    """A server in `base`, a folder that is not private, because the servers' own users must reach
    it."""

    name: ClassVar[str]
    ready_seconds: ClassVar[float] = 120.0

    def __init__(self, base: Path, road: Road) -> None:
        self.base, self.road = base, road
        self.port = free_port()
        self.log = base / "output.log"
        self._process: Process | None = None

    @property
    def chain(self) -> Path:
        """Its certificate, where it has to offer STARTTLS."""
        return self.base / "chain.pem"

    @property
    def key(self) -> Path:
        """The key of its certificate."""
        return self.base / "key.pem"

    @property
    def authority(self) -> Path:
        """The authority of its certificate, and of the next hop's."""
        return self.base / "authority.pem"

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """Return the entries of the cache that it needs."""

    @abstractmethod
    def configure(self) -> None:
        """Write its files below `base`."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command that runs it in the foreground."""

    @abstractmethod
    def version(self) -> str:
        """Return its version, as its package names it."""

    @property
    def title(self) -> str:
        """Its name and upstream version."""
        upstream = re.split(r"[-+~]|p\d", self.version().rpartition(":")[2])[0]
        return f"{self.name} {upstream}"

    def prepare(self) -> None:
        """Download or build the entries that the cache lacks. Raises: StackError."""
        for entry in self.entries():
            entry.ensure(Progress())

    async def start(self, *before: str | Path) -> None:
        """Start it and wait until it greets. `before` is a command that runs the command behind it.
        Raises: RuntimeError when it does not greet; the message has its last output."""
        await asyncio.to_thread(self.prepare)
        self.base.mkdir(parents=True, exist_ok=True)
        self.base.chmod(0o755)
        if self.road.certificates is not None:
            self._keep(self.road.certificates)
        self.configure()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *map(str, (*before, *APART, *self.command())),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.base,
            )
        try:
            await asyncio.wait_for(self._greets(), self.ready_seconds)
        except (TimeoutError, RuntimeError) as error:
            await self.stop()
            text = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} does not greet: {text}") from error

    async def stop(self) -> None:
        """End it with all its processes. Idempotent."""
        if self._process is not None:
            await end(self._process)

    def processes(self) -> list[processes.Process]:
        """Return its living processes, the keeper of its namespaces included."""
        return processes.descendants([self._process.pid]) if self._process else []

    def process_ids(self) -> list[int]:
        """Return their ids."""
        return [each.pid for each in self.processes()]

    def _keep(self, made: Certificates) -> None:
        own = (self.authority, made.authority), (self.chain, made.chain), (self.key, made.key)
        for path, source in own:
            path.write_bytes(source.read_bytes())
            path.chmod(0o600)

    async def _greets(self) -> None:
        assert self._process is not None
        while self._process.returncode is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                greeting = await reader.readline()
                writer.close()
            except OSError:
                greeting = b""
            if greeting.startswith(b"220"):
                return
            await asyncio.sleep(0.05)
        raise RuntimeError("it ended")


class DebianPeer(Peer):
    """A server of a Debian package."""

    package: ClassVar[str]
    minimum: ClassVar[str]
    beside: ClassVar[Sequence[str]] = ()
    """Further packages in the same folder."""

    def entries(self) -> Sequence[Entry]:
        return (debian.installed(self.package, SUITE, self.minimum, *self.beside),)

    @property
    def root(self) -> Path:
        """The release it runs in."""
        return self.entries()[0].path / "root"

    def version(self) -> str:
        return debian.version(self.root, self.package)

    def command(self) -> Sequence[str | Path]:
        return inside(self.root, self.base, self.script())

    @abstractmethod
    def script(self) -> str:
        """Return the shell commands, run in the release, of which the last becomes the server."""


def inside(root: Path, folder: Path, script: str) -> Sequence[str | Path]:
    """Return the command that runs a script in a Debian folder, with one folder of this machine."""
    return debian.entering(root, [folder], ["sh", "-ec", script])
