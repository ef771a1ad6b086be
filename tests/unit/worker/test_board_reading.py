"""What workers obey is read from the board at once, and what one topic leads to fails alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from postroad.adapters.memory.fault_injection import Fault
from postroad.errors import ViewUnavailable
from postroad.ports.delivery import Topic
from postroad.worker.sites.board_use import READ_EVERY, BoardReader, Obey
from postroad.worker.sites.control import FlushAnswers, SiteControl
from postroad.worker.sites.rerouting import Reroutes
from support.workers import running
from unit.worker.test_driving import MINUTE, SECOND, a_worker


async def test_a_worker_at_rest_reads_its_board_once_in_five_seconds() -> None:
    async with a_worker() as worker:
        board, clock = worker.queue.board, worker.process.clock
        control = SiteControl(board, clock, "w", watches_answers=True)
        obeyed: dict[Topic, Obey] = {
            Topic.SUSPENSIONS: control.obey,
            Topic.REROUTES: partial(Reroutes(clock).obey, worker.driving.route_again),
            Topic.FLUSHES: partial(
                FlushAnswers(board, "w", relay=lambda: None).answer, worker.driving.try_now
            ),
        }
        reader = BoardReader(board, clock, obeyed)
        before = len(worker.process.faults.steps)
        async with running(reader.run(), control.run(worker.driving.sites)):
            await worker.pass_time(MINUTE - SECOND)

        made = Counter(each.operation for each in worker.process.faults.steps[before:])
        assert (made["posted"], made["post"]) == (11, 4), "and posts its sites each 15 s"


class Notes:
    """Keeps what it is to obey."""

    def __init__(self, error: Exception | None = None) -> None:
        self.got: list[Mapping[str, str] | None] = []
        self._error = error

    async def __call__(self, posted: Mapping[str, str] | None) -> None:
        self.got.append(posted)
        if self._error is not None:
            raise self._error


async def test_what_fails_of_one_topic_keeps_no_other_from_being_obeyed() -> None:
    async with a_worker() as worker:
        board, clock = worker.queue.board, worker.process.clock
        await board.post(Topic.SUSPENSIONS, "s", "1", MINUTE)
        await board.post(Topic.FLUSHES, "f", "2", MINUTE)
        odd, away, well = Notes(TypeError("a bug")), Notes(ViewUnavailable("away")), Notes()
        obeyed = {Topic.SUSPENSIONS: odd, Topic.REROUTES: away, Topic.FLUSHES: well}
        async with running(BoardReader(board, clock, obeyed).run()):
            await worker.pass_time(READ_EVERY)
            worker.process.faults.plan = lambda _: Fault.AWAY
            await worker.pass_time(READ_EVERY)

        assert (odd.got, away.got) == ([{"s": "1"}, None], [{}, None])
        assert well.got == [{"f": "2"}, None]
