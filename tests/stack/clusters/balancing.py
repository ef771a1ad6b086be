"""The balancers of a cluster: one for the machine, and one for each client that has a name."""

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stack import folders, ports, processes
from stack.errors import StepFailed

START_SECONDS = 20.0


def follow(directory: Path, hosts: Mapping[str, Sequence[str]], clients: Mapping[str, str]) -> None:
    """Forward these ports to these hosts from now on, and start the balancers that do not run.
    Takes the cluster's folder, and the address of each client.

    Raises:
        StepFailed: one does not start.
    """
    partial = directory / "balanced.partial"
    partial.write_text(json.dumps(hosts))
    partial.rename(directory / "balanced.json")
    for client, address in clients.items():
        _run(directory, client, address, hosts)


def _run(directory: Path, client: str, address: str, wanted: Collection[str]) -> None:
    folder = directory / "clients" / client
    folder.mkdir(parents=True, exist_ok=True)
    if processes.members(folder):
        return
    processes.start(
        folder,
        [
            *(sys.executable, "-m", "stack.clusters.balancer"),
            *(address, directory / "balanced.json"),
        ],
        folder / "output.log",
        directory=folders.SOURCES.parent,
    )
    deadline = time.monotonic() + START_SECONDS
    while not all(ports.answers(int(port), address) for port in wanted):
        if time.monotonic() > deadline:
            raise StepFailed(f"the balancer of {client}", folder / "output.log")
        time.sleep(0.1)
