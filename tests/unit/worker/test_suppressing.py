"""Recipients on the suppression list are not mailed, and refusals put recipients on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from postroad.domain.delivery.suppressed import SuppressedBy, SuppressionRules, suppressed, token_of
from postroad.domain.mail.mail import Mail, Outcome, OutcomeKind, Responder
from postroad.domain.smtp.bounces import BounceClass
from postroad.errors import ViewUnavailable
from postroad.telemetry.metrics import of_queue
from postroad.worker.jobs.admission import UNREADABLE, Screening
from postroad.worker.sites.suppressing import Suppressing
from support.memory.fault_injection import Fault, Step
from support.reported import reporting
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker

GONE = Outcome(
    OutcomeKind.FAILED, "550 5.1.1 <b@one.example>: no such user", responder=Responder("mx")
)
OF_MAIL = "550 5.1.1 user unknown"
LEARNING = SuppressionRules(frozenset({BounceClass.NO_MAILBOX}), after=1)
TWICE = replace(LEARNING, after=2)


class Suppressed:
    """A worker with a list that the test writes on."""

    def __init__(self, worker: Worker, rules: SuppressionRules | None) -> None:
        self.worker, self.list = worker, worker.queue.suppression_list
        self.suppressing = Suppressing("q", self.list, worker.process.clock, rules)
        driving = worker.driving
        driving._screening = Screening("q", self.suppressing, driving._numbers, driving._screened)
        object.__setattr__(driving._deliverer, "suppressing", self.suppressing)

    async def add(self, address: str, tenant: str = "") -> None:
        by, now = SuppressedBy.ADMINISTRATOR, self.worker.process.clock.now()
        await self.list.add(tenant, [suppressed(address, "asked for it", by, now)])

    async def enqueue(self, *recipients: str, tenant: str | None = None) -> None:
        attributes = {} if tenant is None else {"postroad.tenant": tenant}
        sender = "a@origin.example"
        mail = Mail(sender, recipients, b"Subject: x\r\n\r\nx\r\n", attributes=attributes)
        await self.worker.queue.enqueue(mail)

    async def listed(self, tenant: str = "") -> dict[str, str]:
        return {each.name: each.reason async for each in self.list.entries(tenant)}

    async def dead_letters(self) -> dict[tuple[str, ...], str | None]:
        found = self.worker.queue.dead_letters()
        return {view.mail.recipients: view.reason async for view in found}


@asynccontextmanager
async def a_suppressing_worker(
    rules: SuppressionRules | None = LEARNING,
) -> AsyncIterator[Suppressed]:
    async with a_worker() as worker:
        worker.domain("one.example")
        yield Suppressed(worker, rules)


async def test_a_recipient_on_the_list_fails_and_the_others_get_the_mail() -> None:
    async with a_suppressing_worker() as suppressed:
        await suppressed.add("B@ONE.example")
        await suppressed.enqueue("b@one.example", "c@one.example")
        await suppressed.worker.pass_time(SECOND)

        assert suppressed.worker.delivered == {"c@one.example": 1}
        text = "550 5.7.1 not mailed, on the suppression list: asked for it"
        assert await suppressed.dead_letters() == {("b@one.example",): text}


async def test_a_mail_for_suppressed_recipients_alone_opens_no_connection() -> None:
    async with a_suppressing_worker() as suppressed:
        await suppressed.add("b@one.example")
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)

        assert not suppressed.worker.hops.opened
        assert len(await suppressed.dead_letters()) == 1
        assert not len(suppressed.worker.driving)


async def test_each_tenant_has_a_list_of_its_own() -> None:
    async with a_suppressing_worker() as suppressed:
        await suppressed.add("b@one.example", "acme")
        await suppressed.enqueue("b@one.example", tenant="acme")
        await suppressed.enqueue("b@one.example", tenant="other")
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)

        assert suppressed.worker.delivered == {"b@one.example": 2}
        assert len(await suppressed.dead_letters()) == 1


async def test_an_address_that_is_added_while_its_mail_waits_is_not_mailed() -> None:
    async with a_suppressing_worker() as suppressed:
        suppressed.worker.hops.outcomes["b@one.example"] = Outcome.deferred("450 4.2.0 later")
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        suppressed.worker.hops.outcomes.clear()
        await suppressed.add("b@one.example")
        await suppressed.worker.pass_time(2 * MINUTE)

        assert not suppressed.worker.delivered
        assert len(await suppressed.dead_letters()) == 1


async def test_without_rules_the_list_is_not_looked_at() -> None:
    async with a_suppressing_worker(None) as suppressed:
        await suppressed.add("b@one.example")
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        assert suppressed.worker.delivered == {"b@one.example": 1}


async def test_mail_waits_while_the_list_cannot_be_read() -> None:
    async with a_suppressing_worker() as suppressed:
        worker = suppressed.worker

        def plan(step: Step) -> Fault | None:
            return Fault.AWAY if step.operation == "suppressed" else None

        worker.process.faults.plan = plan
        await suppressed.add("b@one.example")
        await suppressed.enqueue("b@one.example", "c@one.example")
        await worker.pass_time(SECOND)
        assert not worker.delivered
        assert await worker.waiting() == {"b@one.example": (0, UNREADABLE)}

        worker.process.faults.plan = lambda _: None
        await worker.pass_time(timedelta(minutes=30))
        assert worker.delivered == {"c@one.example": 1}


async def test_a_refusal_puts_its_recipient_on_the_list() -> None:
    async with a_suppressing_worker() as suppressed:
        suppressed.worker.hops.outcomes["b@one.example"] = GONE
        full = Outcome(OutcomeKind.FAILED, "552 5.2.2 full", responder=Responder("mx"))
        suppressed.worker.hops.outcomes["c@one.example"] = full
        later = Outcome(OutcomeKind.DEFERRED, "450 5.1.1 later", responder=Responder("mx"))
        suppressed.worker.hops.outcomes["d@one.example"] = later
        await suppressed.enqueue("b@one.example", "c@one.example", "d@one.example", tenant="acme")
        await suppressed.worker.pass_time(SECOND)

        assert await suppressed.listed("acme") == {
            "b@one.example": "550 no-mailbox: <address>: no such user"
        }
        assert await suppressed.listed() == {}
        suppressed.worker.hops.outcomes.clear()
        await suppressed.enqueue("b@one.example", tenant="acme")
        await suppressed.worker.pass_time(SECOND)
        assert not suppressed.worker.delivered


async def test_one_refusal_suppresses_nothing_and_a_second_one_two_days_later_does() -> None:
    async with a_suppressing_worker(TWICE) as suppressed:
        hops = suppressed.worker.hops

        async def refused(after: timedelta = SECOND) -> tuple[int, bool]:
            await suppressed.worker.pass_time(after)
            hops.outcomes["b@one.example"] = GONE
            await suppressed.enqueue("b@one.example")
            await suppressed.worker.pass_time(SECOND)
            (entry,) = [each async for each in suppressed.list.entries("")]
            return entry.count, entry.is_pending

        assert await refused() == (1, True)
        assert await refused(47 * 60 * MINUTE) == (1, True)
        assert await refused(60 * MINUTE) == (2, False)
        hops.outcomes.clear()
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        assert not suppressed.worker.delivered


async def test_a_recipient_is_mailed_again_when_its_entry_expires() -> None:
    rules = replace(LEARNING, lifetime=timedelta(hours=2))
    async with a_suppressing_worker(rules) as suppressed:
        suppressed.worker.hops.outcomes["b@one.example"] = GONE
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        suppressed.worker.hops.outcomes.clear()
        await suppressed.worker.pass_time(timedelta(hours=2))
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        assert suppressed.worker.delivered == {"b@one.example": 1}


@pytest.mark.parametrize(
    "text",
    [
        "550 5.7.1 <b@one.example>: Recipient address rejected: Message rejected due to: SPF fail",
        "554 5.7.1 <b@one.example>: Recipient address rejected: Access denied",
        "550 5.7.1 <b@one.example>: Recipient address rejected: DMARC policy of that domain",
        "554 5.7.1 <b@one.example>: Recipient address rejected: blocked using zen.example",
        "550 Verification failed for <A@Origin.example>: no such user",
        "501 5.1.1 a@origin.example: unknown user",
        OF_MAIL,
    ],
)
async def test_a_fault_of_the_senders_side_suppresses_no_address(text: str) -> None:
    async with a_suppressing_worker() as suppressed:
        responder = Responder("mx", is_of_mail=text == OF_MAIL)
        outcome = Outcome(OutcomeKind.FAILED, text, responder=responder)
        suppressed.worker.hops.outcomes["b@one.example"] = outcome
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        assert await suppressed.listed() == {}


async def test_refusals_leave_an_administrators_entry_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written by another process between the look and the writing."""
    async with a_suppressing_worker(TWICE) as suppressed:
        find = suppressed.list.find

        async def late(tenant: str, tokens: Collection[bytes]) -> Mapping[bytes, object]:
            found = await find(tenant, tokens)
            await suppressed.add("b@one.example")
            return found

        suppressing = suppressed.suppressing
        monkeypatch.setattr(suppressed.list, "find", late)
        mail = Mail("a@origin.example", ("b@one.example",), b"x").envelope
        await suppressing.learn(mail, {"b@one.example": GONE})
        monkeypatch.undo()
        assert "b@one.example" in await suppressing.find(mail)


