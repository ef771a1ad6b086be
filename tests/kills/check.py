"""The check of a run, and its summary. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kills.account import Account, Balance, balance
from kills.ledger import Finding, ItemProgress, Kind
from kills.mails import Key, PlannedMail, is_refused

Reported = Mapping[Key, set[str]]
"""Who was reported as failed, and in which reports."""


@dataclass(frozen=True)
class Run:
    """What there is of a run when its queue is empty."""

    mails: Sequence[PlannedMail]
    ledger: ItemProgress
    reported: Reported
    account: Account

    @property
    def keys(self) -> Iterator[Key]:
        return (key for mail in self.mails for key in mail.keys)

    @property
    def balance(self) -> Balance:
        return balance(self.account, self.keys, self.ledger.removed)


def check(run: Run) -> list[Finding]:
    """Return what is wrong with a run."""
    return [
        *run.ledger.findings,
        *_ends(run),
        *_repetitions(run.ledger),
        *_reports(run),
        *_account(run),
    ]


def _ends(run: Run) -> Iterator[Finding]:
    """Each recipient has the mail, or its sender a report, or the mail was removed; and sites have
    nothing else."""
    arrived = {key for key, _ in run.ledger.copies}
    known = set(run.keys)
    senders = {mail.sender for mail in run.mails}
    for key in known - arrived:
        if key not in run.reported and key[0] not in run.ledger.removed:
            yield Finding(Kind.LOST, _text(key))
    for key in arrived:
        is_report = key[0] == "" and key[1] in senders
        if not is_report and (key not in known or is_refused(key)):
            yield Finding(Kind.UNKNOWN, _text(key))


def _repetitions(ledger: ItemProgress) -> Iterator[Finding]:
    for key, count in (ledger.repeated - ledger.allowed).items():
        yield Finding(Kind.REPEATED, f"{_text(key)}, {count} times more")


def _reports(run: Run) -> Iterator[Finding]:
    known = set(run.keys)
    for key, names in run.reported.items():
        if key not in known or not is_refused(key):
            yield Finding(Kind.WRONGLY_REPORTED, _text(key))
        elif len(names) > 1:
            yield Finding(Kind.REPORTED_AGAIN, f"{_text(key)} in {len(names)} reports")


def _account(run: Run) -> Iterator[Finding]:
    """The account has an end of each recipient, and none that no site gave."""
    account, ledger = run.account, run.ledger
    for key in run.keys:
        is_removed = key[0] in ledger.removed
        if is_refused(key):
            if key not in account.failed and not is_removed:
                yield Finding(Kind.ACCOUNT, f"no line of the refusal of {_text(key)}")
        elif key in account.failed:
            yield Finding(Kind.ACCOUNT, f"a refusal of {_text(key)} that no site made")
        if account.delivered[key] > ledger.copies[key, ""]:
            yield Finding(Kind.ACCOUNT, f"more deliveries of {_text(key)} than arrived")
        if not is_removed and ledger.copies[key, ""] and key not in account.delivered:
            yield Finding(Kind.ACCOUNT, f"no line of the delivery of {_text(key)}")
    if account.unreadable:
        yield Finding(Kind.ACCOUNT, f"{account.unreadable} lines cannot be read")
    if missing := run.balance.missing:
        yield Finding(Kind.ACCOUNT, f"{missing} recipients have no end in it")


def summary(run: Run) -> str:
    """Return the numbers of a run."""
    ledger, found = run.ledger, run.balance
    reports = sum(key[0] == "" for key, _ in ledger.copies)
    sums = f"{found.delivered} delivered + {found.reported} reported + {found.removed} removed"
    lines = [
        f"{ledger.kills} kills, {ledger.kills_in_transit} of them amid transmissions",
        f"{len(run.mails)} mails, {found.accepted} recipients",
        f"{ledger.transmissions} transmissions, {reports} reports",
        f"{ledger.repeated.total()} repeated, {ledger.unrecorded} transmitted without a record",
        f"by the account alone: {found.accepted} accepted = {sums}",
    ]
    return "\n".join(lines)


def _text(key: Key) -> str:
    return f"{key[0] or '<>'} to {key[1]}"
