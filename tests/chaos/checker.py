"""The rules over a recorded history: pure, no I/O, no clock. docs/chaos/rules.md has each in words.
The instants that a rule compares are those that a process recorded of itself.

A consumer's knowledge of a mail is as old as its last reading of the mail's mark (`looked`): it has
to obey every operation that was acknowledged before that reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from chaos.history import Event, Phase
from chaos.ledger import Attempt, Call, ItemProgress

MISSING = "the bytes of the mail are missing"
"""The reason of a dead letter that has nothing left to deliver (`distributed.items`)."""

FIRST_LOOK = 60.0
"""Seconds after which a process that reported a failed enqueue has looked at it again: a redelivery
delay, and requests to the view."""

SHOWN = 4.0
"""Seconds in which a consumer has to write something for that look to show it: the shortest
redelivery delay of a pace."""

LAST_LOOK = FIRST_LOOK + 25 * 60
"""As `FIRST_LOOK`, of the look at the end of the longest lease of a pace."""

REMOVING = ("remove", "purge")


class Kind(StrEnum):
    """The kinds of violations."""

    LOST = "lost"
    RESURRECTED = "resurrected"
    DUPLICATE = "unexplained duplicate"
    UNCOUNTED = "delivered although its enqueue failed, uncounted"
    HELD = "delivered while it was held"
    ALTERED = "delivered with other bytes"
    UNKNOWN = "delivered although it was never enqueued"
    SIZE = "size differs from a recount"
    LEFT = "left over"
    UNFINISHED = "the drain did not end"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation. `mail` is empty where it concerns a whole queue."""

    kind: Kind
    mail: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.mail + ': ' if self.mail else ''}{self.text}"


def check(events: Sequence[Event]) -> list[Violation]:
    """Return the violations of a history that ended with a drain, in order of time."""
    ledger = ItemProgress.of(events)
    rules = (_lost, _resurrected, _duplicates, _uncounted, _held, _altered, _sizes, _left)
    found = {each for rule in rules for each in rule(ledger)}
    return sorted(found, key=lambda each: (each.at, each.kind, each.mail))


def _lost(ledger: ItemProgress) -> Iterator[Violation]:
    """Acknowledged = delivered + waiting + removed + dead, for every recipient."""
    only_by_bulk: dict[str, list[Call]] = {}
    for name, mail in ledger.mails.items():
        if not mail.succeeded:
            continue
        for recipient in mail.data["recipients"]:
            if ledger.transmissions(name, recipient) or recipient in ledger.waiting[name]:
                continue
            if recipient in ledger.dead[name]:
                if MISSING in ledger.dead_letters[name]:
                    yield Violation(Kind.LOST, name, mail.ended, "a dead letter without bytes")
                continue
            removals = [each for each in _removals(ledger, mail) if each.may_have_acted]
            if not removals:
                text = f"acknowledged, never transmitted to {recipient}, and nowhere now"
                yield Violation(Kind.LOST, name, mail.ended, text)
            elif all(each.succeeded and not each.is_of_one for each in removals):
                only_by_bulk[name] = removals
    allowed = {id(each): each.count for calls in only_by_bulk.values() for each in calls}
    if len(only_by_bulk) > sum(allowed.values()):
        text = (
            f"{len(only_by_bulk)} mails are gone that only bulk removals can have removed, which "
            f"counted {sum(allowed.values())}: {', '.join(sorted(only_by_bulk)[:5])} …"
        )
        yield Violation(Kind.LOST, "", ledger.events[-1].at, text)


def _removals(ledger: ItemProgress, mail: Call) -> Iterator[Call]:
    """Yield the removals that may have met a mail."""
    for call in ledger.bulk(*REMOVING):
        if call.selects(mail) and call.ended >= mail.began:
            yield call


def _resurrected(ledger: ItemProgress) -> Iterator[Violation]:
    """After a removal was acknowledged, no consumer reads the mark and transmits all the same.

    The count of a removal by name shows whether it removed the mail. A wider removal removed every
    mail, except dead letters, whose enqueue was acknowledged before the removal began.
    """
    for call in ledger.bulk(*REMOVING):
        if not call.succeeded or not call.count:
            continue
        for name, mail in ledger.mails.items():
            if not call.selects(mail):
                continue
            if not call.is_of_one and not _was_waiting(ledger, mail, call):
                continue
            for attempt in ledger.attempts[name]:
                if attempt.transmitted and attempt.looked > call.ended:
                    yield Violation(
                        Kind.RESURRECTED,
                        name,
                        min(attempt.transmitted.values()),
                        f"removed by {call.invoked.by} at {call.ended:.3f}, transmitted by "
                        f"{attempt.by}, which read its mark at {attempt.looked:.3f}",
                    )


def _was_waiting(ledger: ItemProgress, mail: Call, call: Call) -> bool:
    """Whether a wide removal certainly met a mail, unless the mail had ended before."""
    name = mail.data["mail"]
    came = ledger.queued.get(name, inf) if mail.data.get("by_smtp") else mail.ended
    if not mail.succeeded or came >= call.began or ledger.dead_letters[name]:
        return False
    return not any(each.data["mail"] == name for each in ledger.calls["reject"])


