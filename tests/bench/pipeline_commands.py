"""Runs commands for the pipeline's room, and measures what each costs, with its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.cpu import used
from bench.queue_setup import BenchServers
from support.cpu_time import ControlGroup

SAMPLED_SECONDS = 0.2
MEMORY = "MiB of memory"

Cost = dict[str, float]
"""Seconds of time and of CPU, and the most memory, by the name of the measure."""


def postroad(target: BenchServers, *arguments: str) -> tuple[list[dict[str, Any]], Cost]:
    """Run a command of postroad with `--json`; return what it printed, and its cost."""
    return run(target, [sys.executable, "-m", "postroad", *arguments, "--json"])


def run(target: BenchServers, command: Sequence[str]) -> tuple[list[Any], Cost]:
    """Run a command that prints JSON lines; return them, and its cost."""
    given = {
        "POSTROAD_CASSANDRA_KEYSPACE": target.keyspace,
        "POSTROAD_S3_BUCKET": target.bucket,
        "POSTROAD_PIPELINE_ADDRESSES": "plain",
    }
    return run_with(given, command)


def run_with(given: Mapping[str, str], command: Sequence[str]) -> tuple[list[Any], Cost]:
    """Run a command that prints JSON lines, with these variables; return them, and its cost."""
    group = ControlGroup("pipeline")
    before, began = used(), time.monotonic()
    with _Memory(group) as memory:
        done = subprocess.run(
            [*group.around(), *command],
            env={**os.environ, **given},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    seconds, after = time.monotonic() - began, used()
    cost = {"seconds": seconds, "CPU of the command": group.cpu_seconds, MEMORY: memory.most}
    cost |= {
        f"CPU of {name}": after[name] - before[name]
        for name in ("cassandra", "s3")
        if name in after
    }
    group.remove()
    return [json.loads(line) for line in done.stdout.splitlines()], cost


class _Memory:
    """The most memory that the processes of a group had at once, in MiB, by samples."""

    def __init__(self, group: ControlGroup) -> None:
        self._group = group
        self._ended = threading.Event()
        self._sampling = threading.Thread(target=self._sample)
        self.most = 0.0

    def __enter__(self) -> _Memory:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampling.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLED_SECONDS):
            self.most = max(self.most, self._group.resident_bytes / 2**20)
