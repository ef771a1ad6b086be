"""The work of the processes of a run: producers, workers with random endings, an administrator.

The same code runs in real processes and in memory: it uses a queue, a clock and a recorder. Each
process draws its actions from its own seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import smtplib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from chaos.history import Phase, Recorder
from chaos.observed import delivery_of
from chaos.pace import Pace
from postroad.cli.processes.long_running import run_maintenance
from postroad.domain.mail.mail import Envelope, Mail, Outcome
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Selector
from postroad.errors import BlobMissing, EntryEnded, PostroadError, QueueClosed
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import Item, MailQueue

SENDERS = tuple(f"s{number}@chaos.example" for number in range(40))
"""A removal by sender meets about one mail in forty."""

LOOKED_AT = 40
"""Mails that the administrator browses before choosing one."""

MADE_UP_FOR = 2.0
"""Seconds: a producer that stood still for longer does not enqueue what it missed."""

AT_ONCE = 6
"""At most so many of the administrator's actions are under way together."""

TRAP = "trap@chaos.example"
"""A recipient of each mail by SMTP, which a filter removes."""

FILTERED = b"X-Filtered\0yes\0"
"""The field that it adds, as a milter has it."""

SMTP_TIMEOUT = 60.0
"""Seconds for each reply of an intake."""

LAST_ATTEMPT = 5
"""Attempts after which a worker delivers at once, so that every mail ends."""


def content_of(name: str) -> bytes:
    """Return the bytes of a mail. Its name decides them, so that a consumer can compare them."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    lines = f"{digest}\r\n" * (1 + int(digest[:2], 16) // 8)
    return f"Subject: {name}\r\n\r\n{lines}".encode()


def name_of(mail: Mail | Envelope) -> str:
    """Return the name that a producer gave a mail: by SMTP its ENVID, since an intake draws one."""
    given = None if mail.dsn is None else mail.dsn.envid
    return given or mail.name or ""


def is_intact(mail: Mail | Envelope, content: bytes) -> bool:
    """Return whether a mail has its bytes; by SMTP behind the trace, and a filter's field."""
    sent = content_of(name_of(mail))
    if mail.origin is None:
        return content == sent
    added = content.removesuffix(sent)
    return added != content and b": ".join(FILTERED.split(b"\0")[:2]) in added


@dataclass
class Place:
    """The place of work of one process. `set_up` changes the configuration of a queue's view."""

    queues: Mapping[str, MailQueue]
    clock: Clock
    recorder: Recorder
    randomness: random.Random
    pace: Pace
    set_up: Callable[[str], Awaitable[object]]
    ports: Mapping[str, int] = field(default_factory=dict)
    """Those of intakes, by queue; without them, producers enqueue by themselves."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a producer or administrator must begin nothing new."""
    _calls: int = 0

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(timedelta(seconds=seconds))

    async def call(
        self,
        op: str,
        work: Callable[[], Awaitable[Mapping[str, Any] | None]],
        **data: Any,
    ) -> bool:
        """Do one call, recorded before and after. Returns whether it succeeded; a queue that was
        closed meanwhile leaves the call open. Raises: QueueClosed."""
        self._calls += 1
        call = f"{self.recorder.by}/{self._calls}"
        self.recorder.note(op, Phase.INVOKE, call, **data)
        try:
            result = await work()
        except QueueClosed:
            raise
        except PostroadError as error:
            self.recorder.note(op, Phase.FAIL, call, error=_name(error))
            return False
        except Exception as error:  # an unexpected error is recorded like any other
            self.recorder.note(op, Phase.UNKNOWN, call, error=repr(error))
            return False
        self.recorder.note(op, Phase.OK, call, **(result or {}))
        return True


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


# Producers


