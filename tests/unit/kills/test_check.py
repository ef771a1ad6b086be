"""The check of a run finds each thing that may be wrong with it, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kills.account import Account, Balance
from kills.check import Run, check, summary
from kills.ledger import ItemProgress, Kind, Transmission
from kills.mails import Key, PlannedMail

MANY = PlannedMail("m0@site0.example", tuple(f"yes0x{n}@site{n}.example" for n in range(3)))
REFUSED = PlannedMail("m1@site1.example", ("yes1x0@site0.example", "no1x1@site1.example"))
REMOVED = PlannedMail("m2@site2.example", ("yes2x0@site0.example", "yes2x1@site1.example"))
REPORT: Key = ("", REFUSED.sender)


@dataclass
class Story:
    """A run that is made step by step, and may go wrong at each."""

    ledger: ItemProgress = field(default_factory=ItemProgress)
    reported: dict[Key, set[str]] = field(default_factory=dict)
    account: Account = field(default_factory=Account)

    def deliver(self, *keys: Key, site: int = 0, connection: int = 1, name: str = "") -> None:
        self.ledger.arrive(Transmission(site, connection, keys, name))

    def line(self, *keys: Key, outcome: str = "delivered") -> None:
        for sender, recipient in keys:
            line = {"sender": sender, "recipient": recipient, "outcome": outcome}
            self.account.add(json.dumps(line))

    def report(self, name: str = "<1@mx>") -> None:
        self.reported.setdefault(REFUSED.keys[1], set()).add(name)
        self.deliver(REPORT, name=name)
        self.line(REPORT)

    @property
    def run(self) -> Run:
        return Run((MANY, REFUSED, REMOVED), self.ledger, self.reported, self.account)

    @property
    def kinds(self) -> set[Kind]:
        return {each.kind for each in check(self.run)}


def told(story: Story) -> Story:
    """A run with a kill, a removal and a report. Of the first mail, a recipient was transmitted
    without a record, and another one with one."""
    first, second, third = MANY.keys
    story.deliver(first, site=0)
    story.deliver(second, site=1)
    story.line(second)
    story.deliver(REMOVED.keys[0], site=0, connection=2)
    story.line(REMOVED.keys[0])
    story.line(REMOVED.keys[1], outcome="deferred")
    story.ledger.remove(REMOVED.sender)
    story.ledger.kill({first, third, *REFUSED.keys})
    story.deliver(first, site=0, connection=3)
    story.deliver(third, site=2)
    story.deliver(REFUSED.keys[0], site=0, connection=3)
    story.line(first, third, REFUSED.keys[0])
    story.line(REFUSED.keys[1], outcome="failed")
    story.report()
    return story


def test_a_run_in_order_has_nothing_and_its_numbers() -> None:
    run = told(Story()).run

    assert check(run) == []
    assert summary(run).splitlines() == [
        "1 kills, 1 of them amid transmissions",
        "3 mails, 7 recipients",
        "7 transmissions, 1 reports",
        "1 repeated, 1 transmitted without a record",
        "by the account alone: 7 accepted = 5 delivered + 1 reported + 1 removed",
    ]


def _withheld(story: Story) -> None:
    """An entry of the ledger is withheld: who had no record at the kill."""
    story.ledger.allowed.clear()


def _forgotten(story: Story) -> None:
    del story.ledger.copies[MANY.keys[2], ""]


def _without_report(story: Story) -> None:
    story.reported.clear()


def _twice(story: Story) -> None:
    story.deliver(MANY.keys[1])


def _report_twice(story: Story) -> None:
    story.deliver(REPORT, name="<1@mx>")


def _returned(story: Story) -> None:
    story.deliver(REMOVED.keys[1])


def _unknown(story: Story) -> None:
    story.deliver(("m9@site0.example", "yes9x0@site0.example"))


def _refused_and_delivered(story: Story) -> None:
    story.deliver(REFUSED.keys[1])


def _reported_again(story: Story) -> None:
    story.report("<2@mx>")


def _reported_without_refusal(story: Story) -> None:
    story.reported[MANY.keys[0]] = {"<3@mx>"}


def _without_line(story: Story) -> None:
    del story.account.delivered[MANY.keys[0]]


def _line_without_delivery(story: Story) -> None:
    story.line(MANY.keys[1], REMOVED.keys[1])


def _unrefused(story: Story) -> None:
    del story.account.failed[REFUSED.keys[1]]


def _half_a_line(story: Story) -> None:
    story.account.add('{"sender": "m0@site0.ex')


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_withheld, Kind.REPEATED),
        (_forgotten, Kind.LOST),
        (_without_report, Kind.LOST),
        (_twice, Kind.REPEATED),
        (_report_twice, Kind.REPEATED),
        (_returned, Kind.RETURNED),
        (_unknown, Kind.UNKNOWN),
        (_refused_and_delivered, Kind.UNKNOWN),
        (_reported_again, Kind.REPORTED_AGAIN),
        (_reported_without_refusal, Kind.WRONGLY_REPORTED),
        (_without_line, Kind.ACCOUNT),
        (_line_without_delivery, Kind.ACCOUNT),
        (_unrefused, Kind.ACCOUNT),
        (_half_a_line, Kind.ACCOUNT),
    ],
)
def test_what_is_wrong_is_found(spoil: Callable[[Story], None], kind: Kind) -> None:
    story = told(Story())
    spoil(story)

    assert kind in story.kinds


def test_a_second_copy_is_allowed_for_each_kill_and_to_whom_it_left_waiting_only() -> None:
    story, (first, second, _) = Story(), MANY.keys
    for _ in range(2):
        story.deliver(first, second)
        story.ledger.kill({first})
    story.deliver(first)

    assert story.ledger.repeated == {first: 2, second: 1}
    assert story.ledger.allowed == {first: 2}


def test_a_connection_has_one_transmission_without_a_record_and_a_series_of_chunks_ten() -> None:
    story, keys = Story(), MANY.keys
    for key in keys[:2]:
        story.deliver(key)
    story.deliver(keys[2], connection=2)
    story.ledger.kill(set(keys))
    for key in keys:
        story.ledger.arrive(Transmission(0, 3, (key,), most_open=10))
    story.ledger.kill(set(keys))

    (found,) = story.ledger.findings
    assert str(found).endswith("it may have: 2 of connection 1 to site 0, kill 1")


def test_a_recipient_whose_mail_was_not_removed_has_an_end_in_the_account() -> None:
    story = Story()
    story.line(*MANY.keys, outcome="deferred")
    story.line(MANY.keys[0])

    assert story.run.balance == Balance(delivered=1, reported=0, removed=0, missing=6)
