"""The worker writes each attempt into the attempt log before the queue records its outcome."""

from collections.abc import Mapping
from datetime import timedelta

from postroad.domain.delivery.attempts import Attempted
from postroad.domain.mail.mail import Outcome
from postroad.errors import BlobsUnavailable
from unit.worker.test_deliveries import (
    LATER,
    NO,
    NOON,
    YES,
    Answers,
    Limited,
    OneItem,
    deliver,
)


class Written:
    """An attempt log that notes what it gets, and after how many steps of the item."""

    def __init__(self, item: OneItem) -> None:
        self._item = item
        self.lines: list[tuple[Mapping[str, Outcome], bool, int]] = []
        self.attempted: list[Attempted] = []

    def write(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        self.attempted.append(attempted)
        self.lines.append((dict(outcomes), given_up, len(self._item.steps)))


async def written(item: OneItem, transport: Answers) -> Written:
    log = Written(item)
    await deliver(item, transport, log)
    return log


async def test_each_transmission_is_written_before_anything_is_recorded() -> None:
    item = OneItem("a@b", "c@d", "e@f")

    log = await written(item, Limited(2, {"a@b": YES, "c@d": NO, "e@f": LATER}))

    assert log.lines == [({"a@b": YES, "c@d": NO}, False, 0), ({"e@f": LATER}, False, 1)]
    (first, _) = log.attempted
    assert (first.queue, first.mail_id, first.number) == ("q", item.mail_id, 1)
    assert (first.sender, first.accepted_at, first.ended_at) == ("a@x.example", NOON, NOON)


async def test_a_mail_that_is_given_up_has_a_further_line_for_whom_it_was_deferred() -> None:
    item = OneItem("a@b", "c@d", age=timedelta(hours=2))

    log = await written(item, Answers({"a@b": NO, "c@d": LATER}))

    assert log.lines == [({"a@b": NO, "c@d": LATER}, False, 0), ({"c@d": LATER}, True, 0)]
    assert item.steps[-1][0] == "reject"


async def test_a_mail_that_is_tried_again_is_not_given_up() -> None:
    log = await written(OneItem("a@b"), Answers({"a@b": LATER}))

    assert [given_up for _, given_up, _ in log.lines] == [False]


async def test_a_mail_that_was_deferred_until_it_is_too_old_has_a_line() -> None:
    item = OneItem("a@b", age=timedelta(hours=2))

    log = await written(item, Answers({}, BlobsUnavailable()))

    assert log.lines == [({"a@b": Outcome.deferred("451 4.3.0 BlobsUnavailable")}, True, 0)]
