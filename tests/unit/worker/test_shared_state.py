"""What workers obey is read from the shared state at once, and what one topic leads to fails
alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from postroad.domain.delivery.sites import READ_EVERY
from postroad.errors import ViewUnavailable
from postroad.ports.delivery import Topic
from postroad.worker.route_finder import Reroutes
from postroad.worker.sites.control import (
    FlushAcks,
    Obey,
    SharedStateReader,
    SiteControl,
)
from support.memory.fault_injection import Fault
from support.workers import running
from unit.worker.test_driving import MINUTE, SECOND, a_worker


async def test_a_worker_at_rest_reads_its_shared_state_once_in_five_seconds() -> None:
    async with a_worker() as worker:
        shared_state, clock = worker.queue.shared_state, worker.process.clock
        control = SiteControl(shared_state, clock, "w", watches_replies=True)
        obeyed: dict[Topic, Obey] = {
            Topic.SUSPENSIONS: control.obey,
            Topic.REROUTES: partial(Reroutes(clock).obey, worker.driving.route_again),
            Topic.FLUSHES: partial(
                FlushAcks(shared_state, "w", relay=lambda: None).acknowledge, worker.driving.try_now
            ),
        }
        reader = SharedStateReader(shared_state, clock, obeyed)
        before = len(worker.process.faults.steps)
        async with running(reader.run(), control.run(worker.driving.sites)):
            await worker.pass_time(MINUTE - SECOND)

        made = Counter(each.operation for each in worker.process.faults.steps[before:])
        assert (made["published"], made["publish_entry"]) == (11, 4), (
            "and publishes its sites each 15 s"
        )


class Entries:
    """Keeps what it is to obey."""

    def __init__(self, error: Exception | None = None) -> None:
        self.got: list[Mapping[str, str] | None] = []
        self._error = error

    async def __call__(self, published: Mapping[str, str] | None) -> None:
        self.got.append(published)
        if self._error is not None:
            raise self._error


async def test_what_fails_of_one_topic_keeps_no_other_from_being_obeyed() -> None:
    async with a_worker() as worker:
        shared_state, clock = worker.queue.shared_state, worker.process.clock
        await shared_state.publish(Topic.SUSPENSIONS, "s", "1", MINUTE)
        await shared_state.publish(Topic.FLUSHES, "f", "2", MINUTE)
        odd, away, well = Entries(TypeError("a bug")), Entries(ViewUnavailable("away")), Entries()
        obeyed = {Topic.SUSPENSIONS: odd, Topic.REROUTES: away, Topic.FLUSHES: well}
        async with running(SharedStateReader(shared_state, clock, obeyed).run()):
            await worker.pass_time(READ_EVERY)
            worker.process.faults.plan = lambda _: Fault.AWAY
            await worker.pass_time(READ_EVERY)

        assert (odd.got, away.got) == ([{"s": "1"}, None], [{}, None])
        assert well.got == [{"f": "2"}, None]
