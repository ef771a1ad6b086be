"""A history put in order for the checker: mails, attempts at them, removals, interruptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from chaos.history import Event, Phase

Interval = tuple[float, float]


@dataclass(slots=True)
class Call:
    """One call from its `invoke` to its end; `ended` is infinite where no end was recorded."""

    invoked: Event
    ended: float = inf
    phase: Phase = Phase.UNKNOWN
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def began(self) -> float:
        return self.invoked.at

    @property
    def data(self) -> Mapping[str, Any]:
        return self.invoked.data

    @property
    def succeeded(self) -> bool:
        return self.phase is Phase.OK

    @property
    def count(self) -> int:
        """The count that a bulk operation returned; 0 without a reply."""
        return int(self.result.get("count", 0))

    @property
    def may_have_acted(self) -> bool:
        """Whether a bulk operation may have changed anything."""
        return not self.succeeded or self.count > 0

    def selects(self, mail: Call) -> bool:
        """Whether an administrator's selector selects a mail, given by its enqueue."""
        selector = self.data["selector"]
        if self.data["queue"] != mail.data["queue"]:
            return False
        return bool(
            selector.get("all")
            or selector.get("name") == mail.data["mail"]
            or selector.get("sender") == mail.data["sender"]
        )

    @property
    def is_of_one(self) -> bool:
        """Whether the selector names one mail, so that the count shows what happened to that
        mail."""
        return "name" in self.data["selector"]


@dataclass(slots=True)
class Attempt:
    """One lease of a mail by a consumer. `looked` is the instant of the last reading of the mark
    before the mail was handed out. `covered` has, for each recipient, the instant of the
    acknowledgement that it is finished."""

    by: str
    mail: str
    entry: str
    mail_id: str
    looked: float
    transmitted: dict[str, float] = field(default_factory=dict)
    covered: dict[str, float] = field(default_factory=dict)
    separated: float = inf
    """The instant at which a record or an ending first failed, or began after the consumer had lost
    the message."""
    ended: bool = False


@dataclass(slots=True)
class ItemProgress:
    """Everything that the rules read."""

    events: Sequence[Event]
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """By operation."""
    mails: dict[str, Call] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    """By mail, in order."""
    killed: set[str] = field(default_factory=set)
    """Lives of processes that were killed or stopped from outside."""
    suspended: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    redelivered: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By entry."""
    queued: dict[str, float] = field(default_factory=dict)
    """The instant at which a mail that came by SMTP was in the queue."""
    unwithdrawn: set[str] = field(default_factory=set)
    """Ids of mails whose failed enqueue was counted as not withdrawn."""
    closing: dict[str, float] = field(default_factory=dict)
    """The instant at which a life began to close its queues in order."""
    last_seen: dict[str, float] = field(default_factory=dict)
    """The instant of the last event of each life of a process."""
    dead_letters: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Mails that were ever listed as dead, with the reasons."""
    waiting: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    dead: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The last list, after the drain: recipients by mail."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> ItemProgress:
        """Read a history."""
        ledger = cls(events)
        open_calls: dict[str, Call] = {}
        leases: dict[str, Attempt] = {}
        for event in events:
            if event.phase is Phase.INVOKE:
                call = open_calls[event.call] = Call(event)
                ledger.calls[event.op].append(call)
                if event.op == "enqueue":
                    ledger.mails[event.data["mail"]] = call
            elif event.phase is not Phase.INFO and event.call in open_calls:
                call = open_calls[event.call]
                call.ended, call.phase, call.result = event.at, event.phase, event.data
            ledger._note(event, leases, open_calls)
        return ledger

    def _note(self, event: Event, leases: dict[str, Attempt], calls: Mapping[str, Call]) -> None:
        data = event.data
        self.last_seen[event.by] = event.at
        if event.op == "unwithdrawn":
            self.unwithdrawn.add(data["mail_id"])
        elif event.op == "queued":
            self.queued.setdefault(data["mail"], event.at)
        elif event.op == "closing":
            self.closing[event.by] = event.at
        elif event.op == "lease":
            attempt = Attempt(
                event.by, data["mail"], data["entry"], data["mail_id"], data["looked"]
            )
            leases[data["attempt"]] = attempt
            self.attempts[attempt.mail].append(attempt)
        elif event.op == "transmit":
            times = leases[data["attempt"]].transmitted
            for recipient in data["recipients"]:
                times.setdefault(recipient, event.at)
        elif event.op in ("record", "done", "retry", "reject"):
            self._note_ending(event, calls[event.call], leases)
        elif event.op == "process":
            self._note_process(event)
        elif event.op == "redelivery":
            self.redelivered[data["entry"]].append(event.at)
        elif event.op in ("dead_letters", "browse") and event.phase is Phase.OK:
            self._note_list(event)

    def _note_ending(self, event: Event, call: Call, leases: dict[str, Attempt]) -> None:
        attempt = leases[call.data["attempt"]]
        if event.phase is Phase.OK:
            finished = call.data["finishes"]
            for recipient in attempt.transmitted if finished is None else finished:
                attempt.covered.setdefault(recipient, event.at)
            attempt.ended |= event.op != "record"
        elif event.phase is not Phase.INVOKE or event.data.get("lost"):
            attempt.separated = min(attempt.separated, event.at)

    def _note_process(self, event: Event) -> None:
        life, what = event.data["process"], event.data["what"]
        if what == "suspended":
            self.suspended[life].append((event.at, inf))
        elif what == "resumed" and self.suspended[life]:
            self.suspended[life][-1] = (self.suspended[life][-1][0], event.at)
        elif what in ("killed", "stopped", "crashed"):
            self.killed.add(life)

    def _note_list(self, event: Event) -> None:
        found = {each["mail"]: set(each["recipients"]) for each in event.data["mails"]}
        if event.op == "dead_letters":
            for each in event.data["mails"]:
                self.dead_letters[each["mail"]].add(each["reason"] or "")
        if event.data.get("last"):
            (self.dead if event.op == "dead_letters" else self.waiting).update(found)

    def bulk(self, *operations: str) -> Iterable[Call]:
        """Return the administrators' calls of these operations."""
        return (call for operation in operations for call in self.calls[operation])

    def transmissions(self, mail: str, recipient: str) -> list[Attempt]:
        """Return the attempts that reached a recipient, in order of transmission."""
        reached = [each for each in self.attempts[mail] if recipient in each.transmitted]
        return sorted(reached, key=lambda each: each.transmitted[recipient])