async def produce(place: Place, rate: float) -> None:
    """Enqueue `rate` mails a second, whether or not earlier calls have returned. A process that was
    delayed enqueues what it missed."""
    number, due = 0, place.clock.elapsed().total_seconds()
    calls: set[asyncio.Task[None]] = set()
    while not place.over.is_set():
        due += place.randomness.expovariate(rate)
        late = place.clock.elapsed().total_seconds() - due
        if late < 0:
            await place.sleep(-late)
        elif late > MADE_UP_FOR:
            due += late
        else:
            await asyncio.sleep(0)
        number += 1
        if len(calls) < 64:
            task = asyncio.ensure_future(_enqueue(place, f"{place.recorder.by}-{number}"))
            calls.add(task)
            task.add_done_callback(calls.discard)
    await asyncio.gather(*calls)
    # a failed enqueue decides a redelivery delay later whether it has to be counted
    await place.sleep(place.pace.beat * 1.5)


async def _enqueue(place: Place, name: str) -> None:
    queue_name = place.randomness.choice(sorted(place.queues))
    queue = place.queues[queue_name]
    count = place.randomness.choice((1, 1, 1, 2, 3))
    recipients = tuple(f"r{each}@d{place.randomness.randrange(9)}.example" for each in range(count))
    sender = place.randomness.choice(SENDERS)
    beats = place.randomness.choice((0, 0, 0, 0, 0, 0, 0, 1, 2, 5))
    mail = Mail(sender, recipients, content_of(name), name=name)
    port = place.ports.get(queue_name)

    async def work() -> Mapping[str, Any]:
        if port is not None:
            return await asyncio.to_thread(_submit, port, mail)
        return {"entry": str(await queue.enqueue(mail, timedelta(seconds=beats * place.pace.beat)))}

    await place.call(
        "enqueue",
        work,
        mail=name,
        queue=queue_name,
        sender=sender,
        recipients=recipients,
        beats=beats,
        by_smtp=port is not None,
    )


def _submit(port: int, mail: Mail) -> Mapping[str, Any]:
    """Hand a mail to an intake, with ENVID. Raises: SMTPException, OSError: nothing is known of a
    mail then, since another attempt may be under way."""
    with smtplib.SMTP("127.0.0.1", port, timeout=SMTP_TIMEOUT) as client:
        options = [f"ENVID={mail.name}"]
        content = content_of(mail.name or "")
        client.sendmail(mail.sender or "", [*mail.recipients, TRAP], content, options)
    return {}


# Workers


async def work(place: Place) -> None:
    """Deliver from every queue and run maintenance, until cancelled."""
    randomness = _Chance(place.randomness)
    every = timedelta(seconds=place.pace.maintenance)
    async with asyncio.TaskGroup() as group:
        for name, queue in place.queues.items():
            group.create_task(consume(place, name, queue))
            group.create_task(run_maintenance(queue, place.clock, randomness, every))


class _Chance:
    """A generator behind the port."""

    def __init__(self, randomness: random.Random) -> None:
        self.uniform, self.bits = randomness.random, randomness.getrandbits


async def consume(place: Place, name: str, queue: MailQueue, *, final: bool = False) -> None:
    """Deliver all mail that comes; with `final`, each mail at once and to all its recipients."""
    async with asyncio.TaskGroup() as group:
        async for item in queue.dequeue(place.randomness.choice(place.pace.prefetch)):
            group.create_task(_Delivery(place, name, item).run(final=final))


