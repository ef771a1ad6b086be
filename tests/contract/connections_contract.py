"""What every `Connector` promises. Subclasses provide the fixture `hop`."""

from __future__ import annotations

from typing import Protocol

from postroad.domain.mail.mail import OutcomeKind
from postroad.errors import BlobsUnavailable
from postroad.ports.delivery import (
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    Connector,
    JobFinished,
)
from postroad.routing.routes import ResolvedHop
from support.connections import Events, HeldEnds, a_job, body_of
from support.memory.connections import Loss

DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED


class HopUnderTest(Protocol):
    resolved: ResolvedHop

    @property
    def connector(self) -> Connector: ...

    def refuse(self, recipient: str, reply: str) -> None: ...
    def hold_back(self) -> None: ...
    def go_on(self) -> None: ...
    async def until_held(self) -> None: ...
    def contents(self) -> list[bytes]: ...


class DialogueUnderTest(HopUnderTest, Protocol):
    def accept_no_connection(self, reply: str) -> None: ...
    def lose(self, sender: str, where: Loss) -> None: ...


class ConnectionContract:
    async def test_jobs_are_finished_in_their_order(self, hop: HopUnderTest) -> None:
        hop.refuse("no@dest.example", "550 5.1.1 no")
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        connection.submit(a_job(1))
        connection.submit(a_job(2, "no@dest.example"))
        await events.until_finished(2)
        connection.submit(a_job(3))
        await events.until_finished(3)
        connection.close()
        closed = await events.until_closed()

        assert events.all[0] == ConnectionOpened()
        assert (closed.text, closed.untried) == ("", ())
        assert list(events.finished) == [1, 2, 3]
        assert events.finished[2] == {"no@dest.example": FAILED}
        assert [each for each in hop.contents() if each != body_of(2)] == [body_of(1), body_of(3)]

    async def test_a_close_finishes_what_is_transmitted_and_the_others_are_untried(
        self, hop: HopUnderTest
    ) -> None:
        class ClosingAfterOne(Events):
            def __call__(self, event: ConnectionEvent) -> None:
                if isinstance(event, JobFinished) and event.job == 1:
                    connection.close()
                super().__call__(event)

        events = ClosingAfterOne()
        connection = hop.connector.open(hop.resolved, events)
        for job in range(1, 11):
            connection.submit(a_job(job))
        closed = await events.until_closed()

        assert closed.text == ""
        assert events.finished == {1: {"b1@dest.example": DELIVERED}}
        assert events.untried == tuple(range(2, 11))
        assert hop.contents() == [body_of(1)]

    async def test_the_end_of_a_mail_waits_until_it_may_be_sent(self, hop: HopUnderTest) -> None:
        events = Events()
        held = HeldEnds(events, first=2)
        connection = hop.connector.open(hop.resolved, events, held)
        for job in (1, 2, 3):
            connection.submit(a_job(job))
        await held.until_held()

        assert held.finished == [0, 1]
        assert (list(events.finished), hop.contents()) == ([1], [body_of(1)])

        held.go_on()
        await events.until_finished(3)
        connection.close()
        await events.until_closed()
        assert held.finished == [0, 1, 2]
        assert hop.contents() == [body_of(1), body_of(2), body_of(3)]

    async def test_an_abort_while_an_end_waits_leaves_nothing_in_doubt(
        self, hop: HopUnderTest
    ) -> None:
        events = Events()
        held = HeldEnds(events)
        connection = hop.connector.open(hop.resolved, events, held)
        for job in (1, 2):
            connection.submit(a_job(job))
        await held.until_held()
        connection.abort()
        await events.until_closed()

        assert events.jobs == [1, 2]
        assert not any("may be delivered" in text for text in events.texts.values())
        assert hop.contents() == []

    async def test_a_close_before_the_connection_is_open_leaves_all_untried(
        self, hop: HopUnderTest
    ) -> None:
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        connection.submit(a_job(1))
        connection.close()
        closed = await events.until_closed()

        assert (closed.text, closed.untried) == ("", (1,))

    async def test_a_content_that_cannot_be_read_is_no_attempt(self, hop: HopUnderTest) -> None:
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        connection.submit(a_job(1, error=BlobsUnavailable()))
        connection.submit(a_job(2))
        await events.until_closed()

        assert isinstance(events.errors[1], BlobsUnavailable)
        assert events.finished == {}
        assert events.untried == (2,)
        assert hop.contents() == []

    async def test_an_abort_leaves_a_mail_in_doubt_whose_end_was_sent(
        self, hop: HopUnderTest
    ) -> None:
        hop.hold_back()
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        for job in (1, 2, 3):
            connection.submit(a_job(job))
        await hop.until_held()
        connection.abort()
        closed = await events.until_closed()
        hop.go_on()

        assert events.finished == {1: {"b1@dest.example": DEFERRED}}
        assert "may be delivered" in events.texts[1]
        assert (closed.text, closed.untried) == ("", (2, 3))

    async def test_a_job_that_comes_after_the_end_is_untried(self, hop: HopUnderTest) -> None:
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        connection.close()
        connection.close()
        await events.until_closed()
        connection.abort()
        connection.submit(a_job(2))
        while not events.untried:
            await events.next()

        assert events.untried == (2,)
        assert sum(event == ConnectionOpened() for event in events.all) == 1

    async def test_a_job_that_comes_while_the_end_is_handled_is_untried(
        self, hop: HopUnderTest
    ) -> None:
        class SubmittingAtTheEnd(Events):
            def __call__(self, event: ConnectionEvent) -> None:
                if isinstance(event, ConnectionClosed) and not event.untried:
                    connection.submit(a_job(2))
                super().__call__(event)

        events = SubmittingAtTheEnd()
        connection = hop.connector.open(hop.resolved, events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        connection.close()
        while not events.untried:
            await events.next()

        assert events.untried == (2,)


class RecipientsContract(ConnectionContract):
    """Of those that answer about each recipient."""

    async def test_each_recipient_has_an_outcome_of_its_own(self, hop: HopUnderTest) -> None:
        hop.refuse("no@dest.example", "550 5.1.1 no")
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        connection.submit(a_job(1, "yes@dest.example", "no@dest.example"))
        await events.until_finished(1)
        connection.close()
        await events.until_closed()

        assert events.finished[1] == {"yes@dest.example": DELIVERED, "no@dest.example": FAILED}


class DialogueContract(RecipientsContract):
    """Of those whose next hop answers each step of a mail."""

    async def test_where_no_connection_is_accepted_all_jobs_are_untried(
        self, hop: DialogueUnderTest
    ) -> None:
        hop.accept_no_connection("421 4.3.2 later")
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        for job in (1, 2):
            connection.submit(a_job(job))
        closed = await events.until_closed()

        assert events.all == [closed]
        assert (closed.text, closed.untried) == ("421 4.3.2 later", (1, 2))

    async def test_a_loss_leaves_untried_what_was_not_answered(
        self, hop: DialogueUnderTest
    ) -> None:
        hop.lose("job2@origin.example", Loss.BEFORE)
        events = await self._three(hop)

        assert events.finished == {1: {"b1@dest.example": DELIVERED}}
        assert events.untried == (2, 3)

    async def test_a_loss_at_the_first_job_counts_as_an_attempt(
        self, hop: DialogueUnderTest
    ) -> None:
        hop.lose("job1@origin.example", Loss.BEFORE)
        events = await self._three(hop)

        assert events.finished == {1: {"b1@dest.example": DEFERRED}}
        assert events.untried == (2, 3)

    async def test_a_loss_within_a_mail_defers_it(self, hop: DialogueUnderTest) -> None:
        hop.lose("job2@origin.example", Loss.WITHIN)
        events = await self._three(hop)

        assert events.finished[2] == {"b2@dest.example": DEFERRED}
        assert "may be delivered" not in events.texts[2]
        assert events.untried == (3,)

    async def test_a_loss_at_the_end_of_a_mail_leaves_it_in_doubt(
        self, hop: DialogueUnderTest
    ) -> None:
        hop.lose("job2@origin.example", Loss.AT_END)
        events = await self._three(hop)

        assert events.finished[2] == {"b2@dest.example": DEFERRED}
        assert "may be delivered" in events.texts[2]
        assert events.untried == (3,)

    async def _three(self, hop: DialogueUnderTest) -> Events:
        events = Events()
        connection = hop.connector.open(hop.resolved, events)
        for job in (1, 2, 3):
            connection.submit(a_job(job))
        await events.until_closed()
        return events
