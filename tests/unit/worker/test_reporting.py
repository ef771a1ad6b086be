"""A delivery queues the report that is due before it records a failure, and no mail waits for a
report that cannot be queued."""

from __future__ import annotations

import email
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from prometheus_client import REGISTRY

from postroad.domain.mail.mail import DsnOptions, Mail, Outcome, RecipientDsn, Responder
from postroad.domain.mail.shapes import Shape, shape_of
from postroad.domain.reports import composing
from postroad.domain.reports.deciding import DOUBLE_BOUNCE, REPORT, ReportRules
from postroad.errors import (
    BlobMissing,
    InvalidMail,
    KeyReused,
    StoreFailed,
    StoreFull,
    ViewUnavailable,
)
from postroad.ports.mail_queue import Item, MailQueue
from postroad.worker.jobs.deliveries import NO_ROOM_FOR_REPORT
from support.reported import DEFAULT_RULES, reporting
from unit.worker.test_deliveries import (
    LATER,
    MINUTE,
    NO,
    NOON,
    YES,
    Answers,
    OneItem,
    StillClock,
)
from unit.worker.test_deliveries import (
    deliver as deliver_item,
)

HOUR = timedelta(hours=1)
SENDER = "a@x.example"
HEADER = b"Subject: hello\r\nTo: b@d\r\n\r\n"


class Reported(OneItem):
    """An item with a content, whose steps stand among those of the queue."""

    def __init__(self, *recipients: str, age: timedelta = timedelta(0)) -> None:
        super().__init__(*recipients, age=age)
        self.enqueued_at = self.accepted_at
        self.octets = HEADER + b"body\r\n"
        self.size_bytes = len(self.octets)
        self.error: Exception | None = None
        self.knows_shape = True

    async def shape(self) -> Shape | None:
        return shape_of((self.octets,)) if self.knows_shape else None

    async def content(self) -> bytes:
        if self.error is not None:
            raise self.error
        return self.octets

    async def stream(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.octets), 16):
            yield self.octets[start : start + 16]


class Reports:
    """A queue that takes reports, and notes them among the steps of an item."""

    name = "q"

    def __init__(self, item: Reported) -> None:
        self.item = item
        self.errors: list[Exception] = []
        self.mails: list[Mail] = []
        self.keys: list[str | None] = []
        self.delays: list[timedelta] = []

    async def enqueue(
        self, mail: Mail, delay: timedelta = timedelta(0), *, key: str | None = None
    ) -> None:
        self.keys.append(key)
        if self.errors:
            raise self.errors.pop(0)
        self.item.steps.append(("report", mail.recipients[0]))
        self.mails.append(mail)
        self.delays.append(delay)


async def deliver(
    item: Reported,
    answers: Mapping[str, Outcome],
    *errors: Exception,
    rules: ReportRules = DEFAULT_RULES,
    per_minute: int = 1_000_000,
) -> Reports:
    clock, reports = StillClock(), Reports(item)
    reports.errors = list(errors)
    made = reporting(cast("MailQueue", reports), clock, rules, per_minute)
    await deliver_item(item, Answers(answers), reporting=made, max_age=24 * HOUR)
    return reports


def count(result: str) -> float:
    labels = {"namespace": "", "name": "q", "result": result}
    return REGISTRY.get_sample_value("postroad_reports_total", labels) or 0.0


@pytest.mark.parametrize(
    ("answers", "steps"),
    [
        ({"a@b": YES}, [("done",)]),
        ({"a@b": LATER}, [("retry", MINUTE, ("a@b",), "450 x")]),
        ({"a@b": NO}, [("report", SENDER), ("reject", "550 no")]),
        (
            {"a@b": YES, "c@d": NO},
            [("record", {"a@b": YES}), ("report", SENDER), ("reject", "550 no")],
        ),
        (
            {"a@b": YES, "c@d": NO, "e@f": LATER},
            [
                ("record", {"a@b": YES}),
                ("report", SENDER),
                ("record", {"c@d": NO}),
                ("retry", MINUTE, ("e@f",), "450 x"),
            ],
        ),
    ],
)
async def test_a_failure_is_recorded_behind_its_report_and_a_delivery_before_it(
    answers: dict[str, Outcome], steps: list[tuple[object, ...]]
) -> None:
    item = Reported(*answers)

    await deliver(item, answers)

    assert [step for step in item.steps if step != ("record", {"e@f": LATER})] == steps


async def test_success_is_recorded_behind_its_report_too() -> None:
    item = Reported("a@b", "c@d")
    asked = DsnOptions(recipients={"a@b": RecipientDsn(("SUCCESS",))})
    item.mail = replace(item.mail, dsn=asked)

    await deliver(item, {"a@b": YES, "c@d": YES})

    assert item.steps == [("record", {"c@d": YES}), ("report", SENDER), ("done",)]


