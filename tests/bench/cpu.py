"""CPU that a measurement costs: this process, and the servers where the local stack runs them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from stack import folders, processes
from support.cpu_time import cpu_seconds

SERVERS = ("rabbitmq", "cassandra", "s3")
OURSELVES = "this process"


def used(client: int | None = None) -> dict[str, float]:
    """Return seconds of CPU by process group. A server that this stack did not start is absent; the
    client is this process, or the one with this id in its stead."""
    found = {OURSELVES: cpu_seconds([client or os.getpid()])}
    for name in SERVERS:
        members = processes.members(folders.state_directory() / name)
        if members:
            found[name] = cpu_seconds([each.pid for each in members])
    return found


@dataclass
class Spent:
    """CPU by process group, summed over what was measured. In seconds, over `operations`."""

    seconds: dict[str, float] = field(default_factory=dict)
    operations: int = 0

    def add(self, before: dict[str, float], after: dict[str, float], operations: int) -> None:
        """Add what was spent between two looks."""
        for name, seconds in after.items():
            spent = seconds - before.get(name, 0.0)
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self.operations += operations

    def milliseconds(self, *names: str) -> float:
        """Return milliseconds an operation, of these groups or of all."""
        chosen = names or tuple(self.seconds)
        return 1000 * sum(self.seconds.get(name, 0.0) for name in chosen) / self.operations
