"""The replacement protocol as a small machine, to be searched exhaustively.

One mail. Each process is a program counter over the steps of `distributed`, in their order; a
consumer decides by the functions that the engine itself uses (`domain.dispatch`, `Mark`). Between
any two steps any other process may take a step, or the process may crash.

Three assumptions about time are built in, as the engine's timing guarantees them:
- A consumer that has an entry in flight without a claim, when a message about it begins a
redelivery
  delay, has ended or claimed the entry by the end of that delay (`keep_after` <
  `redelivery_delay`). Nothing follows from the delay about consumers that get the entry later.
- A claim lapses only when its owner is dead, because a living owner renews it in time.
- Cleanup deletes nothing while a consumer decides by limits that it read before, because cleanup
  waits a lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.dispatch import (
    Redeliver,
    ReferenceArrival,
    Verdict,
    decide,
    decide_claimed,
)
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, EntryKey, Mark
from postroad.domain.queues.references import Reference

NOW = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)
WHO = ("b@example.net",)
IN_FLIGHT = {"transmit", "record", "act"}
ARRIVAL = ReferenceArrival(NOW, False, 0, None, timedelta(seconds=8), limit=100, draw=0.0)


def key(entry: int) -> EntryKey:
    return EntryKey(NOW, 0, UUID(int=entry))


def number(entry: EntryKey) -> int:
    return entry.enqueue_id.int


class Message(NamedTuple):
    """A message about an entry. `repeats`: it is the repetition of a message without a claim.
    `waits_for`: the consumers that the redelivery delay outlasts."""

    entry: int
    claim: bool = False
    redelivered: bool = False
    repeats: bool = False
    waits_for: tuple[int, ...] = ()


class Process(NamedTuple):
    """A process at a step. `entry` is what it works on, `message` what it holds; `checked`: it
    looked at the marks after the removal had been answered."""

    kind: str
    at: str = "start"
    entry: int = 0
    message: Message | None = None
    taken: int = 0
    checked: bool = False
    crashed: bool = False


class State(NamedTuple):
    """All there is. `rows`: entry → (held, previous). `cleaned`: entries before browse start, whose
    marks were deleted."""

    processes: tuple[Process, ...]
    rows: tuple[tuple[int, tuple[bool, tuple[int, ...]]], ...]
    marks: tuple[tuple[int, Mark], ...] = ()
    messages: tuple[Message, ...] = ()
    claims: tuple[tuple[int, int], ...] = ()
    cleaned: tuple[int, ...] = ()
    entries: int = 1
    transmitted: int = 0
    interrupted: int = 0
    crashes: int = 0
    losses: int = 0
    removed: bool = False
    resurrected: bool = False

    def mark(self, entry: int) -> Mark | None:
        return dict(self.marks).get(entry)

    def row(self, entry: int) -> tuple[bool, tuple[int, ...]]:
        return dict(self.rows)[entry]

    def live(self) -> list[int]:
        return [entry for entry in self.present() if (self.mark(entry) or Mark()).is_live]

    def present(self) -> list[int]:
        """The entries that are not cleaned, in order."""
        return [entry for entry, _ in self.rows if entry not in self.cleaned]


@dataclass
class Model:
    """What may happen: how often processes crash, how often an attempt fails and is retried, and
    how often a consumer that lives on loses its connection with a mail in flight. `mistake` leaves
    one safeguard out, to show that the search would notice."""

    crashes: int
    retries: int = 0
    losses: int = 0
    mistake: str | None = None

    def successors(self, state: State) -> Iterator[State]:
        """Yield every state to which one step of a process leads."""
        for index, process in enumerate(state.processes):
            if process.crashed or process.at == "end":
                continue
            yield from self._steps(_Edit(state, index))
            if state.crashes < self.crashes and process.at != "start":
                yield _Edit(state, index).crash()
            if state.losses < self.losses and process.at in IN_FLIGHT and process.message:
                yield _Edit(state, index).disconnect()
        for entry, owner in state.claims:
            if state.processes[owner].crashed or state.processes[owner].at == "start":
                yield state._replace(
                    claims=tuple(each for each in state.claims if each[0] != entry)
                )

    def first_step(self, state: State, index: int) -> State | None:
        """Return what one process does next when left alone; None when it can do nothing."""
        if state.processes[index].at == "end":
            return None
        return next(self._steps(_Edit(state, index)), None)

    def _steps(self, edit: _Edit) -> Iterator[State]:
        process = edit.process
        if process.kind == "consumer":
            yield from self._consumer(edit)
        elif process.kind == "cleaner":
            yield from self._cleaner(edit)
        elif process.at == "start":
            live = edit.state.live()
            if live and (process.kind != "release" or edit.state.row(live[0])[0]):
                yield edit.go("act", entry=live[0])
            elif not live:
                yield edit.go("end")
        else:
            yield from self._administrator(edit)

    # Consumers

    def _consumer(self, edit: _Edit) -> Iterator[State]:
        process, state = edit.process, edit.state
        if process.at == "start":
            for message in dict.fromkeys(state.messages):
                if not message.waits_for:
                    yield edit.take(message)
        elif process.at in {"decide", "claim", "recheck"}:
            step = {"decide": self._decided, "claim": self._claimed, "recheck": self._rechecked}
            yield step[process.at](edit)
        elif process.at in {"transmit", "record"}:
            yield from self._in_flight(edit)
        elif process.at == "act" and self._is_over(state, process.entry):
            yield edit.go("ack")
        elif process.at == "act":
            yield edit.replaced(held=False, previous=())
        elif process.at == "replace":
            yield edit.replaced(held=False, previous=edit.chain)
        elif process.at == "ack":
            yield edit.ended()
        else:
            yield from self._finishing(edit, then="ack")

    def _in_flight(self, edit: _Edit) -> Iterator[State]:
        process, state = edit.process, edit.state
        if process.at == "transmit":
            yield edit.go("record")._replace(transmitted=state.transmitted + 1)
            if state.entries <= self.retries:
                yield edit.go("act")
        elif self.mistake == "ack before mark":
            yield edit.ended()
        else:
            yield edit.delivered(process.entry).go("ack")
        if process.entry not in dict(state.claims):
            yield edit.claim(process.entry).state  # the keeper claims what is in flight for long

    def _decided(self, edit: _Edit) -> State:
        message, state = edit.process.message, edit.state
        assert message is not None
        held, previous = state.row(message.entry)
        entry = _entry(message.entry, held, previous)
        reference = Reference.to(entry, claim=message.claim)
        if message.repeats and self.mistake != "repetition as any claim":
            reference = Reference.repeating(entry)
        arrival = replace(ARRIVAL, redelivered=message.redelivered)
        if message.entry in state.cleaned:
            return edit.go("ack")
        decision = decide(reference, state.mark(message.entry), arrival)
        edit = edit.keep(checked=state.removed)
        if isinstance(decision, Redeliver):
            again = message._replace(claim=True, redelivered=False)
            return edit.publish(again, redelivery_delay=True).go("ack")
        at = {Verdict.SETTLE: "ack", Verdict.FINISH: "finish", Verdict.CLAIM: "claim"}
        at[Verdict.REPLACE] = "replace"
        return edit.go(at.get(decision, "transmit"))

    def _claimed(self, edit: _Edit) -> State:
        process, state = edit.process, edit.state
        if self.mistake == "no claims":
            return edit.go("recheck")
        wanted = (*state.row(process.entry)[1], process.entry)[process.taken]
        if dict(state.claims).get(wanted, edit.index) != edit.index:
            again = Message(process.entry, claim=True)
            return edit.release().publish(again, redelivery_delay=True).go("ack")
        edit = edit.claim(wanted)
        last = process.taken == len(state.row(process.entry)[1])
        return edit.keep(taken=process.taken + 1).go("recheck" if last else "claim")

    def _rechecked(self, edit: _Edit) -> State:
        process, state = edit.process, edit.state
        previous = [state.mark(each) for each in state.row(process.entry)[1]]
        if self.mistake == "predecessors forgotten":
            previous = []
        verdict = decide_claimed(state.mark(process.entry), previous)
        edit = edit.keep(checked=state.removed)
        if verdict is Verdict.SETTLE and state.mark(process.entry) is None:
            edit = edit.delivered(process.entry)
        at = {Verdict.SETTLE: "ack", Verdict.FINISH: "finish"}
        return edit.go(at.get(verdict, "transmit"))

    # Replacement, from its second step on

    def _finishing(self, edit: _Edit, then: str) -> Iterator[State]:
        process, state = edit.process, edit.state
        mark = state.mark(process.entry) or Mark()
        if not mark.is_unfinished_replacement:
            yield edit.go(then)
            return
        assert mark.ending is not None
        assert mark.ending.successor is not None
        assert mark.ending.change is not None
        successor, change = number(mark.ending.successor), mark.ending.change
        match process.at:
            case "finish":
                yield edit.insert(successor, change).go("publish")
            case "publish":
                if mark.delivered_at is not None:
                    yield edit.delivered(successor).go("published")
                elif change.held:
                    yield edit.go("published")
                else:
                    redelivery_delay = (
                        bool(change.previous) and self.mistake != "no redelivery delay"
                    )
                    message = Message(successor, claim=True)
                    yield edit.publish(message, redelivery_delay=redelivery_delay).go("published")
            case "published":
                yield edit.published(process.entry).go(then)

    # Administrators

    def _administrator(self, edit: _Edit) -> Iterator[State]:
        process, state = edit.process, edit.state
        if process.at != "act":
            yield from self._finishing(edit, then="end")
        elif self._is_over(state, process.entry):
            yield edit.go("end")
        elif process.kind == "remove":
            yield self._removed(edit)
        else:
            yield edit.replaced(held=process.kind == "hold", previous=edit.chain)

    def _is_over(self, state: State, entry: int) -> bool:
        return entry in state.cleaned and self.mistake != "browse start not asked"

    # Maintenance

    def _cleaner(self, edit: _Edit) -> Iterator[State]:
        """Clean the oldest entry, if it is over and no process is deciding."""
        state, (oldest, *others) = edit.state, edit.state.present()
        mark = state.mark(oldest)
        deciding = {"decide", "claim", "recheck", "replace"}
        if any(each.at in deciding for each in state.processes):
            return
        if mark is None or not mark.is_final or not others:
            return
        if mark.delivered_at is not None and self.mistake != "delivery not handed down":
            successor = mark.ending.successor if mark.ending is not None else None
            edit = edit.delivered(number(successor)) if successor is not None else edit
        yield edit.clean(oldest)

    def _removed(self, edit: _Edit) -> State:
        process, state = edit.process, edit.state
        mark = state.mark(process.entry)
        if mark is None:
            ending = Ending(EndingKind.REMOVED, NOW)
            return edit.put(process.entry, Mark(ending=ending)).go("end")._replace(removed=True)
        if mark.ending is None or mark.ending.successor is None or mark.delivered_at is not None:
            return edit.go("end")
        assert mark.ending.change is not None
        successor = number(mark.ending.successor)
        return edit.insert(successor, mark.ending.change).go("act", entry=successor)


class _Edit:
    """A state in the making, seen by one process."""

    def __init__(self, state: State, index: int) -> None:
        self.state = state
        self.index = index

    @property
    def process(self) -> Process:
        return self.state.processes[self.index]

    def keep(self, **changes: object) -> _Edit:
        mine = self.process._replace(**changes)  # type: ignore[arg-type]
        every = list(self.state.processes)
        every[self.index] = mine
        return _Edit(self.state._replace(processes=tuple(every)), self.index)

    def go(self, at: str, **changes: object) -> State:
        leaves = self.process.at in IN_FLIGHT and at not in IN_FLIGHT
        state = (self.outlasted() if leaves else self).keep(at=at, **changes).state
        if at == "transmit" and self.process.checked:
            return state._replace(resurrected=True)
        return state

    def take(self, message: Message) -> State:
        left = list(self.state.messages)
        left.remove(message)
        edit = _Edit(self.state._replace(messages=tuple(left)), self.index)
        return edit.go("decide", message=message, entry=message.entry, taken=0, checked=False)

    @property
    def chain(self) -> tuple[int, ...]:
        """The entries that a successor by administration has to ask."""
        return (*self.state.row(self.process.entry)[1], self.process.entry)

    def publish(self, message: Message, *, redelivery_delay: bool = False) -> _Edit:
        message = message._replace(
            waits_for=_unclaimed(self.state, message.entry) if redelivery_delay else ()
        )
        return self.messages(*self.state.messages, message)

    def messages(self, *messages: Message) -> _Edit:
        return _Edit(self.state._replace(messages=tuple(sorted(messages))), self.index)

    def outlasted(self) -> _Edit:
        """No redelivery delay waits for this consumer any more: it ended or claimed its item, or
        died."""
        return self.messages(
            *(
                each._replace(waits_for=tuple(i for i in each.waits_for if i != self.index))
                for each in self.state.messages
            )
        )

    def put(self, entry: int, mark: Mark) -> _Edit:
        marks = tuple(sorted({**dict(self.state.marks), entry: mark}.items(), key=lambda m: m[0]))
        return _Edit(self.state._replace(marks=marks), self.index)

    def clean(self, entry: int) -> State:
        marks = tuple(each for each in self.state.marks if each[0] != entry)
        return self.state._replace(marks=marks, cleaned=(*self.state.cleaned, entry))

    def delivered(self, entry: int) -> _Edit:
        return self.put(entry, replace(self.state.mark(entry) or Mark(), delivered_at=NOW))

    def published(self, entry: int) -> _Edit:
        mark = self.state.mark(entry)
        assert mark is not None
        return self.put(entry, replace(mark, published=True))

    def insert(self, entry: int, change: Change) -> _Edit:
        previous = tuple(number(each) for each in change.previous)
        rows = tuple(sorted({**dict(self.state.rows), entry: (change.held, previous)}.items()))
        return _Edit(self.state._replace(rows=rows), self.index)

    def replaced(self, *, held: bool, previous: tuple[int, ...]) -> State:
        entry = self.process.entry
        if self.state.mark(entry) is not None:
            return self.go("finish")
        change = Change(WHO, None, held, 0, None, tuple(key(each) for each in previous))
        ending = Ending(EndingKind.REPLACED, NOW, key(self.state.entries), change)
        edit = self.put(entry, Mark(ending=ending))
        return edit.go("finish")._replace(entries=self.state.entries + 1)

    def claim(self, entry: int) -> _Edit:
        claims = tuple(sorted({**dict(self.state.claims), entry: self.index}.items()))
        edit = _Edit(self.state._replace(claims=claims), self.index)
        return edit.outlasted() if entry == self.process.entry else edit

    def release(self) -> _Edit:
        mine = tuple(each for each in self.state.claims if each[1] != self.index)
        return _Edit(self.state._replace(claims=mine), self.index)

    def ended(self) -> State:
        return self.release().go("start", message=None, entry=0)

    def disconnect(self) -> State:
        """The broker gives the message to another consumer; this one keeps the mail in flight."""
        state = self.back().keep(message=None).state
        return state._replace(losses=state.losses + 1)

    def back(self) -> _Edit:
        message = self.process.message
        return self if message is None else self.publish(message._replace(redelivered=True))

    def crash(self) -> State:
        process, state = self.process, self.keep(crashed=True).outlasted().back().state
        interrupted = process.at == "record"
        return state._replace(
            crashes=state.crashes + 1, interrupted=state.interrupted + interrupted
        )


def _entry(entry: int, held: bool, previous: tuple[int, ...]) -> Entry:
    chain = tuple(key(each) for each in previous)
    envelope = Envelope(None, WHO)
    return Entry(key(entry), UUID(int=0), envelope, "b", 1, NOW, NOW, None, held, 0, None, chain)


def _unclaimed(state: State, entry: int) -> tuple[int, ...]:
    """Return the consumers that have an entry in flight, or one that it follows, without a
    claim."""
    about = {entry, *dict(state.rows).get(entry, (False, ()))[1]}
    claimed = dict(state.claims)
    return tuple(
        index
        for index, process in enumerate(state.processes)
        if process.at in IN_FLIGHT
        and process.kind == "consumer"
        and not process.crashed
        and process.entry in about
        and process.entry not in claimed
    )