async def test_a_delay_is_reported_once() -> None:
    first, second = Reported("a@b", age=5 * HOUR), Reported("a@b", age=5 * HOUR)
    first.enqueued_at = NOON - 2 * HOUR
    second.enqueued_at = NOON - HOUR / 2

    of_first = await deliver(first, {"a@b": LATER})
    of_second = await deliver(second, {"a@b": LATER})

    assert [each.attributes[REPORT] for each in of_first.mails] == ["delayed"]
    assert of_second.mails == []


async def test_a_mail_whose_time_is_over_is_reported_as_failed() -> None:
    item = Reported("a@b", age=25 * HOUR)

    reports = await deliver(item, {"a@b": LATER})

    assert [each.attributes[REPORT] for each in reports.mails] == ["failed"]
    assert b"Status: 4.4.7" in cast("bytes", reports.mails[0].content)
    assert [step[0] for step in item.steps] == ["report", "reject"]


async def test_a_report_is_repeated_until_it_is_queued_with_the_same_key() -> None:
    item = Reported("a@b")

    reports = await deliver(item, {"a@b": NO}, ViewUnavailable(), RuntimeError("a driver's bug"))

    assert item.steps == [("report", SENDER), ("reject", "550 no")]
    assert len(reports.keys) == 3
    assert len(set(reports.keys)) == 1
    assert None not in reports.keys


async def test_a_report_that_was_queued_before_with_other_words_is_not_queued_again() -> None:
    item, before = Reported("a@b"), count("repeated")

    reports = await deliver(item, {"a@b": NO}, KeyReused())

    assert reports.mails == []
    assert item.steps == [("reject", "550 no")]
    assert count("repeated") == before + 1


async def test_a_report_that_no_queue_takes_blocks_no_mail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    item, before = Reported("a@b"), count("impossible")

    reports = await deliver(item, {"a@b": NO}, InvalidMail("an address is malformed"))

    assert reports.mails == []
    assert item.steps == [("reject", "550 no")]
    assert count("impossible") == before + 1
    assert "report impossible" in [each.message for each in caplog.records]
    assert SENDER not in caplog.text


@pytest.mark.parametrize(
    ("answers", "recorded", "remaining"),
    [
        ({"a@b": NO}, [], ("a@b",)),
        ({"a@b": YES, "c@d": NO}, [("record", {"a@b": YES})], ("c@d",)),
        ({"a@b": NO, "c@d": LATER}, [], ("a@b", "c@d")),
    ],
)
async def test_without_room_for_a_report_its_recipients_wait_on_unrecorded(
    answers: dict[str, Outcome],
    recorded: list[tuple[object, ...]],
    remaining: tuple[str, ...],
) -> None:
    """The item leaves the worker, since deliveries of other mail make room."""
    item = Reported(*answers)

    await deliver(item, answers, StoreFull())

    assert item.steps == [*recorded, ("defer", 5 * MINUTE, remaining, NO_ROOM_FOR_REPORT)]


async def test_a_mail_that_was_delivered_ends_without_room_for_its_report() -> None:
    item = Reported("a@b")
    item.mail = replace(item.mail, dsn=DsnOptions(recipients={"a@b": RecipientDsn(("SUCCESS",))}))
    item.failures = {"c@d": "550 no"}

    await deliver(item, {"a@b": YES}, StoreFull())

    assert item.steps == [("record", {"a@b": YES}), ("reject", "550 no")]


async def test_reports_beyond_the_limit_wait_and_those_beyond_an_hour_are_not_sent() -> None:
    clock, item = StillClock(), Reported("a@b")
    reports = Reports(item)
    made = reporting(cast("MailQueue", reports), clock, per_minute=1)
    before = count("limited")

    for _ in range(64):
        due = made.prepare(cast("Item", item), {"a@b": NO}, {}, ending=None)  # type: ignore[arg-type]
        if due is not None:
            await made.send(due)

    assert reports.delays == [MINUTE * number for number in range(61)]
    assert count("limited") == before + 3


async def test_a_report_without_room_counts_in_no_limit() -> None:
    """Its mail is attempted again and again, and would be reported to no address in the end."""
    clock, item = StillClock(), Reported("a@b")
    reports, before = Reports(item), count("limited")
    made = reporting(cast("MailQueue", reports), clock, per_minute=1)

    for _ in range(100):
        reports.errors = [StoreFull()]
        due = made.prepare(cast("Item", item), {"a@b": NO}, {}, ending=None)  # type: ignore[arg-type]
        assert due is not None
        with pytest.raises(StoreFull):
            await made.send(due)
    await deliver_item(item, Answers({"a@b": NO}), reporting=made, max_age=24 * HOUR)

    assert reports.delays == [timedelta(0)]
    assert count("limited") == before


