"""An operator that dies between any two of its writes is followed by one that finishes the work."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.memory.servers import MemoryServers
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.domain.queues.names import QueueName
from postroad.ports.kubernetes import Object
from support.memory.fault_injection import Fault, at
from support.namespaces import side_by_side
from support.recording_api import RecordingApi
from support.resources import mail_queue, view, workers
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")


async def run_until_dead(operator: Running, watched: RecordingApi) -> None:
    await operator.start()
    for _ in range(200):
        if watched.is_dead:
            break
        await operator.pause()
    await operator.stop()
    assert watched.is_dead, [str(each) for each in watched.writes]


async def test_after_any_write_the_next_operator_finishes(api: ApiServer) -> None:
    """The first look at a cluster and a queue writes ten times and more: finalizers, statuses,
    children, Events."""
    await side_by_side(api, range(10), finished_after_writes)


async def finished_after_writes(api: ApiServer, namespace: str, writes: int) -> None:
    watched = RecordingApi(api.access, writes_left=writes)
    first = Running(api, namespace, operator_api=watched)
    await first.apply_cluster()
    await first.apply(
        mail_queue(namespace, view=view("1h", 3), workers=workers(), deletionPolicy="Delete")
    )
    await run_until_dead(first, watched)

    second = Running(api, namespace, memory=first.memory)
    await second.start()
    try:
        await second.until_ready()
        status = await second.status()
        history = await MemoryServers(first.memory).history(QueueName(namespace, "outgoing")).load()
    finally:
        await second.stop()

    assert [each.sequence for each in history.events] == [1]
    assert [each["sequence"] for each in status["history"]] == [1]
    assert status["configuration"]["version"] == 1


async def test_after_any_call_of_a_server_the_next_operator_finishes(api: ApiServer) -> None:
    """Calls of RabbitMQ, Cassandra and S3, of which the first reconciles make more than these."""
    await side_by_side(api, range(0, 24, 2), finished_after_call)


async def finished_after_call(api: ApiServer, namespace: str, call: int) -> None:
    first = Running(api, namespace)
    first.faults.plan = at(call, Fault.STOP_AFTER)
    await first.apply_cluster()
    await first.apply(
        mail_queue(namespace, view=view("1h", 3), workers=workers(), deletionPolicy="Delete")
    )
    await first.start()
    for _ in range(200):
        if first.faults.stopped:
            break
        await first.pause()
    await first.stop()
    assert first.faults.stopped, first.faults.steps

    second = Running(api, namespace, memory=first.memory)
    await second.start()
    try:
        await second.until_ready()
        history = await MemoryServers(first.memory).history(QueueName(namespace, "outgoing")).load()
        warnings = await second.events(kind="Warning")
    finally:
        await second.stop()

    assert [each.sequence for each in history.events] == [1]
    assert warnings == []


async def test_a_change_that_was_recorded_but_not_reported_is_reported(api: ApiServer) -> None:
    await side_by_side(api, range(3), reported_after_writes)


async def reported_after_writes(api: ApiServer, namespace: str, writes: int) -> None:
    first = Running(api, namespace)
    await first.start()
    await first.apply_cluster()
    await first.apply(mail_queue(namespace, view=view("1h", 3), workers=workers()))
    await first.until_ready()
    await first.stop()
    await first.change({"view": view("30m", 5), "workers": {"concurrency": 3}})

    watched = RecordingApi(api.access, writes_left=writes)
    await run_until_dead(
        Running(api, namespace, memory=first.memory, operator_api=watched), watched
    )

    second = Running(api, namespace, memory=first.memory)
    await second.start()
    try:
        await second.until_ready()
        status = await second.status()
    finally:
        await second.stop()

    assert [each["sequence"] for each in status["history"]] == [1, 2]
    assert (status["configuration"]["version"], status["configuration"]["bucketCount"]) == (2, 5)


class DyingBehindItsEvent(RecordingApi):
    """No write of any kind reaches the server behind the first Event; the QueueCluster, which has
    writes of its own, may come before it."""

    async def _request(self, method: str, path: str, **options: Any) -> Object | None:
        answer = await super()._request(method, path, **options)
        if method == "POST" and path.endswith("/events"):
            self.writes_left = 0
        return answer


async def test_two_operators_post_one_event_about_the_end_of_a_queue(
    api: ApiServer, namespace: str
) -> None:
    """The first dies with the Event written and the finalizer still there."""
    first = Running(api, namespace)
    await first.start()
    await first.apply_cluster()
    await first.apply(mail_queue(namespace, deletionPolicy="Delete"))
    await first.until_ready()
    await first.stop()
    await api.delete(MAIL_QUEUE, await first.queue())

    watched = DyingBehindItsEvent(api.access)
    dying = Running(api, namespace, memory=first.memory, operator_api=watched)
    await run_until_dead(dying, watched)
    told = [each.path for each in watched.writes if each.path.endswith("/events")]
    assert await first.queue()

    second = Running(api, namespace, memory=first.memory)
    await second.start()
    try:
        await second.until_gone(MAIL_QUEUE, "outgoing")
    finally:
        await second.stop()

    assert len(told) == 1
    assert len(await second.events("Deleted")) == 1


async def test_what_happened_while_no_operator_ran_is_caught_up_with(
    api: ApiServer, namespace: str
) -> None:
    first = Running(api, namespace)
    await first.start()
    await first.apply_cluster()
    await first.apply(
        mail_queue(namespace), mail_queue(namespace, "going", deletionPolicy="Delete")
    )
    await first.until_ready()
    await first.until_ready("going")
    await first.stop()

    await first.change({"view": view("30m", 4)})
    await api.delete(MAIL_QUEUE, await first.queue("going"))
    await first.apply(mail_queue(namespace, "coming"))

    second = Running(api, namespace, memory=first.memory)
    await second.start()
    try:
        await second.until_ready()
        await second.until_ready("coming")
        await second.until_gone(MAIL_QUEUE, "going")
        assert (await second.status())["configuration"]["version"] == 2
    finally:
        await second.stop()
