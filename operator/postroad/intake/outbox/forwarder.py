"""Forwards mail from an outbox to its queue, each under its key, so that a repetition after a crash
is the same mail. What the queue refuses for good becomes a dead letter of the outbox."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import timedelta

from postroad.domain.mail.mail import Mail
from postroad.errors import BlobMissing, InvalidInput, PostroadError
from postroad.intake.accepted_events import publish_accepted
from postroad.intake.outbox.entries import unpacked
from postroad.intake.outbox.outbox import Outbox
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import NO_DELAY, Item
from postroad.telemetry.logs import logger

_log = logger("outbox")

MAX_AT_ONCE = 32
"""Mails that are forwarded at the same time."""

MAX_IN_MEMORY = 1 << 20
"""Octets of a content that is read whole; a larger one passes in chunks."""

MIN_PAUSE, MAX_PAUSE = timedelta(seconds=1), timedelta(seconds=30)

MAX_ALONE = 5
"""Failures of a mail between which the queue took others, or while others wait for its place."""

SET_ASIDE = timedelta(minutes=10)
"""Time that a mail waits which fails beside others that are taken."""

LEASE_LEFT = timedelta(minutes=2)
"""Time before the end of a lease at which a mail goes back."""

COMPARE_INTERVAL = timedelta(seconds=30)

DRAIN_LOOK = timedelta(milliseconds=50)


class Forwarder:
    """Forwards what is in an outbox. While the queue is away, one mail after the other tries."""

    def __init__(self, outbox: Outbox, clock: Clock, randomness: Randomness) -> None:
        self._outbox, self._clock, self._randomness = outbox, clock, randomness
        self._turn = asyncio.Lock()
        self._passed = 0

    async def run(self) -> None:
        """Forward until cancelled. Raises: the error that stopped the store."""
        await self._outbox.find()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._compare())
            async for item in self._outbox.store.dequeue(MAX_AT_ONCE):
                self._outbox.oldest[item.mail_id] = item.accepted_at
                tasks.create_task(self._forward(item))

    async def drain(self, within: timedelta) -> None:
        """Wait until the outbox is empty, or the queue is away, or the time is over."""
        until = self._clock.elapsed() + within
        while self._outbox.mails and not self._outbox.is_away and self._clock.elapsed() < until:
            await self._clock.sleep(DRAIN_LOOK)
        if self._outbox.mails:
            _log.warning("mail stays in the outbox", mails=self._outbox.mails)

    async def _compare(self) -> None:
        while True:
            await self._clock.sleep(COMPARE_INTERVAL)
            await self._outbox.compare()

    async def _forward(self, item: Item) -> None:
        """Try until the queue has the mail, refuses it, or the lease is nearly over."""
        outbox, pause, passed = self._outbox, NO_DELAY, self._passed
        tries = alone = 0
        async with item:
            while item.lease_until - self._clock.elapsed() > LEASE_LEFT:
                async with self._turn if outbox.is_away else nullcontext():
                    if pause or outbox.is_away:
                        jitter = 0.5 + self._randomness.uniform() / 2
                        await self._clock.sleep(max(pause, MIN_PAUSE) * jitter)
                    if await self._attempt(item):
                        self._passed += 1
                        return
                item.forget_content()
                pause = min(max(2 * pause, MIN_PAUSE), MAX_PAUSE)
                tries, alone = tries + 1, alone + (self._passed != passed)
                passed = self._passed
                if alone >= MAX_ALONE:
                    await item.retry(SET_ASIDE, error="the queue does not take it, but others")
                    return
                if tries >= MAX_ALONE and outbox.mails > MAX_AT_ONCE:
                    # As many mails that alone fail as there are places would stop all others.
                    await item.retry(MAX_PAUSE, error="the queue does not take it")
                    return

    async def _attempt(self, item: Item) -> bool:
        """Return whether the mail has left the outbox."""
        is_small = item.size_bytes <= MAX_IN_MEMORY
        try:
            found, now = unpacked(item.mail, item.mail_id), self._clock.now()
            mail = Mail.of(found.envelope, await item.content() if is_small else item.stream())
            delay = NO_DELAY if found.due_at is None else found.due_at - now
            enqueue_id = await self._outbox.send(mail, delay, found.key, item.accepted_at)
        except (InvalidInput, BlobMissing) as error:
            if not isinstance(error, BlobMissing):  # of one without its bytes the store made one
                await item.reject(f"the queue refuses it: {type(error).__name__}")
            self._outbox.left(item.mail_id, item.size_bytes, "refused")
            _log.error(
                "a mail became a dead letter of the outbox",
                **self._named(item),
                error=error.explain(),
            )
            return True
        except PostroadError as error:
            _log.debug("mail not forwarded yet", **self._named(item), error=error.explain())
            return False
        except Exception:
            _log.exception("unexpected error in an enqueue", queue=self._outbox.name)
            return False
        content = mail.content if is_small else item.stream()
        await publish_accepted(
            self._outbox.events,
            self._outbox.name,
            enqueue_id,
            found.envelope,
            content,
            item.size_bytes,
            item.accepted_at,
        )
        await item.done()
        self._outbox.left(item.mail_id, item.size_bytes, "forwarded")
        _log.info("mail forwarded", **self._named(item), enqueue_id=str(enqueue_id))
        return True

    def _named(self, item: Item) -> dict[str, str | None]:
        return {"queue": self._outbox.name, "mail_name": item.mail.name}