def third_part(mail: Mail) -> tuple[str, bytes]:
    parts = parts_of(mail)
    return parts[2].get_content_type(), parts[2].as_bytes()


async def test_a_mail_goes_back_whole_and_a_larger_one_by_its_header() -> None:
    small, large = Reported("a@b"), Reported("a@b")
    rules = ReportRules(largest_returned=small.size_bytes)
    large.octets += b"more\r\n"
    large.size_bytes += 6

    (whole,) = (await deliver(small, {"a@b": NO}, rules=rules)).mails
    (header,) = (await deliver(large, {"a@b": NO}, rules=rules)).mails

    assert third_part(whole)[0] == "message/rfc822"
    assert b"body" in third_part(whole)[1]
    assert third_part(header)[0] == "text/rfc822-headers"
    assert b"To: b@d" in third_part(header)[1]
    assert b"body" not in third_part(header)[1]


@pytest.mark.parametrize("knows_shape", [True, False])
async def test_of_a_header_that_is_too_long_its_first_lines_go_back(*, knows_shape: bool) -> None:
    item = Reported("a@b")
    item.knows_shape = knows_shape
    item.octets = b"Subject: hello\r\nX-Long: " + b"x" * 1000 + b"\r\n\r\nbody\r\n"
    item.size_bytes = len(item.octets)

    (mail,) = (await deliver(item, {"a@b": NO}, rules=ReportRules(largest_returned=100))).mails

    assert b"Subject: hello" in third_part(mail)[1]
    assert b"X-Long" not in cast("bytes", mail.content)


@pytest.mark.parametrize("error", [BlobMissing(), StoreFailed("cannot read mail/000000/12")])
async def test_a_mail_whose_bytes_cannot_be_had_is_reported_without_them(error: Exception) -> None:
    item = Reported("a@b")
    item.error = error

    (mail,) = (await deliver(item, {"a@b": NO})).mails

    assert len(parts_of(mail)) == 2


RULES = ReportRules(administrator="postmaster@x.example")
BY_HOP = Responder("mx.example.net")


async def a_report(age: timedelta = timedelta(0), rules: ReportRules = DEFAULT_RULES) -> Reported:
    """Return the item of a report that returns a mail."""
    (mail,) = (await deliver(Reported("a@b"), {"a@b": NO}, rules=rules)).mails
    item = Reported(*mail.recipients, age=age)
    item.mail, item.octets = mail.envelope, cast("bytes", mail.content)
    item.size_bytes = len(item.octets)
    return item


def refused(text: str, responder: Responder | None = BY_HOP) -> dict[str, Outcome]:
    return {SENDER: replace(Outcome.failed(text), responder=responder)}


@pytest.mark.parametrize(
    "text",
    [
        "552 5.3.4 the next hop takes at most 100 octets",
        "552 message size exceeds fixed limit",
        "552 5.2.2 over quota",
        "554 5.6.3 the next hop does not offer 8BITMIME, and the mail cannot be converted",
        "554 5.6.0 the mail holds a NUL octet, which mail must not hold",
        "550 5.7.1 message contains spam",
        "554 5.7.1 blocked: contains a URL on a block list",
        "550 5.7.0 virus found",
        "554 transaction failed",
        "554 5.3.0 rejected by milter",
        "550 no",
    ],
)
async def test_a_report_that_is_refused_for_what_it_returns_goes_once_more_without_it(
    text: str,
) -> None:
    item, before = await a_report(), count("shortened")

    reports = await deliver(item, refused(text), rules=RULES)

    (mail,) = reports.mails
    assert item.steps == [("report", SENDER), ("reject", text)]
    assert (mail.sender, mail.recipients, mail.attributes) == (None, (SENDER,), {REPORT: "failed"})
    assert len(parts_of(mail)) == 2
    assert b"Subject: hello" not in cast("bytes", mail.content)
    assert count("shortened") == before + 1

    again = Reported(SENDER)
    again.mail, again.octets = mail.envelope, cast("bytes", mail.content)
    (double,) = (await deliver(again, refused(text), rules=RULES)).mails
    assert double.attributes[REPORT] == "double-bounce"
    assert double.recipients == ("postmaster@x.example",)


@pytest.mark.parametrize(
    "text",
    [
        "550 5.1.1 no such user",
        "550 no such user",
        "550 5.7.1 relay access denied",
        "556 5.1.10 the domain x.example accepts no mail (null MX)",
        "550 5.7.1 not mailed, on the suppression list: asked for it",
        "550 5.4.6 too many hops",
        "550 5.4.4 unroutable",
        "553 5.1.7 sender address invalid",
    ],
)
async def test_a_report_whose_address_fails_is_reported_to_the_administrator(text: str) -> None:
    item = await a_report()

    (mail,) = (await deliver(item, refused(text, None), rules=RULES)).mails

    assert mail.recipients == ("postmaster@x.example",)
    assert mail.attributes[REPORT] == "double-bounce"
    assert item.steps == [("report", "postmaster@x.example"), ("reject", text)]


