"""The operator as a process, and what it used: memory, CPU, requests of the API server."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.operator_setup import Site
from stack.processes import MARKER
from support.cpu_time import cpu_seconds
from support.programs import Program

START_SECONDS = 180.0
WANTED = re.compile(
    r"postroad_(kubernetes_requests_total|reconciles_total|workqueue_depth|operator_leader)[{ ]"
)
"""Of a thousand resources the other samples are ten thousand lines."""

WRITES = {"POST", "PUT", "PATCH", "DELETE"}
RENEWED = "leases"
QUESTIONS = "accessreviews"

Calls = Counter[tuple[str, str]]
"""Requests by method and resource."""


@dataclass(frozen=True)
class Counted:
    """What an operator has counted. `reconciles`: by kind, whatever their result."""

    calls: Calls
    reconciles: Counter[str]
    waiting: float
    leads: bool

    @property
    def requests(self) -> int:
        """All requests, watches and renewals of the Lease included."""
        return self.calls.total()

    @property
    def writes(self) -> Calls:
        """Requests that may change something but the Lease."""
        return Counter(
            {
                (method, resource): count
                for (method, resource), count in self.calls.items()
                if method in WRITES and resource != RENEWED and QUESTIONS not in resource
            }
        )

    def since(self, before: Counted) -> Counted:
        """Return what was counted since then."""
        calls, reconciles = self.calls.copy(), self.reconciles.copy()
        calls.subtract(before.calls)
        reconciles.subtract(before.reconciles)
        return Counted(+calls, +reconciles, self.waiting, self.leads)


def counted_in(text: str) -> Counted:
    """Return what a scrape shows."""
    calls: Calls = Counter()
    reconciles: Counter[str] = Counter()
    waiting, leads = 0.0, False
    lines = "\n".join(line for line in text.splitlines() if WANTED.match(line))
    for family in text_string_to_metric_families(lines + "\n"):
        for name, labels, value, *_ in family.samples:
            match name.removeprefix("postroad_"):
                case "kubernetes_requests_total":
                    calls[labels["method"], labels["resource"]] += round(value)
                case "reconciles_total":
                    reconciles[labels["kind"]] += round(value)
                case "workqueue_depth":
                    waiting += value
                case "operator_leader":
                    leads = value == 1
    return Counted(calls, reconciles, waiting, leads)


def shown(calls: Calls) -> str:
    """Return requests as text, the most frequent first."""
    return ", ".join(f"{count} {' '.join(each)}" for each, count in calls.most_common())


class MeasuredOperator:
    """One operator. `log` has what it wrote."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.log: Path = program.log

    @classmethod
    async def start(cls, site: Site, *options: str) -> MeasuredOperator:
        """Start one that watches all namespaces."""
        environment = {"KUBECONFIG": str(site.kubeconfig), MARKER: str(site.programs)}
        lease = ("--lease-namespace", site.namespace)
        program = await Program.start(
            site.folder, "operator", *lease, *options, environment=environment
        )
        return cls(program)

    async def until_leading(self) -> None:
        """Wait until it leads and watches. Raises: TimeoutError; AssertionError with its log where
        it ended."""
        async with asyncio.timeout(START_SECONDS):
            await self._program.until_ready()
            while not (await self.counted()).leads:
                await asyncio.sleep(0.1)
            await self._program.until_ready()

    async def counted(self) -> Counted:
        """Return what it has counted until now."""
        return counted_in(await self._program.ask("/metrics"))

    @property
    def cpu_seconds(self) -> float:
        """The CPU that it has used."""
        return cpu_seconds([self._program.pid])

    def memory_mb(self, field: str = "VmRSS") -> float:
        """Return its resident memory; `VmHWM`: at its most."""
        text = Path(f"/proc/{self._program.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
        assert found, f"the operator ended: {self.errors()}"
        return int(found[1]) * 1024 / 1e6

    async def stop(self) -> None:
        """End it in an orderly way, so that it gives its Lease back. Raises: AssertionError where
        it had ended."""
        assert self._program.process.returncode is None, "the operator ended by itself"
        await self._program.stop()

    async def kill(self) -> None:
        await self._program.kill()

    def errors(self) -> str:
        """Return the last warnings and errors of its log."""
        lines = self.log.read_text().splitlines()
        return "\n".join([each for each in lines if '"level": "info"' not in each][-20:])


@asynccontextmanager
async def operator_on(site: Site, *options: str) -> AsyncIterator[MeasuredOperator]:
    """Yield an operator that leads; end it. An error gets the end of its log."""
    operator = await MeasuredOperator.start(site, *options)
    try:
        await operator.until_leading()
        yield operator
        await operator.stop()
    except BaseException as error:
        error.add_note(f"the operator's log ({operator.log}) ends:\n{operator.errors()}")
        raise
    finally:
        await operator.kill()