@pytest.mark.parametrize(
    ("sender", "rules", "listed"),
    [
        (None, LEARNING, 0),
        ("a@origin.example", SuppressionRules(), 0),
        ("a@origin.example", replace(LEARNING, is_hashed=True), 1),
    ],
    ids=["a report", "no class", "hashed"],
)
async def test_what_is_learnt(sender: str | None, rules: SuppressionRules, listed: int) -> None:
    async with a_suppressing_worker(rules) as suppressed:
        mail = Mail(sender, ("b@one.example",), b"x\r\n")
        suppressed.worker.hops.outcomes["b@one.example"] = GONE
        await suppressed.worker.queue.enqueue(mail)
        await suppressed.worker.pass_time(SECOND)

        names = await suppressed.listed()
        assert len(names) == listed
        assert all(name.startswith("sha256:") for name in names)


@pytest.mark.parametrize(
    ("tenant", "listed", "is_away", "result"),
    [
        (None, "", False, "suppressed"),
        ("acme", "acme", False, "suppressed"),
        ("acme", "", False, "queued"),
        (None, "", True, "queued"),
    ],
    ids=["listed", "listed for its tenant", "listed for another one", "list away"],
)
async def test_a_sender_on_the_list_gets_no_report(
    monkeypatch: pytest.MonkeyPatch, tenant: str | None, listed: str, is_away: bool, result: str
) -> None:
    async with a_suppressing_worker() as suppressed:
        worker = suppressed.worker
        made = reporting(worker.queue, worker.process.clock)
        object.__setattr__(worker.driving._deliverer, "reporting", made)
        before = reports(worker.queue.name, result)
        await suppressed.add("A@origin.example", listed)
        worker.hops.outcomes["b@one.example"] = GONE
        if is_away:
            find = suppressed.list.find

            async def for_senders(tenant: str, tokens: Collection[bytes]) -> Mapping[bytes, object]:
                if token_of("a@origin.example") in tokens:
                    raise ViewUnavailable("away")
                return await find(tenant, tokens)

            monkeypatch.setattr(suppressed.list, "find", for_senders)
        await suppressed.enqueue("b@one.example", tenant=tenant)
        await worker.pass_time(SECOND)

        assert reports(worker.queue.name, result) == before + 1
        assert ("b@one.example",) in await suppressed.dead_letters()


def reports(queue: str, result: str) -> float:
    namespace, name = of_queue(queue)
    labels = {"namespace": namespace, "name": name, "result": result}
    return REGISTRY.get_sample_value("postroad_reports_total", labels) or 0.0


async def test_a_list_that_cannot_be_written_blocks_no_mail() -> None:
    async with a_suppressing_worker() as suppressed:
        suppressed.worker.hops.outcomes["b@one.example"] = GONE

        def plan(step: Step) -> Fault | None:
            return Fault.AWAY if step.operation == "suppress" else None

        suppressed.worker.process.faults.plan = plan
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        assert len(await suppressed.dead_letters()) == 1
        assert await suppressed.listed() == {}


async def test_a_bug_of_the_list_keeps_no_mail_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_suppressing_worker() as suppressed:

        async def broken(*_: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(suppressed.list, "add", broken)
        suppressed.worker.hops.outcomes["b@one.example"] = GONE
        await suppressed.enqueue("b@one.example")
        await suppressed.worker.pass_time(SECOND)
        assert len(await suppressed.dead_letters()) == 1