@pytest.mark.parametrize(
    ("sender", "recipients", "reported"),
    [(SENDER, (SENDER,), SENDER), (None, (SENDER, "a@b"), "postmaster@x.example")],
)
async def test_a_mail_with_the_attributes_of_a_report_is_reported_as_any_mail(
    sender: str | None, recipients: tuple[str, ...], reported: str
) -> None:
    """A program may copy attributes to mail of its own."""
    item = await a_report()
    item.mail = replace(item.mail, sender=sender, recipients=recipients)

    reports = await deliver(item, dict.fromkeys(recipients, NO), rules=RULES)

    assert [each.recipients for each in reports.mails] == [(reported,)]


@pytest.mark.parametrize("text", ["550 5.1.1 no such user", "554 5.6.0 bad content"])
async def test_a_report_to_the_administrator_goes_once_more_shortened_and_never_further(
    text: str,
) -> None:
    (double,) = (await deliver(await a_report(), refused("550 5.1.1 no"), rules=RULES)).mails
    item = Reported(*double.recipients)
    item.mail, item.octets = double.envelope, cast("bytes", double.content)

    reports = await deliver(item, {"postmaster@x.example": Outcome.failed(text)}, rules=RULES)

    expected = [DOUBLE_BOUNCE] if "5.6.0" in text else []
    assert [each.attributes[REPORT] for each in reports.mails] == expected


@pytest.mark.parametrize(
    ("text", "is_shortened"),
    [
        ("452 4.3.4 message too large", True),
        ("451 4.7.1 looks like spam", True),
        ("450 4.2.0 greylisted", False),
        ("451 4.3.0 try later", False),
        ("451 4.4.2 the connection was lost", False),
    ],
)
async def test_a_report_whose_time_is_over_goes_shortened_where_its_content_was_deferred(
    text: str, *, is_shortened: bool
) -> None:
    item = await a_report(age=25 * HOUR)

    (mail,) = (await deliver(item, {SENDER: Outcome.deferred(text)}, rules=RULES)).mails

    assert mail.attributes[REPORT] == ("failed" if is_shortened else DOUBLE_BOUNCE)


async def test_a_report_that_is_deferred_goes_as_it_is() -> None:
    item = await a_report()

    reports = await deliver(item, {SENDER: Outcome.deferred("451 4.7.1 spam")}, rules=RULES)

    assert reports.mails == []


async def test_a_shortened_report_is_queued_under_a_key_of_its_own_and_once() -> None:
    item, before = await a_report(), count("repeated")

    first = await deliver(item, refused("550 no"), ViewUnavailable())
    second = await deliver(item, refused("554 no"), KeyReused())

    assert len({*first.keys, *second.keys}) == 1
    assert second.mails == []
    assert count("repeated") == before + 1


async def test_without_room_for_a_shortened_report_the_report_waits_on() -> None:
    item = await a_report()

    await deliver(item, refused("550 no"), StoreFull())

    assert item.steps == [("defer", 5 * MINUTE, (SENDER,), NO_ROOM_FOR_REPORT)]


async def test_a_report_whose_bytes_are_gone_is_not_shortened_and_ends() -> None:
    item, before = await a_report(), count("impossible")
    item.error = BlobMissing()

    reports = await deliver(item, refused("550 no"))

    assert reports.mails == []
    assert item.steps == [("reject", "550 no")]
    assert count("impossible") == before + 1


async def test_a_shortened_report_counts_in_no_limit() -> None:
    item = await a_report()

    reports = await deliver(item, refused("550 no"), per_minute=1)

    assert reports.delays == [timedelta(0)]


async def test_a_mail_that_breaks_its_report_is_reported_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of composing would come again each time, so that the mail would have no end."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a parser's bug")

    monkeypatch.setattr(composing, "_original", broken)
    item = Reported("a@b")

    (mail,) = (await deliver(item, {"a@b": NO})).mails

    assert len(parts_of(mail)) == 2
    assert item.steps == [("report", SENDER), ("reject", "550 no")]
    assert "a report returns no mail" in caplog.text


def parts_of(mail: Mail) -> list[email.message.Message]:
    report = email.message_from_bytes(cast("bytes", mail.content))
    return cast("list[email.message.Message]", report.get_payload())


async def test_a_next_hop_that_got_what_the_sender_asks_reports_success_itself() -> None:
    item = Reported("a@b")
    item.mail = replace(item.mail, dsn=DsnOptions(recipients={"a@b": RecipientDsn(("SUCCESS",))}))
    handed_on = replace(YES, responder=Responder("mx", takes_dsn=True))

    reports = await deliver(item, {"a@b": handed_on})

    assert reports.mails == []
    assert item.steps == [("done",)]
