"""A delivery records what it learns before it ends the item, and insists until that is done."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from postroad.domain.delivery.attempts import Attempted, AttemptOutcomes
from postroad.domain.delivery.events import EventRule, StreamEvent
from postroad.domain.delivery.retries import Endings, ItemEnding, RetryPlan, decide
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.mail.shapes import Shape
from postroad.errors import (
    BlobMissing,
    BlobsUnavailable,
    BrokerUnavailable,
    EntryEnded,
    EntryLost,
    InvalidInput,
    QueueClosed,
    StoreFull,
    StoreUnavailable,
    StreamRefused,
)
from postroad.event_log.spooled import SpooledEvents
from postroad.ports.delivery import AttemptLog
from postroad.ports.events import EventLog, EventSpool
from postroad.ports.mail_queue import Item
from postroad.worker.jobs import deliveries
from postroad.worker.jobs.deliveries import Deliverer
from postroad.worker.reporting import Reporting
from support.workers import AnsweringConnector, OneByOne, a_driving

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
YES, NO, LATER = Outcome.delivered("250 ok"), Outcome.failed("550 no"), Outcome.deferred("450 x")


class StillClock:
    """Stands still, and notes how long it was asked to wait."""

    def __init__(self) -> None:
        self.waits: list[timedelta] = []

    def now(self) -> datetime:
        return NOON

    def elapsed(self) -> timedelta:
        return timedelta(0)

    async def sleep(self, duration: timedelta) -> None:
        self.waits.append(duration)


class NoRandomness:
    def uniform(self) -> float:
        return 0.0

    def bits(self, count: int) -> int:
        return 0


class OneItem(Endings):
    """An item that notes what is done with it; `problems` are raised first, one a call."""

    enqueue_id = UUID(int=1)
    mail_id = UUID(int=2)
    attempt = 0
    size_bytes = 4
    lease_until = 25 * MINUTE

    def __init__(self, *recipients: str, age: timedelta = timedelta(0)) -> None:
        self.mail = Envelope("a@x.example", recipients)
        self.accepted_at = NOON - age
        self.failures: dict[str, str] = {}
        self.problems: list[Exception] = []
        self.steps: list[tuple[object, ...]] = []
        self.kept: AttemptOutcomes | None = None

    async def shape(self) -> Shape | None:
        return None

    async def stream(self) -> AsyncIterator[bytes]:
        yield b"x\r\n"

    def _step(self, *step: object) -> None:
        if self.problems:
            raise self.problems.pop(0)
        self.steps.append(step)

    async def record(self, outcomes: Mapping[str, Outcome]) -> None:
        self._step("record", outcomes)

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        self._step(ending.name, *(getattr(ending, each.name) for each in fields(ending)))
        self.kept = outcomes


class Answers:
    """Answers by recipient, or raises."""

    def __init__(self, answers: Mapping[str, Outcome], error: Exception | None = None) -> None:
        self.answers = answers
        self.error = error
        self.asked: list[tuple[str, ...]] = []

    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes]
    ) -> Mapping[str, Outcome]:
        self.asked.append(envelope.recipients)
        for _ in range(5):  # so that outcomes of the job before are recorded meanwhile
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {recipient: self.answers[recipient] for recipient in envelope.recipients}


class Limited(Answers):
    """As a next hop that takes so many recipients in one transaction."""

    def __init__(self, most: int, answers: Mapping[str, Outcome]) -> None:
        super().__init__(answers)
        self.most = most

    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes]
    ) -> Mapping[str, Outcome]:
        outcomes = await super().transmit(envelope, content)
        return {each: outcomes[each] for each in envelope.recipients[: self.most]}


async def deliver(
    item: OneItem,
    answers: Answers,
    attempt_log: AttemptLog | None = None,
    reporting: Reporting | None = None,
    max_age: timedelta = timedelta(hours=1),
    *,
    soft_bounce: bool = False,
    events: EventLog | None = None,
) -> StillClock:
    """Deliver an item until it is not in flight any more."""
    clock = StillClock()
    driving = a_driving(
        AnsweringConnector(answers),
        RetryPlan((MINUTE, 5 * MINUTE), max_age, jitter=0, soft_bounce=soft_bounce),
        clock,
        NoRandomness(),
        attempt_log=attempt_log,
        reporting=reporting,
        events=events,
    )
    await OneByOne(driving).deliver(cast("Item", item))
    await driving.end(timedelta(0))
    return clock


@pytest.mark.parametrize(
    ("answers", "steps"),
    [
        ({"a@b": YES}, [("done",)]),
        ({"a@b": YES, "c@d": YES}, [("done",)]),
        ({"a@b": LATER}, [("retry", MINUTE, ("a@b",), "450 x")]),
        ({"a@b": NO}, [("reject", "550 no")]),
        (
            {"a@b": YES, "c@d": LATER},
            [("record", {"a@b": YES}), ("retry", MINUTE, ("c@d",), "450 x")],
        ),
        (
            {"a@b": NO, "c@d": LATER, "e@f": NO},
            [("record", {"a@b": NO, "e@f": NO}), ("retry", MINUTE, ("c@d",), "450 x")],
        ),
        (
            {"a@b": YES, "c@d": NO},
            [("record", {"a@b": YES, "c@d": NO}), ("reject", "550 no")],
        ),
    ],
)
async def test_outcomes_are_recorded_where_they_differ_and_then_the_item_ends(
    answers: dict[str, Outcome], steps: list[tuple[object, ...]]
) -> None:
    item = OneItem(*answers)

    await deliver(item, Answers(answers))

    assert item.steps == steps


async def test_a_recipient_of_whom_the_connection_reports_nothing_has_not_the_mail() -> None:
    class Silent(Answers):
        async def transmit(
            self, envelope: Envelope, content: AsyncIterator[bytes]
        ) -> Mapping[str, Outcome]:
            return {each: YES for each in envelope.recipients if each == "a@b"}

    item = OneItem("a@b", "c@d")

    await deliver(item, Silent({}))

    (recorded, ended) = item.steps
    assert recorded == ("record", {"a@b": YES})
    assert ended[:3] == ("retry", MINUTE, ("c@d",))


async def test_a_soft_bounce_records_no_failure_and_comes_again() -> None:
    item, old = OneItem("a@b", "c@d"), OneItem("a@b", age=timedelta(hours=1))

    await deliver(item, Answers({"a@b": NO, "c@d": YES}), soft_bounce=True)
    await deliver(old, Answers({"a@b": NO}), soft_bounce=True)

    assert item.steps == [("record", {"c@d": YES}), ("retry", MINUTE, ("a@b",), "550 no")]
    assert [step[0] for step in old.steps] == ["reject"]


async def test_recipients_that_an_attempt_leaves_out_are_transmitted_at_once() -> None:
    item = OneItem("a@b", "c@d", "e@f", "g@h", "i@j")
    transport = Limited(2, {**dict.fromkeys(item.mail.recipients, YES), "e@f": NO})

    await deliver(item, transport)

    assert transport.asked == [item.mail.recipients[start:] for start in (0, 2, 4)]
    assert item.steps == [
        ("record", {"a@b": YES, "c@d": YES}),
        ("record", {"g@h": YES}),  # a failure is recorded behind its report
        ("record", {"e@f": NO, "i@j": YES}),
        ("reject", "550 no"),
    ]


async def test_answers_that_differ_are_recorded_together() -> None:
    """Each refusal of a large mail quotes another address."""
    answers = {f"r{n}@b": Outcome.failed(f"550 5.1.1 <r{n}@b> is unknown") for n in range(50)}
    item = OneItem(*answers, "late@b")

    await deliver(item, Answers({**answers, "late@b": LATER}))

    assert item.steps[0] == ("record", answers)
    assert item.steps[1][0] == "retry"


@given(
    st.dictionaries(
        st.sampled_from(["a@b", "c@d", "e@f"]), st.sampled_from([YES, LATER, NO]), min_size=1
    ),
    st.dictionaries(st.sampled_from(["a@b", "g@h"]), st.just("550 earlier")),
)
def test_what_is_decided_without_a_clock_is_what_the_plan_says(
    outcomes: dict[str, Outcome], failures: dict[str, str]
) -> None:
    item, clock = OneItem(*outcomes), StillClock()
    item.failures = failures
    plan = RetryPlan((MINUTE, 5 * MINUTE), timedelta(hours=1), jitter=0)
    deliverer = Deliverer("q", plan, clock, NoRandomness())

    ending = deliverer._ending(cast("Item", item), outcomes, {}, timedelta(0))

    age = clock.now() - item.accepted_at
    assert ending == decide(
        plan, outcomes, failures, {}, attempt=item.attempt, age=age, uniform=0.0
    )


async def test_failures_of_earlier_entries_make_a_dead_letter_in_the_end() -> None:
    item = OneItem("a@b")
    item.failures = {"c@d": "550 earlier"}

    await deliver(item, Answers({"a@b": YES}))

    assert item.steps == [("record", {"a@b": YES}), ("reject", "550 earlier")]


async def test_many_recipients_go_in_parts_each_recorded_before_the_next() -> None:
    recipients = [f"{number}@x" for number in range(250)]
    item = OneItem(*recipients)
    transport = Answers(dict.fromkeys(recipients, YES))

    await deliver(item, transport)

    assert sorted(len(part) for part in transport.asked) == [50, 100, 100]
    assert [step[0] for step in item.steps] == ["record", "record", "done"]
    assert item.kept is not None
    assert [each.count for each in item.kept.counts] == [250]


@pytest.mark.parametrize(
    ("answers", "ending"),
    [((YES,), "done"), ((YES, LATER), "retry"), ((NO,), "reject"), ((NO, LATER, YES), "retry")],
)
async def test_every_ending_is_handed_the_outcomes_of_all_recipients(
    answers: tuple[Outcome, ...], ending: str
) -> None:
    outcomes = {f"{number}@x.example": each for number, each in enumerate(answers)}
    item = OneItem(*outcomes)

    await deliver(item, Answers(outcomes))

    at_site = {each: replace(outcome, site="hop.example") for each, outcome in outcomes.items()}
    assert item.steps[-1][0] == ending
    assert item.kept == AttemptOutcomes.of(at_site, 0.0)


async def test_an_outcome_is_insisted_on_while_the_queue_is_away() -> None:
    item = OneItem("a@b")
    item.problems = [BrokerUnavailable(), RuntimeError("a bug"), BrokerUnavailable()]
    transport = Answers({"a@b": YES})

    clock = await deliver(item, transport)

    assert item.steps == [("done",)]
    assert transport.asked == [("a@b",)]
    assert clock.waits == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4)]


async def test_an_ending_that_got_through_before_is_an_ending() -> None:
    item = OneItem("a@b")
    item.problems = [BrokerUnavailable(), EntryEnded()]

    await deliver(item, Answers({"a@b": YES}))

    assert item.problems == []


async def test_an_entry_that_was_lost_is_not_insisted_on_and_not_called_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    item = OneItem("a@b")
    item.problems = [StoreUnavailable(), EntryLost("the owner is gone")]

    await deliver(item, Answers({"a@b": YES}))

    assert item.problems == []
    assert caplog.messages == ["outcome not recorded yet", "entry lost"]
    assert vars(caplog.records[-1])["delivered"] == 1


async def test_a_closed_queue_ends_the_insisting() -> None:
    item = OneItem("a@b")
    item.problems = [QueueClosed()]

    await deliver(item, Answers({"a@b": YES}))

    assert item.steps == []


async def test_a_mail_whose_content_cannot_be_read_was_not_attempted() -> None:
    item = OneItem("a@b", "c@d")

    await deliver(item, Answers({}, BlobsUnavailable()))

    [step] = item.steps
    assert step == ("defer", 5 * MINUTE, ("a@b", "c@d"), "451 4.3.0 BlobsUnavailable")
    assert item.kept is None


async def test_a_mail_whose_content_breaks_off_was_attempted() -> None:
    class Broken(OneItem):
        async def stream(self) -> AsyncIterator[bytes]:
            yield b"x"
            raise BlobsUnavailable

    class Reads(Answers):
        async def transmit(
            self, envelope: Envelope, content: AsyncIterator[bytes]
        ) -> Mapping[str, Outcome]:
            async for _ in content:
                pass
            return await super().transmit(envelope, content)

    item = Broken("a@b")

    await deliver(item, Reads({"a@b": YES}))

    assert item.steps == [("retry", MINUTE, ("a@b",), "451 4.3.0 BlobsUnavailable")]


async def test_a_mail_that_is_deferred_until_it_is_too_old_is_given_up() -> None:
    item = OneItem("a@b", age=timedelta(hours=2))

    await deliver(item, Answers({}, BlobsUnavailable()))

    assert item.steps == [("reject", "not delivered within 1h: 451 4.3.0 BlobsUnavailable")]


@pytest.mark.parametrize("error", [InvalidInput("a mistake"), RuntimeError("a bug")])
async def test_what_could_not_be_transmitted_is_tried_again(error: Exception) -> None:
    item = OneItem("a@b")

    await deliver(item, Answers({}, error))

    [(step, delay, remaining, _)] = item.steps
    assert (step, delay, remaining) == ("retry", MINUTE, ("a@b",))


async def test_a_mail_without_its_bytes_was_ended_by_the_queue() -> None:
    item = OneItem("a@b")

    await deliver(item, Answers({}, BlobMissing()))

    assert item.steps == []


async def test_a_mail_that_is_too_old_is_given_up_with_the_last_answer() -> None:
    item = OneItem("a@b", age=timedelta(hours=2))

    await deliver(item, Answers({"a@b": LATER}))

    assert item.steps == [("reject", "not delivered within 1h: 450 x")]


@pytest.mark.parametrize("error", [None, BlobsUnavailable(), QueueClosed()])
async def test_a_content_that_was_not_read_to_its_end_is_closed(error: Exception | None) -> None:
    class Downloading(OneItem):
        is_open = False

        async def stream(self) -> AsyncIterator[bytes]:
            self.is_open = True
            try:
                yield b"x"
                yield b"y"
            finally:
                self.is_open = False

    class StopsEarly(Answers):
        async def transmit(
            self, envelope: Envelope, content: AsyncIterator[bytes]
        ) -> Mapping[str, Outcome]:
            assert await anext(content) == b"x"
            assert item.is_open
            return await super().transmit(envelope, content)

    item = Downloading("a@b")
    await deliver(item, StopsEarly({"a@b": YES}, error))

    assert not item.is_open


async def test_logs_hold_ids_and_codes_but_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    written = structlog.testing.LogCapture()
    monkeypatch.setattr(deliveries, "_log", structlog.wrap_logger(None, [written]))
    secret = "secret.person@secret.example"
    item = OneItem(secret)

    await deliver(item, Answers({secret: Outcome.failed(f"550 5.1.1 <{secret}> unknown")}))

    [line] = written.entries
    assert line["event"] == "mail rejected"
    assert line["enqueue_id"] == str(item.enqueue_id)
    assert line["replies"] == ["550 5.1.1"]
    assert line["reasons"] == ["no-mailbox"]
    assert line["attempt"] == 1, "as the attempt log counts"
    assert "secret" not in str(line)


class WithMessageId(OneItem):
    async def stream(self) -> AsyncIterator[bytes]:
        yield b"Subject: x\r\nMessage-ID: <1@x.example>\r\n\r\nMessage-ID: <2@x.example>\r\n"


class ReadingAnswers(Answers):
    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes]
    ) -> Mapping[str, Outcome]:
        assert [each async for each in content]
        return await super().transmit(envelope, content)


class KeptAttempts:
    def __init__(self) -> None:
        self.found: list[Attempted] = []

    def write(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        self.found.append(attempted)


async def test_the_attempt_log_has_the_message_id_of_the_content_that_was_read() -> None:
    log = KeptAttempts()

    await deliver(WithMessageId("a@b"), ReadingAnswers({"a@b": YES}), log)

    assert [each.message_id for each in log.found] == ["<1@x.example>"]


class NotedSpool:
    """Notes what is kept beside the steps of an item; `problems` are raised first."""

    def __init__(self, item: OneItem, *problems: Exception) -> None:
        self.item, self.problems = item, list(problems)

    async def append(self, events: Sequence[StreamEvent]) -> None:
        await asyncio.sleep(0)
        if self.problems:
            raise self.problems.pop(0)
        self.item.steps.append(("events", [json.loads(body)["type"] for _, _, body in events]))


def noted(spool: NotedSpool) -> SpooledEvents:
    return SpooledEvents(cast("EventSpool", spool), [EventRule("all")], "mail.out")


@pytest.mark.parametrize(
    ("answers", "soft_bounce", "steps"),
    [
        ({"a@b": YES}, False, [("events", ["Delivered"]), ("done",)]),
        (
            {"a@b": LATER},
            False,
            [("events", ["Deferred"]), ("retry", MINUTE, ("a@b",), "450 x")],
        ),
        ({"a@b": NO}, False, [("events", ["Failed"]), ("reject", "550 no")]),
        ({"a@b": NO}, True, [("events", ["Deferred"]), ("retry", MINUTE, ("a@b",), "550 no")]),
        (
            {"a@b": YES, "c@d": LATER},
            False,
            [
                ("events", ["Delivered", "Deferred"]),
                ("record", {"a@b": YES}),
                ("retry", MINUTE, ("c@d",), "450 x"),
            ],
        ),
    ],
)
async def test_events_are_durable_before_what_they_are_about_is_recorded(
    answers: Mapping[str, Outcome], soft_bounce: bool, steps: list[tuple[object, ...]]
) -> None:
    item = OneItem(*answers)

    await deliver(item, Answers(answers), events=noted(NotedSpool(item)), soft_bounce=soft_bounce)

    assert item.steps == steps


async def test_a_mail_that_is_given_up_has_failed() -> None:
    item = OneItem("a@b", age=timedelta(hours=2))

    await deliver(item, Answers({"a@b": LATER}), events=noted(NotedSpool(item)))

    assert item.steps[0] == ("events", ["Deferred", "Failed"])
    assert item.steps[1][0] == "reject"


async def test_nothing_is_recorded_until_its_events_can_be_kept() -> None:
    item = OneItem("a@b")
    spool = NotedSpool(item, BrokerUnavailable("away"), StoreFull("full"), OSError("a bug"))

    clock = await deliver(item, Answers({"a@b": YES}), events=noted(spool))

    assert item.steps == [("events", ["Delivered"]), ("done",)]
    assert [each.total_seconds() for each in clock.waits] == [1, 2, 4]


class SpoolOfMany(NotedSpool):
    """Refuses the stream `bad`, and keeps others."""

    is_away = False

    async def append(self, events: Sequence[StreamEvent]) -> None:
        await asyncio.sleep(0)
        if "bad" in {stream for stream, _, _ in events}:
            raise BrokerUnavailable("away") if self.is_away else StreamRefused("bad", "403")
        await super().append(events)


def dropped(queue: str) -> float:
    labels = dict(zip(("namespace", "name"), queue.split("."), strict=True))
    labels |= {"stream": "bad", "result": "refused"}
    return REGISTRY.get_sample_value("postroad_events_total", labels) or 0.0


async def test_a_stream_that_the_broker_refuses_holds_up_no_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rules, before = [EventRule("bad"), EventRule("all")], dropped("mail.out")
    item = OneItem("a@b")
    spool = SpoolOfMany(item)
    events = SpooledEvents(cast("EventSpool", spool), rules, "mail.out")

    for _ in range(2):
        clock = await deliver(item, Answers({"a@b": YES}), events=events)
        assert clock.waits == []

    assert item.steps == [("events", ["Delivered"]), ("done",)] * 2
    assert dropped("mail.out") - before == 2
    assert caplog.messages.count("events of a stream are dropped") == 1


async def test_events_of_a_stream_that_was_taken_out_hold_up_no_outcome() -> None:
    item = OneItem("a@b")
    spool = SpoolOfMany(item)
    spool.is_away = True
    events = SpooledEvents(cast("EventSpool", spool), [EventRule("bad")], "mail.out")
    delivering = asyncio.create_task(deliver(item, Answers({"a@b": YES}), events=events))
    for _ in range(20):
        await asyncio.sleep(0)
    assert item.steps == []

    events.rules = [EventRule("all")]
    await delivering

    assert item.steps[-1] == ("done",)


async def test_without_a_stream_nothing_is_noted_or_kept() -> None:
    item = OneItem("a@b")
    events = noted(NotedSpool(item))
    events.rules = ()

    await deliver(item, Answers({"a@b": YES}), events=events)

    assert item.steps == [("done",)]


async def test_events_that_wait_at_the_same_time_are_kept_together() -> None:
    class Slow(NotedSpool):
        async def append(self, events: Sequence[StreamEvent]) -> None:
            await super().append(events)
            sizes.append(len(events))

    sizes = list[int]()
    items = [OneItem(f"a{each}@b") for each in range(50)]
    events = noted(Slow(OneItem("a@b")))
    answers = Answers({recipient: YES for each in items for recipient in each.mail.recipients})
    await asyncio.gather(*(deliver(each, answers, events=events) for each in items))

    assert sum(sizes) == 50
    assert len(sizes) < 25
