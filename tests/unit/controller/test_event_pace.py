"""Events cost the API server a bounded rate of requests, however often something flaps."""

from __future__ import annotations

from datetime import timedelta

from postroad.controller.kubernetes.api import QUEUE_CLUSTER
from postroad.controller.status.status_writer import BURST, MAX_NAMES, EventPace
from support.manual_loop import move, run
from support.memory.fault_injection import away, no_fault
from support.resources import mail_queue, workers
from support.running_controller import NAMESPACE, running_controller


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_repetitions_within_a_minute_are_posted_together() -> None:
    pace = EventPace()

    assert pace.due("u", "flaps", seconds(0)) == 1
    assert [pace.due("u", "flaps", seconds(each)) for each in (10, 20, 59)] == [0, 0, 0]
    assert pace.due("u", "flaps", seconds(60)) == 4


def test_events_about_an_object_are_few_after_a_burst() -> None:
    pace = EventPace()
    posted = [pace.due("u", f"event {each}", seconds(0)) for each in range(BURST + 10)]

    assert posted == [1] * BURST + [0] * 10
    assert pace.due("other", "event", seconds(0)) == 1
    assert pace.due("u", "event 30", seconds(299)) == 0
    assert pace.due("u", "event 30", seconds(301)) == 3
    assert pace.due("u", "event 31", seconds(302)) == 0


def test_memory_of_an_object_with_ever_other_events_is_bounded() -> None:
    pace = EventPace()
    for each in range(10 * MAX_NAMES):
        pace.due("u", f"event {each}", seconds(each))

    assert len(pace._objects["u"].events) <= MAX_NAMES + 1
    pace.forget("u")
    assert pace._objects == {}


def test_server_that_flaps_is_an_event_of_its_cluster_and_of_no_queue() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            for number in range(5):
                await operator.create(mail_queue(NAMESPACE, f"queue-{number}"))
            await move(60)
            before = len(operator.calls)
            for number in range(60):
                operator.faults.plan = no_fault if number % 2 else away("view")
                await move(20)

            events = operator.events("ViewUnavailable")
            assert {each["regarding"]["kind"] for each in events} == {QUEUE_CLUSTER.name}
            posts = [each for each in operator.calls[before:] if "events" in each]
            assert len(posts) < 3 * (BURST + 5)
            (event,) = events
            assert event["series"]["count"] > 10

    run(scene())


def test_error_of_one_queue_is_an_event_of_this_queue() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            await operator.change({"blobs": {"bucket": None}, "clusterRef": {"name": "main"}})
            await operator.create(mail_queue(NAMESPACE, "sharing", blobs={"bucket": "missing"}))
            await move(30)
            (event,) = operator.events("BucketNotFound")
            assert event["regarding"]["name"] == "sharing"

    run(scene())
