"""Random histories of an archived store, and what happened in them, written down from outside: by
the callers of the queue, without a look at what it records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from random import Random

from postroad import AttemptOutcomes, Mail, Outcome, Selector
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.entries import slice_of
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
DOMAINS = ("a.example", "b.example", "c.example")
SENDERS = ("x@one.example", "y@TWO.example", None)
KINDS = ("accepted", "delivered", "deferred", "rejected", "removed", "attempts", "bytes")

Cell = tuple[datetime, str, str, str]
"""An hour, the sender's domain, the recipients' domain, a site."""

Cells = dict[Cell, Counter[str]]


def domain(address: str | None) -> str:
    return (address or "").rpartition("@")[2].lower()


class ItemProgress:
    """What the callers of a queue did and saw."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.cells: Cells = defaultdict(Counter)
        self.states: dict[str, list[str]] = defaultdict(list)
        """By the name of a mail: what became of its entries, in order."""

    def add(self, sender: str | None, to: str, site: str, **counts: int) -> None:
        hour = slice_of(self.clock.now(), HOUR)
        self.cells[hour, domain(sender), to, site].update(counts)

    def every(self, mail: Mail, to: Iterable[str], what: str) -> None:
        """Count recipients to whom something happened without an attempt."""
        for each in to:
            self.add(mail.sender, domain(each), "", **{what: 1})

    def attempt(
        self, mail: Mail, size: int, outcomes: Mapping[str, Outcome], *, gives_up: bool = False
    ) -> None:
        for place in {(domain(to), found.site) for to, found in outcomes.items()}:
            here = [found for to, found in outcomes.items() if (domain(to), found.site) == place]
            kinds = Counter(each.kind for each in here)
            deferred = kinds[OutcomeKind.DEFERRED]
            self.add(
                mail.sender,
                *place,
                delivered=kinds[OutcomeKind.DELIVERED],
                deferred=deferred,
                rejected=kinds[OutcomeKind.FAILED] + deferred * gives_up,
                attempts=1,
                bytes=size if kinds[OutcomeKind.DELIVERED] else 0,
            )


def outcome(kind: OutcomeKind, to: str) -> Outcome:
    texts = {
        OutcomeKind.DELIVERED: "250 ok",
        OutcomeKind.DEFERRED: "451 4.7.1 greylisted",
        OutcomeKind.FAILED: "550 5.1.1 no such user",
    }
    return Outcome(kind, texts[kind], f"mx.{domain(to)}")