def _duplicates(ledger: ItemProgress) -> Iterator[Violation]:
    """A second transmission is lawful only beside an attempt that was in flight and was
    interrupted."""
    for name, attempts in ledger.attempts.items():
        if len(attempts) < 2:
            continue
        for recipient in {each for attempt in attempts for each in attempt.transmitted}:
            reached = ledger.transmissions(name, recipient)
            for number, second in enumerate(reached[1:], 1):
                text = _complaint(ledger, reached[:number], second, recipient)
                if text:
                    at = second.transmitted[recipient]
                    yield Violation(Kind.DUPLICATE, name, at, f"{recipient}: {text}")


def _complaint(
    ledger: ItemProgress, before: Sequence[Attempt], second: Attempt, recipient: str
) -> str | None:
    for first in before:
        covered = first.covered.get(recipient, inf)
        if second.looked > covered:
            return (
                f"{second.by} read the mark at {second.looked:.3f} and transmitted, although "
                f"{first.by} had recorded the transmission at {covered:.3f}"
            )
    if any(_explained(ledger, first, second, recipient) for first in before):
        return None
    return f"transmitted by {before[-1].by} and by {second.by}, and nothing was broken off"


def _explained(ledger: ItemProgress, first: Attempt, second: Attempt, recipient: str) -> bool:
    """Whether one of two attempts that overlap was interrupted: its process ended or was suspended,
    its record failed, or the broker handed out its message again meanwhile."""
    until = second.transmitted[recipient]
    since = min(first.looked, second.looked)
    if any(
        since <= at <= until
        for entry in (first.entry, second.entry)
        for at in ledger.redelivered[entry]
    ):
        return True
    return _broken(ledger, first, recipient, until) or _broken(ledger, second, recipient, until)


def _broken(ledger: ItemProgress, attempt: Attempt, recipient: str, until: float) -> bool:
    covered = attempt.covered.get(recipient, inf)
    if attempt.by in ledger.killed and covered == inf:
        return True
    end = min(covered, until)
    if attempt.separated <= end:
        return True
    return any(a <= end and b >= attempt.looked for a, b in ledger.suspended[attempt.by])


def _uncounted(ledger: ItemProgress) -> Iterator[Violation]:
    """A mail whose enqueue failed is delivered only if its process counted it as not withdrawn, at
    the failure or when it looked at it again."""
    for name, attempts in ledger.attempts.items():
        mail = ledger.mails.get(name)
        if mail is None:
            yield Violation(Kind.UNKNOWN, name, attempts[0].looked, "no enqueue was recorded")
        elif mail.phase is Phase.FAIL:
            for attempt in attempts:
                is_counted = attempt.mail_id in ledger.unwithdrawn
                if attempt.transmitted and not is_counted and _was_shown(ledger, mail, attempt):
                    text = f"refused with {mail.result.get('error')}, transmitted by {attempt.by}"
                    yield Violation(Kind.UNCOUNTED, name, mail.ended, text)


def _was_shown(ledger: ItemProgress, mail: Call, attempt: Attempt) -> bool:
    """Whether the attempt began after the failure was reported, when the withdrawal's mark is there
    to be read; or the process that reported it looked at the mail when the attempt had left a
    record or an ending: it looks twice, and once more before it closes."""
    if attempt.looked > mail.ended:
        return True
    by, written = mail.invoked.by, min(attempt.covered.values(), default=inf)
    until = ledger.last_seen[by] if by in ledger.killed else ledger.closing.get(by, inf)
    lived = until - mail.ended
    shown_at_first = lived >= FIRST_LOOK and written - mail.ended <= SHOWN
    return written <= ledger.closing.get(by, -inf) or shown_at_first or lived >= LAST_LOOK


def _held(ledger: ItemProgress) -> Iterator[Violation]:
    """Between an acknowledged hold and the first release that may have met the mail, no consumer
    that reads the mark gets it."""
    for hold in ledger.bulk("hold"):
        if not hold.succeeded or not hold.is_of_one or not hold.count:
            continue
        name = hold.data["selector"]["name"]
        mail = ledger.mails.get(name)
        if mail is None:
            continue
        releases = [
            each.began
            for each in ledger.bulk("release", "requeue")
            if each.selects(mail) and each.ended >= hold.began
        ]
        until = min(releases, default=inf)
        for attempt in ledger.attempts[name]:
            if attempt.transmitted and hold.ended < attempt.looked < until:
                text = f"held at {hold.ended:.3f}, transmitted by {attempt.by}"
                yield Violation(Kind.HELD, name, min(attempt.transmitted.values()), text)


def _altered(ledger: ItemProgress) -> Iterator[Violation]:
    for event in ledger.events:
        if event.op == "transmit" and not event.data.get("intact", True):
            yield Violation(Kind.ALTERED, event.data["mail"], event.at, f"by {event.by}")


def _sizes(ledger: ItemProgress) -> Iterator[Violation]:
    """At rest, `size` is what browsing finds."""
    for event in ledger.events:
        if event.op == "recount" and event.data["size"] != event.data["found"]:
            text = f"{event.data['queue']}: {event.data['size']}, but found {event.data['found']}"
            yield Violation(Kind.SIZE, "", event.at, text)


def _left(ledger: ItemProgress) -> Iterator[Violation]:
    """After the drain no server has anything left of any mail."""
    if not any(event.op == "remains" for event in ledger.events):
        yield Violation(Kind.UNFINISHED, "", inf, "nothing is known of what is left")
    for event in ledger.events:
        if event.op == "remains":
            for what, items in event.data["remains"].items():
                if items:
                    shown = ", ".join(str(each) for each in items[:3])
                    text = f"{event.data['queue']}: {len(items)} {what}: {shown}"
                    yield Violation(Kind.LEFT, "", event.at, text)
