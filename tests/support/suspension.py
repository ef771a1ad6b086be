"""A process that is suspended between two of its steps, while others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import TypeVar

from postroad.ports.mail_queue import Item
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Step

T = TypeVar("T")
ROUND = WINDOW + timedelta(minutes=3)


class Suspension:
    """Suspends a process before each step of one name, from the one with this `number` on, until
    `end`."""

    def __init__(self, process: Process, operation: str, number: int = 1) -> None:
        self._operation, self._left = operation, number
        self._ended = asyncio.Event()
        self._began = asyncio.Event()
        process.faults.before = self._before

    async def _before(self, step: Step) -> None:
        if step.operation == self._operation:
            self._left -= 1
            if self._left <= 0:
                self._began.set()
                await self._ended.wait()

    @property
    def has_begun(self) -> bool:
        return self._began.is_set()

    async def begun(self, cluster: InMemoryCluster) -> None:
        await cluster.pass_time(timedelta(seconds=1))
        assert self.has_begun

    def end(self) -> None:
        self._ended.set()


async def suspended(
    cluster: InMemoryCluster, process: Process, operation: str, work: Coroutine[object, object, T]
) -> tuple[Suspension, asyncio.Task[T]]:
    """Start work of a process, and suspend it before its first step of this name."""
    suspension = Suspension(process, operation)
    task = asyncio.ensure_future(work)
    await suspension.begun(cluster)
    return suspension, task


async def with_an_old_item(cluster: InMemoryCluster, process: Process, producer: Process) -> Item:
    """Let a process have a mail in flight while its slice closes."""
    await cluster.enqueue(producer, "mail")
    consumer, item = await cluster.take(process)
    await consumer.close()
    await cluster.pass_time(ROUND)
    return item


def lose_connection(process: Process) -> None:
    """The broker gives what a process has in flight to others."""
    broker = process.queue._engine.broker
    broker.disconnect()  # type: ignore[attr-defined]