class _Delivery:
    """One attempt at one mail."""

    def __init__(self, place: Place, queue: str, item: Item) -> None:
        self._place, self._queue, self._item = place, queue, item
        self._message = delivery_of(item)
        self._mail = name_of(item.mail)
        self._recipients = item.mail.recipients
        place._calls += 1
        self._id = f"{place.recorder.by}/a{place._calls}"
        self._sent: tuple[str, ...] = ()

    async def run(self, *, final: bool) -> None:
        self._place.recorder.note(
            "lease",
            attempt=self._id,
            mail=self._mail,
            entry=str(self._item.enqueue_id),
            mail_id=str(self._item.mail_id),
            looked=self._message.looked,
            recipients=self._recipients,
        )
        try:
            await self._attempt(self._choice(final=final))
        except (BlobMissing, QueueClosed):
            pass

    def _choice(self, *, final: bool) -> str:
        if final or self._item.attempt >= LAST_ATTEMPT:
            return "done"
        return self._place.randomness.choices(
            ("done", "slow", "very slow", "retry", "some", "record", "reject"),
            (66, 10, 3, 10, 4, 4, 3),
        )[0]

    async def _attempt(self, how: str) -> None:
        beat, randomness = self._place.pace.beat, self._place.randomness
        if how == "slow":
            await self._place.sleep(beat * randomness.uniform(0.2, 2))
        elif how == "very slow":
            await self._place.sleep(beat * randomness.uniform(3, 8))
        some = self._recipients[: len(self._recipients) // 2]
        if how == "record":
            await self._transmit(self._recipients[:1])
            await self._record(self._recipients[:1])
            how = randomness.choice(("retry", "done", "reject")) if self._recipients[1:] else "done"
            some = ()
        if how == "retry":
            await self._retry(None, self._recipients)
        elif how == "some":
            await self._transmit(some)
            left = tuple(each for each in self._recipients if each not in some)
            await self._retry(left, left)
        elif how == "reject":
            await self._end("reject", lambda: self._item.reject("the worker rejects it"))
        else:
            await self._transmit(self._item.mail.recipients)
            if how != "done":
                await self._place.sleep(beat * randomness.uniform(0, 1))
            await self._end("done", self._item.done)

    async def _transmit(self, recipients: tuple[str, ...]) -> None:
        """Fetch the bytes, and record the transmission at the moment when it cannot be undone."""
        pending = tuple(each for each in recipients if each not in self._sent)
        if not pending:
            return
        content = await self._content()
        self._sent += pending
        self._place.recorder.note(
            "transmit",
            attempt=self._id,
            mail=self._mail,
            recipients=pending,
            intact=is_intact(self._item.mail, content),
        )

    async def _content(self) -> bytes:
        while True:
            try:
                return await self._item.content()
            except (BlobMissing, QueueClosed):
                raise
            except PostroadError:
                await self._place.sleep(self._place.pace.beat / 4)

    async def _record(self, recipients: tuple[str, ...]) -> None:
        await self._insist(
            "record",
            lambda: self._item.record(dict.fromkeys(recipients, Outcome.delivered("250 ok"))),
            finishes=recipients,
        )

    async def _retry(self, remaining: tuple[str, ...] | None, left: tuple[str, ...]) -> None:
        delay = timedelta(
            seconds=self._place.pace.beat * self._place.randomness.choice((0, 0.5, 1, 4))
        )
        finishes = tuple(each for each in self._sent if remaining is None or each not in left)
        if not self._place.randomness.randrange(3):
            delay = timedelta(0)
        await self._end(
            "retry", lambda: self._item.retry(delay, remaining, "451 later"), finishes=finishes
        )

    async def _end(
        self,
        op: str,
        ending: Callable[[], Awaitable[None]],
        finishes: tuple[str, ...] | None = None,
    ) -> None:
        await self._insist(op, ending, finishes=finishes)

    async def _insist(
        self, op: str, work: Callable[[], Awaitable[None]], *, finishes: tuple[str, ...] | None
    ) -> None:
        """Repeat an ending until it succeeds, as the worker does."""

        async def once() -> None:
            try:
                await work()
            except EntryEnded:
                pass  # an earlier try of this ending succeeded

        while not await self._place.call(
            op,
            once,
            attempt=self._id,
            mail=self._mail,
            finishes=finishes,
            lost=not self._message.is_leased,
        ):
            await self._place.sleep(self._place.pace.beat / 4)


# The administrator


async def administrate(place: Place) -> None:
    """Draw changes of waiting mail, and make some of them at once."""
    acts: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        while not place.over.is_set():
            await place.sleep(place.randomness.expovariate(1 / place.pace.administration))
            name = place.randomness.choice(sorted(place.queues))
            kinds = ("one", "all", "sender", "dead_letters", "sizes", "set_up", "purge")
            kind = place.randomness.choices(kinds, (60, 20, 4, 6, 6, 3, 0.7))[0]
            if len(acts) < AT_ONCE:
                task = group.create_task(_act(place, name, place.queues[name], kind))
                acts.add(task)
                task.add_done_callback(acts.discard)


async def _act(place: Place, name: str, queue: MailQueue, kind: str) -> None:
    everything = {"all": True}
    if kind == "one":
        mail = await _any_mail(place, queue)
        op = place.randomness.choice(("remove", "remove", "hold", "hold", "release", "flush"))
        if mail is not None:
            selector = {"name": name_of(mail)}
            await change(place, op, name, queue, selector, of_one=mail.name)
    elif kind == "all":
        op = place.randomness.choice(("release", "release", "flush", "requeue", "republish"))
        await change(place, op, name, queue, everything)
    elif kind == "sender":
        await change(place, "remove", name, queue, {"sender": place.randomness.choice(SENDERS)})
    elif kind == "purge":
        await change(place, "purge", name, queue, everything)
    elif kind == "dead_letters":
        await list_dead_letters(place, name, queue)
    elif kind == "sizes":
        await place.call("size", lambda: _sizes(queue), queue=name)
    else:
        await place.call("set_up", lambda: _none(place.set_up(name)), queue=name)


async def _none(work: Awaitable[object]) -> None:
    await work


async def _sizes(queue: MailQueue) -> Mapping[str, Any]:
    sizes = await queue.size()
    return {"size": sizes.size, "delayed": sizes.delayed, "held": sizes.held}


async def _any_mail(place: Place, queue: MailQueue) -> Envelope | None:
    found: list[Envelope] = []
    views = queue.browse()
    try:
        async for view in views:
            found.append(view.mail)
            if len(found) == LOOKED_AT:
                break
    except PostroadError:
        pass
    finally:
        close = getattr(views, "aclose", None)
        if close is not None:
            await close()
    return place.randomness.choice(found) if found else None


async def change(
    place: Place,
    op: str,
    name: str,
    queue: MailQueue,
    selector: Mapping[str, Any],
    *,
    of_one: str | None = None,
) -> int:
    """Do one change of waiting mail or dead letters, recorded; return its count. `of_one`: of the
    mail that has this name in the queue."""
    wanted = Selector(
        name=of_one,
        sender=selector.get("sender"),
        everything=selector.get("all", False),
    )
    total = 0

    async def work() -> Mapping[str, Any]:
        nonlocal total
        if op == "purge":
            total = await queue.purge()
        elif op == "republish":
            total = await queue.republish(place.pace.timing.keep_after)
        else:
            total = await getattr(queue, op)(wanted)
        return {"count": total}

    await place.call(op, work, queue=name, selector=dict(selector))
    return total


async def list_dead_letters(
    place: Place, name: str, queue: MailQueue, *, last: bool = False
) -> int | None:
    """Record the dead letters; return how many, None when they could not be listed."""
    return await _list(place, "dead_letters", name, queue.dead_letters, last=last)


async def list_waiting(
    place: Place, name: str, queue: MailQueue, *, last: bool = False
) -> int | None:
    """Record what waits; return how many, None when it could not be listed."""
    return await _list(place, "browse", name, queue.browse, last=last)


async def _list(
    place: Place,
    op: str,
    name: str,
    views: Callable[[], AsyncIterator[MailView]],
    *,
    last: bool,
) -> int | None:
    found: list[dict[str, Any]] = []

    async def work() -> Mapping[str, Any]:
        async for view in views():
            found.append(
                {
                    "mail": name_of(view.mail),
                    "recipients": view.mail.recipients,
                    "held": view.held,
                    "reason": view.reason,
                }
            )
        return {"mails": found, "last": last}

    return len(found) if await place.call(op, work, queue=name) else None