class RandomHistory:
    """Lets mail pass through a queue, in every way in which it can end or go on."""

    def __init__(self, queue: OwnedQueue, clock: ManualClock, seed: int) -> None:
        self.queue, self.clock, self.draw = queue, clock, Random(seed)
        self.ledger = ItemProgress(clock)
        self.consumer = queue.consumer(100)
        self.mails: dict[str, Mail] = {}
        """Those that wait and are in no consumer's hands, by name."""
        self.dead_letters: dict[str, Mail] = {}
        self.held_at_end: set[str] = set()
        """Dead letters that were held, and are held again as they are requeued."""
        self.due: dict[str, datetime] = {}
        self._count = 0

    def states(self) -> Iterator[tuple[str, ...]]:
        """What became of the entries of each mail, in order."""
        for name in (f"m{number + 1}" for number in range(self._count)):
            waits = ("waiting",) if name in self.mails else ()
            yield (*self.ledger.states[name], *waits)

    async def step(self) -> None:
        deeds = (
            *(self._enqueue,) * 4,
            *(self._consume,) * 6,
            *(self._hold, self._flush, self._remove, self._expire, self._dead_letters),
        )
        await self.draw.choice(deeds)()
        await self.clock.advance(timedelta(seconds=self.draw.randrange(300)))
        if self.draw.random() < 0.2:
            await self.queue.maintain()

    async def _enqueue(self) -> None:
        self._count += 1
        name, draw = f"m{self._count}", self.draw
        to = tuple(f"r{n}@{draw.choice(DOMAINS)}" for n in range(draw.choice((1, 1, 2, 4))))
        mail = Mail(draw.choice(SENDERS), to, b"x" * draw.randrange(1, 300), name=name)
        delay = draw.choice((0, 0, 0, 0, 2, 90, 6000)) * MINUTE
        await self.queue.enqueue(mail, delay)
        self.ledger.every(mail, to, "accepted")
        self.mails[name], self.due[name] = mail, self.clock.now() + delay

    async def _consume(self) -> None:
        now = self.clock.now()
        for _ in range(sum(due <= now for due in self.due.values())):
            item = await self.consumer.next()
            name = item.mail.name or ""
            mail = self.mails.pop(name)
            del self.due[name]
            await self._end(name, mail, item)

    async def _end(self, name: str, mail: Mail, item: SpoolItem) -> None:
        ends = (self._done, self._silent, self._retry, self._partly, self._recorded, self._reject)
        more = (self._give_up, self._defer, self._give_back, self._reject_silently)
        await self.draw.choice((self._done, *ends, *more))(name, mail, item)

    def _outcomes(
        self, item: SpoolItem, *kinds: OutcomeKind
    ) -> tuple[dict[str, Outcome], AttemptOutcomes]:
        """Outcomes for the recipients, of these kinds in turn."""
        to = item.mail.recipients
        found = {each: outcome(kinds[n % len(kinds)], each) for n, each in enumerate(to)}
        return found, AttemptOutcomes.of(found, 0.5, item.mail.sender)

    def _waits(self, name: str, mail: Mail, delay: timedelta = timedelta(0)) -> None:
        self.mails[name], self.due[name] = mail, self.clock.now() + delay

    async def _done(self, name: str, mail: Mail, item: SpoolItem) -> None:
        found, counted = self._outcomes(item, OutcomeKind.DELIVERED)
        await item.done(counted)
        self.ledger.attempt(mail, item.size_bytes, found)
        self.ledger.states[name].append("delivered")

    async def _silent(self, name: str, mail: Mail, item: SpoolItem) -> None:
        await item.done()
        self.ledger.every(mail, item.mail.recipients, "delivered")
        self.ledger.states[name].append("delivered")

    async def _retry(self, name: str, mail: Mail, item: SpoolItem) -> None:
        found, counted = self._outcomes(item, OutcomeKind.DEFERRED)
        delay = self.draw.choice((0, 3, 70)) * MINUTE
        await item.retry(delay, outcomes=counted)
        self.ledger.attempt(mail, item.size_bytes, found)
        self.ledger.states[name].append("replaced")
        self._waits(name, mail, delay)

    async def _partly(self, name: str, mail: Mail, item: SpoolItem) -> None:
        found, counted = self._outcomes(item, OutcomeKind.DEFERRED, OutcomeKind.DELIVERED)
        left = tuple(to for to, each in found.items() if each.kind is OutcomeKind.DEFERRED)
        done = {to: each for to, each in found.items() if to not in left}
        await item.record(done)
        await item.retry(MINUTE, left, outcomes=counted)
        self.ledger.attempt(mail, item.size_bytes, found)
        self.ledger.states[name].append("replaced")
        self._waits(name, mail, MINUTE)

    async def _recorded(self, name: str, mail: Mail, item: SpoolItem) -> None:
        found, counted = self._outcomes(item, OutcomeKind.DELIVERED)
        await item.record(found)
        await item.done(counted)
        self.ledger.attempt(mail, item.size_bytes, found)
        self.ledger.states[name].append("delivered")

    async def _reject(self, name: str, mail: Mail, item: SpoolItem) -> None:
        found, counted = self._outcomes(item, OutcomeKind.FAILED)
        await item.reject("550 5.1.1 no such user", counted)
        self.ledger.attempt(mail, item.size_bytes, found)
        self.ledger.states[name].append("rejected")
        self.dead_letters[name] = mail

    async def _reject_silently(self, name: str, mail: Mail, item: SpoolItem) -> None:
        await item.reject("no reason")
        self.ledger.every(mail, item.mail.recipients, "rejected")
        self.ledger.states[name].append("rejected")
        self.dead_letters[name] = mail

    async def _give_up(self, name: str, mail: Mail, item: SpoolItem) -> None:
        found, counted = self._outcomes(item, OutcomeKind.DEFERRED)
        await item.reject("too old", counted)
        self.ledger.attempt(mail, item.size_bytes, found, gives_up=True)
        self.ledger.states[name].append("rejected")
        self.dead_letters[name] = mail

    async def _defer(self, name: str, mail: Mail, item: SpoolItem) -> None:
        await item.defer(5 * MINUTE)
        self.ledger.states[name].append("replaced")
        self._waits(name, mail, 5 * MINUTE)

    async def _give_back(self, name: str, mail: Mail, item: SpoolItem) -> None:
        await item.give_back()
        self._waits(name, mail)

    def _one(self, mails: dict[str, Mail]) -> str | None:
        return self.draw.choice(sorted(mails)) if mails else None

    async def _hold(self) -> None:
        if (name := self._one(self.mails)) is None:
            return
        if self.due.pop(name, None) is not None:
            assert await self.queue.hold(Selector(name=name)) == 1
            self.ledger.states[name].append("replaced")
        elif self.draw.random() < 0.3:
            assert await self.queue.release(Selector(name=name)) == 1
            flushed = await self.queue.flush(Selector(name=name))
            self.ledger.states[name] += ["replaced"] * (1 + flushed)
            self.due[name] = self.clock.now()

    async def _flush(self) -> None:
        name = self._one(self.due_later())
        if name is not None:
            assert await self.queue.flush(Selector(name=name)) == 1
            self.ledger.states[name].append("replaced")
            self.due[name] = self.clock.now()

    def due_later(self) -> dict[str, Mail]:
        now = self.clock.now()
        return {name: self.mails[name] for name, due in self.due.items() if due > now}

    async def _remaining(self, name: str) -> tuple[str, ...]:
        (view,) = [each async for each in self.queue.browse(Selector(name=name))]
        return view.mail.recipients

    async def _remove(self) -> None:
        if (name := self._one(self.mails)) is not None:
            to = await self._remaining(name)
            assert await self.queue.remove(Selector(name=name)) == 1
            self._over(name, to, "removed")

    async def _expire(self) -> None:
        if (name := self._one(self.mails)) is not None:
            to = await self._remaining(name)
            if name not in self.due:
                self.held_at_end.add(name)
            assert await self.queue.expire(Selector(name=name)) == 1
            self.dead_letters[name] = self._over(name, to, "rejected")

    def _over(self, name: str, to: tuple[str, ...], how: str) -> Mail:
        mail = self.mails.pop(name)
        self.due.pop(name, None)
        self.ledger.every(mail, to, how)
        self.ledger.states[name].append(how)
        return mail

    async def _dead_letters(self) -> None:
        """Most dead letters stay."""
        if (name := self._one(self.dead_letters)) is None or self.draw.random() < 0.5:
            return
        mail = self.dead_letters.pop(name)
        if self.draw.random() < 0.5:
            assert await self.queue.discard(Selector(name=name)) == 1
        else:
            assert await self.queue.requeue(Selector(name=name)) == 1
            self._waits(name, mail)
            if name in self.held_at_end:
                del self.due[name]
        self.held_at_end.discard(name)
