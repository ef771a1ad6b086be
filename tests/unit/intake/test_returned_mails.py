"""Tests mail to signed reverse-paths at an intake: through the reception of a mail, over a
suppression list in memory. Source: ADR 0091."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from postroad.adapters.clocks import SystemRandomness
from postroad.adapters.memory.steps import ProcessSteps
from postroad.adapters.memory.tables import MemorySuppressionList
from postroad.domain.delivery.events import EventAddresses, EventKind, EventRule, StreamEvent
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressionRules, compared
from postroad.domain.mail.mail import Origin
from postroad.domain.mail.return_paths import MAX_AGE, ReturnPaths
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.smtp.replies import Reply
from postroad.errors import BrokerUnavailable, ViewUnavailable
from postroad.event_log.spooled import SpooledEvents
from postroad.intake.clients import Rights
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.own_domains import UNKNOWN_RECIPIENT, OwnDomains
from postroad.intake.reception import OfferedMail, Reception
from postroad.intake.reply_texts import NO_RELAYING
from postroad.intake.returns.handling import (
    NO_REPORT,
    NOT_KEPT,
    TAKEN,
    ReturnedMails,
    ReturnRules,
)
from postroad.intake.returns.reading import read_returned
from postroad.ports.clock import Clock
from postroad.ports.events import EventSpool
from postroad.ports.mail_queue import MailQueue
from support.recording_queue import RecordingQueue
from support.returned_mails import case_of, mail_of

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
PATHS = ReturnPaths([b"a secret of twenty-four octets"])
SENDER, TO, LONG = "bounces@list.example", "user@example.net", "u" * 60 + "@example.net"
FBL = "fbl@list.example"
UNKNOWN_USER = mail_of(case_of("postfix, unknown user"))
REPORTS = "postroad_returned_reports_total"


def path_to(recipient: str = TO, tenant: str | None = None, days: int = 0) -> str:
    path = PATHS.path(SENDER, recipient, tenant, NOW.date() - timedelta(days=days))
    assert path is not None
    return path


class TestClock:
    __test__ = False

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time


class ListSpool:
    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.problem: BaseException | None = None

    async def append(self, events: Sequence[StreamEvent]) -> None:
        if self.problem is not None:
            raise self.problem
        self.found += [json.loads(body) for _, _, body in events]


class BrokenList(MemorySuppressionList):
    async def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        raise ViewUnavailable


class AnIntake:
    def __init__(
        self,
        rule: EventRule | None = None,
        addresses: MemorySuppressionList | None = None,
        rules: SuppressionRules | None = None,
    ) -> None:
        self.clock, self.queue = TestClock(), RecordingQueue()
        self.list = addresses or MemorySuppressionList({}, ProcessSteps())
        self.spool = ListSpool()
        rule = rule or EventRule("all", addresses=EventAddresses.PLAIN)
        events = SpooledEvents(cast("EventSpool", self.spool), [rule], self.queue.name)
        self.suppression: SuppressionRules | None = rules or SuppressionRules(after=1)
        wanted = frozenset((BounceClass.NO_MAILBOX,))
        clock = cast("Clock", self.clock)
        self.returned = ReturnedMails(
            self.queue.name,
            ReturnRules(PATHS, wanted, True, frozenset((compared(FBL),))),
            OwnDomains({"list.example": frozenset(("a",)), "all.example": None}),
            self.list,
            lambda: self.suppression,
            clock,
            events,
        )
        self.context = IntakeContext(
            cast("MailQueue", self.queue),
            Offer("mx.example", 2**20),
            clock,
            SystemRandomness(),
            events=events,
            returned=self.returned,
        )

    async def send(
        self, content: bytes = UNKNOWN_USER, *recipients: str, sender: str | None = None
    ) -> Reply:
        offered = OfferedMail(sender, recipients or (path_to(),))
        reception = Reception(self.context, offered, Origin(), Rights(may_relay=False))
        reception.buffer.feed(content + b"\r\n.\r\n")
        try:
            return await reception.enqueue()
        finally:
            reception.buffer.discard()

    async def listed(self, tenant: str = "") -> dict[str, str]:
        return {each.name: each.reason async for each in self.list.entries(tenant)}


def counted(result: str, reason: str = "") -> float:
    labels = {"namespace": "test", "name": "recording", "result": result, "reason": reason}
    return REGISTRY.get_sample_value(REPORTS, labels) or 0.0


async def test_a_bounce_suppresses_its_recipient_and_is_an_event_and_no_mail() -> None:
    intake, before = AnIntake(), counted("bounce", "no-mailbox")

    assert await intake.send() == TAKEN

    assert list(await intake.listed()) == [TO]
    (event,) = intake.spool.found
    assert event["type"] == "Bounced"
    assert (
        event["data"]
        | {
            "recipient": TO,
            "sender": SENDER,
            "reason": "no-mailbox",
            "domain": "example.net",
            "message_id": "<1@list.example>",
        }
        == event["data"]
    )
    assert intake.queue.mails == []
    assert counted("bounce", "no-mailbox") == before + 1


async def test_a_bounce_is_of_its_tenant() -> None:
    intake = AnIntake()

    await intake.send(UNKNOWN_USER, path_to(tenant="acme"))

    assert await intake.listed() == {}
    assert list(await intake.listed("acme")) == [TO]
    assert intake.spool.found[0]["data"]["tenant"] == "acme"


async def test_events_have_of_addresses_what_their_stream_declares() -> None:
    intake = AnIntake(EventRule("all", frozenset((EventKind.BOUNCED,))))

    await intake.send()

    written = json.dumps(intake.spool.found)
    assert "user@" not in written
    assert "list.example>" not in written
    assert intake.spool.found[0]["data"]["reply"].startswith("550 <address>")


async def test_the_same_bounce_twice_is_one_entry_and_one_id() -> None:
    intake = AnIntake(rules=SuppressionRules(after=2))

    for _ in range(2):
        assert await intake.send() == TAKEN

    first, second = intake.spool.found
    assert first["id"] == second["id"]
    (entry,) = [each async for each in intake.list.entries("")]
    assert (entry.count, entry.is_pending) == (1, True)


async def test_a_bounce_days_later_is_the_second_one() -> None:
    intake = AnIntake(rules=SuppressionRules(after=2))
    await intake.send()
    intake.clock.time += timedelta(days=3)

    await intake.send()

    (entry,) = [each async for each in intake.list.entries("")]
    assert entry.holds(intake.clock.time)


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("postfix, delayed", "delay"),
        ("postfix, delivered", "delivery"),
        ("out of office, RFC 3834", "automatic"),
        ("read receipt", "automatic"),
        ("empty", "other"),
    ],
)
async def test_what_is_no_bounce_is_counted_and_nothing_else(case: str, result: str) -> None:
    intake, before = AnIntake(), counted(result)

    assert await intake.send(mail_of(case_of(case))) == TAKEN

    assert (await intake.listed(), intake.spool.found, intake.queue.mails) == ({}, [], [])
    assert counted(result) == before + 1


@pytest.mark.parametrize(
    "case", ["forwarded, and the other address is unknown", "gmail, over quota", "mail loop"]
)
async def test_what_is_not_about_the_mailbox_suppresses_no_address_and_is_an_event(
    case: str,
) -> None:
    intake = AnIntake()

    assert await intake.send(mail_of(case_of(case))) == TAKEN

    assert await intake.listed() == {}
    assert [each["type"] for each in intake.spool.found] == ["Bounced"]


async def test_a_mail_that_a_person_writes_is_refused_and_a_bounce_with_a_sender_is_not() -> None:
    intake = AnIntake()

    assert await intake.send(mail_of(case_of("a person replies")), sender="u@x.example") == (
        NO_REPORT
    )
    assert await intake.send(UNKNOWN_USER, sender="mailer-daemon@x.example") == TAKEN


async def test_a_recipient_that_the_path_does_not_name_is_found_in_the_report() -> None:
    intake, before = AnIntake(), counted("unmatched")

    await intake.send(UNKNOWN_USER, path_to(LONG))
    assert await intake.listed() == {}
    await intake.send(UNKNOWN_USER.replace(b"user@", b"u" * 60 + b"@"), path_to(LONG))

    assert list(await intake.listed()) == [LONG]
    assert counted("unmatched") == before + 1


async def test_a_report_about_another_recipient_suppresses_that_of_the_token_at_most() -> None:
    intake = AnIntake()

    await intake.send(UNKNOWN_USER, path_to("other@example.net"))
    await intake.send(UNKNOWN_USER, path_to(LONG))

    assert await intake.listed() == {}


FORGED = path_to().replace("user=", "victim=")


@pytest.mark.parametrize(
    ("recipient", "refusal"),
    [
        (path_to(), None),
        (path_to().upper(), None),
        (FBL, None),
        ("FBL@list.example", None),
        (FORGED, UNKNOWN_RECIPIENT),
        (path_to(days=MAX_AGE.days + 1), UNKNOWN_RECIPIENT),
        ("x+user=example.net=abcdefghijkl@all.example", UNKNOWN_RECIPIENT),
        ("x+user=example.net=abcdefghijkl@other.example", NO_RELAYING),
        ("x+user=example.net@all.example", None),
        ("bounces+user=example.net@list.example", UNKNOWN_RECIPIENT),
        ("a@list.example", None),
        ("x@other.example", NO_RELAYING),
    ],
)
def test_a_recipient_is_taken_with_a_token_of_this_side_alone(
    recipient: str, refusal: Reply | None
) -> None:
    assert AnIntake().returned.refusal(recipient) == refusal


COMPLAINT = case_of("complaint, yahoo")


@pytest.mark.parametrize("recipient", [FBL, path_to()])
async def test_a_complaint_suppresses_for_good_and_is_an_event(recipient: str) -> None:
    intake = AnIntake()

    assert await intake.send(mail_of(COMPLAINT, path_to()), recipient, sender="y@x.example") == (
        TAKEN
    )

    (entry,) = [each async for each in intake.list.entries("")]
    assert (entry.name, entry.by, entry.expires_at) == (TO, "complaint", None)
    (event,) = intake.spool.found
    assert (event["type"], event["data"]["feedback"]) == ("Complained", "abuse")


@pytest.mark.parametrize(
    ("case", "path", "result"),
    [
        ("complaint that takes one back", path_to(), "other"),
        ("report about DMARC", path_to(), "other"),
        ("complaint, without the recipient", path_to(LONG), "unmatched"),
        ("complaint, yahoo", FORGED, "unmatched"),
        ("complaint, yahoo", "redacted@list.example", "unmatched"),
    ],
)
async def test_what_is_no_complaint_or_of_no_mail_of_ours_suppresses_no_address(
    case: str, path: str, result: str
) -> None:
    intake, before = AnIntake(), counted(result)

    assert await intake.send(mail_of(case_of(case), path), FBL) == TAKEN

    assert (await intake.listed(), intake.spool.found) == ({}, [])
    assert counted(result) == before + 1


async def test_paths_of_a_complaint_are_opened_once_for_all_spellings_of_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intake, opened = AnIntake(), list[str]()
    monkeypatch.setattr(ReturnPaths, "open", lambda _, path, __: opened.append(path))

    spellings = (FBL, "Fbl@list.example", "fBl@list.example", "fbL@list.example")
    assert await intake.send(mail_of(COMPLAINT, "x@other.example"), *spellings) == TAKEN

    assert opened.count("x@other.example") == len(read_returned(mail_of(COMPLAINT)).paths) == 2


async def test_other_mail_for_complaints_goes_to_the_mailbox_where_there_is_one() -> None:
    intake, mail = AnIntake(), mail_of(case_of("a person replies"))
    assert await intake.send(mail, FBL, sender="y@x.example") == NO_REPORT

    own = OwnDomains({"list.example": frozenset(("fbl",))})
    intake.returned._own = own
    reply = await intake.send(mail, FBL, sender="y@x.example")

    assert reply.is_positive
    ((queued, _),) = intake.queue.mails
    assert queued.recipients == (FBL,)


async def test_recipients_beside_the_report_get_the_mail() -> None:
    intake = AnIntake()

    reply = await intake.send(UNKNOWN_USER, path_to(), "a@list.example")

    assert reply.is_positive
    ((queued, _),) = intake.queue.mails
    assert queued.recipients == ("a@list.example",)
    assert list(await intake.listed()) == [TO]


async def test_a_report_that_cannot_be_kept_is_taken_the_next_time() -> None:
    intake, before = AnIntake(), counted("bounce", "no-mailbox")
    intake.spool.problem = BrokerUnavailable()

    assert await intake.send() == NOT_KEPT
    assert counted("bounce", "no-mailbox") == before
    assert await AnIntake(addresses=BrokenList({}, ProcessSteps())).send() == NOT_KEPT

    intake.spool.problem = None
    assert await intake.send() == TAKEN
    assert list(await intake.listed()) == [TO]


class Killed(BaseException):
    """The end of a process at this line."""


async def test_a_kill_between_the_entry_and_its_event_loses_neither_and_doubles_none() -> None:
    killed = AnIntake(rules=SuppressionRules(after=2))
    killed.spool.problem = Killed()
    with pytest.raises(Killed):
        await killed.send()
    (entry,) = [each async for each in killed.list.entries("")]
    assert (entry.count, entry.is_pending, killed.spool.found) == (1, True, [])

    again = AnIntake(addresses=killed.list, rules=SuppressionRules(after=2))
    again.clock.time += timedelta(minutes=30)  # the server had no reply, and sends it again
    assert await again.send() == TAKEN
    assert await again.send() == TAKEN

    (entry,) = [each async for each in again.list.entries("")]
    assert (entry.count, entry.is_pending) == (1, True)
    assert len({each["id"] for each in again.spool.found}) == 1


async def test_without_a_list_that_is_looked_at_nothing_is_written_there() -> None:
    intake = AnIntake()
    intake.suppression = None

    assert await intake.send() == TAKEN

    assert await intake.listed() == {}
    assert len(intake.spool.found) == 1
