"""A node of a cluster: one of the stack's servers, in a namespace and on a disk of its own.

A node listens on the usual ports of its own address, has its data on a small filesystem, and has
the faults that its file of controls names.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stack import processes
from stack.cache import Entry
from stack.clusters import volumes
from stack.clusters.faults import Faults, library
from stack.clusters.network import Network
from stack.clusters.volumes import Volume
from stack.errors import StackError, StepFailed
from stack.native import NativeServer
from stack.records import Record

DISK_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Place:
    """The address of a node, and what it shares with the others of its kind."""

    network: Network
    number: int
    """The number of its address in the subnet."""
    directory: Path
    volume: Path
    peers: Sequence[str]
    """The addresses of its kind's other nodes that were started before; its own if there were
    none."""
    data_center: str
    secrets: Mapping[str, str]


class Node(NativeServer):
    """One node of a cluster."""

    kind: ClassVar[str]
    fixed_ports: ClassVar[Mapping[str, int]]

    def __init__(self, name: str, place: Place) -> None:
        """Take its name (`cassandra-1`) and its place."""
        super().__init__(place.directory)
        self.name = name  # type: ignore[misc]  # one class serves every node of a kind
        self.place = place
        self.host = place.network.address(place.number)
        self.volume = Volume(place.volume, DISK_BYTES)
        self.faults = Faults(place.directory / "faults")
        self._delay = place.directory / "delay"

    @property
    def provider(self) -> str:
        """A cluster of the stack."""
        return "cluster"

    @property
    def home(self) -> Path:
        """Its own filesystem."""
        return self.volume.folder

    def entries(self) -> Sequence[Entry]:
        """What its server needs from the cache, and the library of faults."""
        return (*super().entries(), library())

    def _new_record(self) -> Record:
        record = Record("cluster", dict(self.fixed_ports), dict(self.place.secrets))
        record.save(self._record_path)
        return record

    def begin(self) -> None:
        """Start its processes; do not wait until it serves."""
        self.end()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._started_path.unlink(missing_ok=True)
        self.place.network.attach(self.place.number)
        self.volume.mount()
        self.faults.prepare()
        self.launch(self.record if self._record_path.exists() else self._new_record())

    def finish(self) -> None:
        """Wait until it serves.

        Raises:
            StepFailed: it ended, or does not in time.
        """
        self.wait_ready(self.ready_seconds)
        self._started_path.touch()

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a process of this node, in its namespace and under its faults."""
        place = self.place
        super().run(
            [*place.network.inside(place.number), *command],
            {**(environment or {}), **self.faults.environment()},
        )

    def tool(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 300,
    ) -> str:
        """Run one of the node's own tools in its namespace and return what it prints.

        Raises:
            StackError: it failed.
        """
        line = [*self.place.network.inside(self.place.number), *map(str, command)]
        done = subprocess.run(
            line,
            env={**os.environ, **(environment or {})},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode:
            raise StackError(f"{self.name}: {' '.join(line[3:])[:200]}: {done.stdout}{done.stderr}")
        return done.stdout

    def skew(self, seconds: float, rate: float) -> None:
        """Set its clock this far ahead of the machine's, and let it run at this rate."""
        self.faults.skew(seconds, rate)

    def slow_disk(self, seconds: float) -> None:
        """Delay each of its syncs by this much."""
        self.faults.slow_syncs(seconds)

    def delay_packets(self, seconds: float) -> None:
        """Delay every packet that it sends; 0 ends that."""
        network, number = self.place.network, self.place.number
        network.queue(number, on=False)
        processes.kill_members(self._delay)
        if seconds:
            program = Path(__file__).with_name("delay.py")
            self._delay.mkdir(exist_ok=True)
            processes.start(  # a member of its own: the delay outlasts a kill of the node
                self._delay,
                [*network.inside(number), sys.executable, program, str(seconds)],
                self._delay / "output.log",
            )
            time.sleep(0.3)
            if not processes.members(self._delay):
                raise StepFailed(f"{self.name}: delaying its packets", self._delay / "output.log")
            network.queue(number, on=True)

    @property
    def founded(self) -> Path:
        """A file that exists once the node has served."""
        return self.directory / "founded"

    def serves_within(self, seconds: float) -> bool:
        """Return whether a living node serves, or will soon."""
        return self._answers_within(seconds)

    def agrees(self, count: int) -> bool:
        """Return whether the node serves, and sees this many nodes of its kind serve as well."""
        return self.answers()

    def leave(self, serving: "Node") -> None:
        """Leave the cluster: in the orderly way when it serves, else as lost for good. Takes a node
        of its kind that serves."""

    def remove(self) -> None:
        """Kill it and remove its data."""
        processes.kill_members(self._delay)
        self.end()
        volumes.unmount_below(self.directory)
        super().remove()
        self.place.network.detach(self.place.number)
